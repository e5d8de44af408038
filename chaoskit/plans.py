"""Reading a plan against the catalogue of this installation's faults and probes."""

from __future__ import annotations

from pathlib import Path

from chaoskit.faults import kind_specs
from chaoskit.plan import KindSpec, Plan, ProbeSpec, Target, read_plan, read_target
from chaoskit.probes import PROBES


def catalogue() -> tuple[dict[str, KindSpec], dict[str, ProbeSpec]]:
    """(fault kinds, probes) that a plan may name."""
    return kind_specs(), {name: probe.spec for name, probe in PROBES.items()}


def load(path: Path) -> tuple[Plan, Target]:
    """A validated plan and its target. Raises PlanError with every problem found."""
    kinds, probes = catalogue()
    plan = read_plan(path, kinds=kinds, probes=probes)
    return plan, read_target(plan.target)
