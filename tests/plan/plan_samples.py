"""A small catalogue, a target and a plan that the tests of the plan room read."""

from __future__ import annotations

from pathlib import Path

from chaoskit.plan import KindSpec, ProbeSpec, Setting

KINDS = {
    spec.kind: spec
    for spec in (
        KindSpec("process.kill", "role", (Setting("restart-after", "duration", default=1.0),), needs_hold=False),
        KindSpec("process.pause", "role"),
        KindSpec("link.bandwidth", "link", (Setting("rate", "rate", required=True, about="bits per second"),)),
        KindSpec(
            "link.odd",
            "link",
            (
                Setting("share", "share", default=0.5, zero_ok=True),
                Setting("messages-max", "count"),
                Setting("order", "choice", choices=("first", "last"), default="first"),
                Setting("burst", "size"),
            ),
        ),
    )
}
PROBES = {
    spec.name: spec
    for spec in (
        ProbeSpec("loss", "loss", (Setting("within", "share", default=0.02),)),
        ProbeSpec("rejoin", "L2", (Setting("within", "duration", default=30.0),)),
        ProbeSpec("no-fork", "S2"),
    )
}
TARGET = """
name = "small"
done = "syncer"
replay = ["python", "-m", "replay"]

[[role]]
name = "syncer"
command = ["python", "-m", "syncer"]
ready = "config"

[[role]]
name = "learner"
count = 4
command = ["python", "-m", "learner", "{index}"]
env = { THREADS = "1" }
ready = "step"
stop-signal = "SIGINT"

[[link]]
from = "learner-*"
to = "syncer"
address = "address"
env = "SYNCER"
"""
PLAN = """name = "first"
target = "target.toml"

[limits]
keep = ["syncer"]

[[fault]]
kind = "process.kill"
on = "learner-2"
at = "round 20"
"""


def write_plan(folder: Path, plan: str, target: str = TARGET) -> Path:
    """The plan and its target, as files; the plan's path."""
    (folder / "target.toml").write_text(target, encoding="utf-8")
    path = folder / "plan.toml"
    path.write_text(plan, encoding="utf-8")
    return path
