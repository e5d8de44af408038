"""The daemon owns a run's injections; the guardian outlives it and undoes everything when it dies."""
