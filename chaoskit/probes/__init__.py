"""Probes: measurements with a tolerance, as functions of a history."""

# Importing a file registers its probes; this order is the order of the probe table.
from chaoskit.probes import safety, ledger, liveness, rejoin, isolation, outcome  # noqa: F401, I001
from chaoskit.probes.base import PROBES, Case, Finding, Probe, ProbeResult, Verdict, combine, judge

__all__ = ["PROBES", "Case", "Finding", "Probe", "ProbeResult", "Verdict", "combine", "judge"]
