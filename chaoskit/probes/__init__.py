"""Probes: measurements with a tolerance, as functions of a history."""

from chaoskit.probes import isolation, ledger, liveness, outcome, rejoin, safety, versions  # noqa: F401  they register
from chaoskit.probes.base import (
    PROBES,
    Case,
    Finding,
    Probe,
    ProbeResult,
    Verdict,
    combine,
    judge,
    place,
)

for _name in sorted(PROBES, key=lambda name: place(PROBES[name].id)):
    PROBES[_name] = PROBES.pop(_name)  # into the order of the probe table, whatever the order of the imports

__all__ = ["PROBES", "Case", "Finding", "Probe", "ProbeResult", "Verdict", "combine", "judge"]
