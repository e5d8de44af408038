"""A reference Decoupled DiLoCo trainer: the system under test. It knows nothing of chaos."""
