"""Fault kinds, one file each. `FAULTS` is the registry that plans, daemon, reports and tests go by."""

from chaoskit.faults.base import Evidence, Exit, Fault, Landing, LinkHits, NotApplicableError, Process, Undoing, World
from chaoskit.faults.link_bandwidth import LinkBandwidth
from chaoskit.faults.link_latency import LinkLatency
from chaoskit.faults.link_partition import LinkPartition
from chaoskit.faults.process_kill import ProcessKill
from chaoskit.faults.process_pause import ProcessPause
from chaoskit.plan import KindSpec

FAULTS: dict[str, type[Fault]] = {
    fault.kind: fault for fault in (ProcessKill, ProcessPause, LinkBandwidth, LinkLatency, LinkPartition)
}
"""Kind as written in a plan -> class."""


def kind_specs() -> dict[str, KindSpec]:
    """What the plan reader must know of every kind."""
    return {kind: fault.spec() for kind, fault in FAULTS.items()}


__all__ = [
    "FAULTS",
    "Evidence",
    "Exit",
    "Fault",
    "Landing",
    "LinkHits",
    "NotApplicableError",
    "Process",
    "Undoing",
    "World",
    "kind_specs",
]
