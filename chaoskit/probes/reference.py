"""docs/probes.md, made from the registry: `python -m chaoskit.probes.reference > docs/probes.md`."""

from __future__ import annotations

import sys

from chaoskit.plan import Setting
from chaoskit.plan.units import UNITS
from chaoskit.probes import PROBES, Probe

HEAD = """\
# Probes

Made from the code by `python -m chaoskit.probes.reference > docs/probes.md`; a test compares the two.

A probe is a measurement with a tolerance: a function of a run's history (its journal and the target's event tapes, in
the order of one clock). No probe looks at a live process, so a finished run can be judged again at any time.

Every run is judged by every probe that its tape allows. A plan changes a tolerance, or demands that a probe was able
to run, by an entry of its own:

```toml
[[expect]]
probe = "loss"
within = "4 %"
```

| verdict | meaning |
|---|---|
| pass | it holds |
| unknown | the history does not settle it, the probe raised, tape lines are damaged, or the control run is missing |
| fail | it does not hold; the evidence names the records that show it |
| not run | the tape tells too little, or the situation never arose; *unknown* where the plan names the probe |

The verdict of a run is the greatest of pass < unknown < fail; *not run* never weighs.
"""

GROUPS = {
    "S": (
        "Safety: at every moment, under any fault",
        "One linear pass each, no tolerance: a single violation fails. `measured` is the number of violations.",
    ),
    "L": (
        "Liveness",
        "Deadlines are counted in the run's own steps plus an allowance, and speeds are ratios inside one run: absolute"
        " times on a shared machine say nothing.",
    ),
    "C": ("Convergence", "Against the paired control run: the same plan and seed without faults."),
}


def reference() -> str:
    """The page as Markdown."""
    parts = [HEAD]
    for letter, (title, text) in GROUPS.items():
        probes = [probe for probe in PROBES.values() if probe.id.startswith(letter)]
        parts.append(f"## {title}\n\n{text}\n\n{_table(probes)}\n")
        parts += [_tolerances(probe) for probe in probes if probe.settings]
    return "\n".join(parts)


def _table(probes: list[Probe]) -> str:
    rows = [
        f"| {probe.id} | `{probe.name}` | {probe.statement} | {', '.join(f'`{kind}`' for kind in probe.needs)} |"
        for probe in probes
    ]
    return "\n".join(["| id | probe | statement | needs the kinds |", "|---|---|---|---|", *rows])


def _tolerances(probe: Probe) -> str:
    rows = [f"| `{one.name}` | {default_written(one)} | {one.about} |" for one in probe.settings]
    return "\n".join([f"### `{probe.name}`\n", "| tolerance | default | meaning |", "|---|---|---|", *rows, ""])


def default_written(setting: Setting) -> str:
    """The default as a plan would write it."""
    if setting.unit == "count" or setting.unit == "choice":
        return str(setting.default)
    unit = {"duration": "s", "share": "%", "rate": "bit/s", "size": "B"}[setting.unit]
    return f'"{float(setting.default or 0) / UNITS[setting.unit][unit]:g} {unit}"'


if __name__ == "__main__":
    sys.stdout.write(reference())
