"""Small histories, made from tuples of (time, node, kind, fields)."""

from __future__ import annotations

from typing import Any

from chaoskit.journal import History, Record

Told = tuple[float, str, str, dict[str, Any]]

HEADER: Told = (0.0, "daemon", "journal", {"format": 1, "run": "r", "plan": "p", "seed": 1, "target": "t"})
END: Told = (99.0, "daemon", "end", {"outcome": "finished", "why": "", "residue": []})


def made_of(*told: Told) -> History:
    """A history of these records, in order of their times."""
    ordered = sorted(told, key=lambda record: record[0])
    return History(records=tuple(Record(n, t, node, kind, data) for n, (t, node, kind, data) in enumerate(ordered)))


def injected(
    number: int,
    start_t: float,
    end_t: float | None,
    *,
    fault: str = "process.kill",
    on: str = "learner-0",
    landed: bool | None = True,
    clean: bool = True,
) -> list[Told]:
    """The records of one injection; `end_t` None leaves it open, `landed` None leaves the proof out."""
    name = f"f{number}#1"
    intent = {
        "injection": name,
        "fault": fault,
        "name": f"f{number}",
        "targets": [on],
        "settings": {},
        "trigger": "now",
    }
    told: list[Told] = [
        (start_t, "daemon", "intent", intent),
        (start_t, "daemon", "applied", {"injection": name, "targets": [on], "evidence": {}}),
    ]
    if landed is not None:
        told.append((start_t, "daemon", "landed", {"injection": name, "landed": landed, "evidence": {"gone_ms": 0.4}}))
    if end_t is not None:
        told.append((end_t, "daemon", "undone", {"injection": name, "clean": clean, "evidence": {}}))
    return told
