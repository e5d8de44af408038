"""What happened in a run: its journal and the target's event tapes, merged into one order.

    journal.jsonl             daemon     ──┐
    tape/syncer.1.jsonl       syncer     ──┤
    tape/learner-2.1.jsonl    learner-2  ──┼──▶  History.records, numbered 0, 1, 2, ... by time
    tape/learner-2.2.jsonl    learner-2  ──┘

All processes of a machine share one monotonic clock, so time orders records of different files. Within a file
the order of its lines is the truth and is never changed, even where two threads stamped their lines the other
way round: a line whose time is before its predecessor's is merged as if at the predecessor's time (its own
`t` is kept).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from chaoskit.errors import JournalError
from chaoskit.journal.lines import decode_fields
from chaoskit.journal.log import FORMAT, Record, read_log

DAMAGED_NAMED_MAX = 20
"""How many damaged tape lines are named by file and line; the rest are only counted."""


@dataclass(frozen=True)
class InjectionEntry:
    """All the journal says about one injection, joined by its id. Times are in seconds; None where it did not
    happen."""

    id: str
    name: str
    fault: str
    """The kind of fault, for instance "process.kill"; empty where the injection was skipped before any
    intent."""
    targets: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    trigger: str = ""
    t_due: float | None = None
    t_intent: float | None = None
    t_applied: float | None = None
    applied_evidence: dict[str, Any] = field(default_factory=dict)
    t_landed: float | None = None
    landed: bool | None = None
    landed_evidence: dict[str, Any] = field(default_factory=dict)
    t_undo: float | None = None
    t_undone: float | None = None
    clean: bool | None = None
    undone_evidence: dict[str, Any] = field(default_factory=dict)
    skipped: str | None = None
    """Why it was never injected, or None."""
    records: tuple[int, ...] = ()
    """The numbers of the records this was joined from."""

    @property
    def window(self) -> tuple[float, float] | None:
        """(t_start, t_end) in which the fault acted, or None if it was never applied or is not undone yet."""
        t_start = self.t_applied if self.t_applied is not None else self.t_intent
        if t_start is None or self.t_undone is None:
            return None
        return (t_start, self.t_undone)


@dataclass(frozen=True)
class History:
    """The merged records of a run, and the few joins that every probe and the report need."""

    records: tuple[Record, ...]
    damaged: int = 0
    """Tape lines that could not be read. They are left out."""
    damaged_at: tuple[str, ...] = ()
    """The first of them, as file:line."""
    torn: bool = False
    """True if the journal's last line was cut, that is: its writer was killed."""

    @cached_property
    def _by_kind(self) -> dict[str, list[Record]]:
        by_kind: dict[str, list[Record]] = {}
        for record in self.records:
            by_kind.setdefault(record.kind, []).append(record)
        return by_kind

    def of(self, *kinds: str) -> list[Record]:
        """The records of these kinds, in order."""
        found = [record for kind in dict.fromkeys(kinds) for record in self._by_kind.get(kind, ())]
        if len(kinds) > 1:
            found.sort(key=lambda record: record.n)
        return found

    @property
    def header(self) -> Record | None:
        """The journal's first record: run, plan, seed, target; None in a history made without a journal."""
        return next(iter(self._by_kind.get("journal", ())), None)

    @property
    def end(self) -> Record | None:
        """The last `end` record, or None if the run never ended properly."""
        ends = self._by_kind.get("end")
        return ends[-1] if ends else None

    @property
    def config(self) -> Record | None:
        """The syncer's `config` record (M, P, H, tau, K, ...), or None if no syncer told."""
        return next(iter(self._by_kind.get("config", ())), None)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The names of all who wrote records, sorted."""
        return tuple(sorted({record.node for record in self.records}))

    @cached_property
    def phases(self) -> list[tuple[str, float, float]]:
        """(phase, t_start, t_end) in order. The last phase ends with the run: at `end`, else at the last
        record."""
        begun = self.of("phase")
        if not begun:
            return []
        t_last = self.end.t if self.end is not None else max(record.t for record in self.records)
        ends = [record.t for record in begun[1:]] + [max(t_last, begun[-1].t)]
        return [(str(record.get("phase", "")), record.t, t_end) for record, t_end in zip(begun, ends, strict=True)]

    @cached_property
    def injections(self) -> tuple[InjectionEntry, ...]:
        """Every injection the journal mentions, in the order of first mention."""
        stories: dict[str, list[Record]] = {}
        for record in self.of("intent", "applied", "landed", "undo", "undone", "skipped"):
            stories.setdefault(str(record.get("injection", "")), []).append(record)
        return tuple(_join(injection, story) for injection, story in stories.items())


def history(run_dir: str | Path) -> History:
    """The merged history of the run in this folder.

    Raises JournalError if there is no journal, it is damaged before its last line, or journal or tape are of
    another format. Damaged tape lines are counted, never an error: a tape is written by a process that may
    die at any time.
    """
    run_dir = Path(run_dir)
    journal_path = run_dir / "journal.jsonl"
    journal, torn = read_log(journal_path)
    _check_format(journal_path, journal)
    files: list[list[Record]] = [journal]
    damaged: list[str] = []
    for path in sorted((run_dir / "tape").glob("*.jsonl"), key=_tape_order):
        tape, damaged_lines = _read_tape(path)
        files.append(tape)
        damaged += [f"{path.parent.name}/{path.name}:{line}" for line in damaged_lines]
    return History(records=merge(files), damaged=len(damaged), damaged_at=tuple(damaged[:DAMAGED_NAMED_MAX]), torn=torn)


def merge(files: Iterable[list[Record]]) -> tuple[Record, ...]:
    """The records of several files in one order by time, numbered from 0; the order within each file is
    kept."""
    records: list[Record] = []
    times: list[float] = []
    for file in files:
        records += file
        times += accumulate((record.t for record in file), max)
    order = sorted(range(len(records)), key=times.__getitem__)
    return tuple(
        Record(n, record.t, record.node, record.kind, record.data)
        for n, record in enumerate(records[index] for index in order)
    )


def _read_tape(path: Path) -> tuple[list[Record], list[int]]:
    """The records of one tape, and the numbers of its damaged lines. A cut last line is neither."""
    lines = path.read_bytes().split(b"\n")[:-1]
    node = path.name.split(".")[0]
    records: list[Record] = []
    damaged: list[int] = []
    for number, line in enumerate(lines, start=1):
        fields = decode_fields(line)
        if fields is None:
            damaged.append(number)
            continue
        kind = fields.pop("kind")
        if kind == "start":
            _check_tape_format(path, number, fields)
            node = str(fields.get("role", node))
        records.append(Record(number, fields.pop("t"), node, kind, fields))
    return records, damaged


def _tape_order(path: Path) -> tuple[str, int, str]:
    """Tapes sorted by role, then by the number of the process (2 before 10)."""
    role, _, rest = path.name.partition(".")
    start = rest.partition(".")[0]
    return (role, int(start) if start.isdecimal() else 0, path.name)


def _check_format(path: Path, journal: list[Record]) -> None:
    if not journal or journal[0].kind != "journal":
        found = repr(journal[0].kind) if journal else "nothing"
        raise JournalError(f"{path}:1: found {found}; expected the record 'journal', which begins every journal")
    version = journal[0].get("format")
    if version != FORMAT:
        raise JournalError(
            f"{path}:1: the journal is of format {version!r}; expected {FORMAT}."
            " Read it with the chaoskit that wrote it"
        )


def _check_tape_format(path: Path, number: int, start: dict[str, Any]) -> None:
    version = start.get("format", FORMAT)
    if version != FORMAT:
        raise JournalError(f"{path}:{number}: the tape is of format {version!r}; expected {FORMAT}")


def _join(injection: str, story: list[Record]) -> InjectionEntry:
    joined: dict[str, Any] = {
        "id": injection,
        "name": injection.partition("#")[0],
        "fault": "",
        "records": tuple(record.n for record in story),
    }
    for record in story:
        joined |= _told_by(record)
    return InjectionEntry(**joined)


def _told_by(record: Record) -> dict[str, Any]:
    """The fields of an InjectionEntry that one record settles."""
    match record.kind:
        case "intent":
            return {
                "name": str(record.get("name", "")) or str(record.get("injection", "")).partition("#")[0],
                "fault": str(record.get("fault", "")),
                "targets": tuple(record.get("targets") or ()),
                "settings": dict(record.get("settings") or {}),
                "trigger": str(record.get("trigger", "")),
                "t_due": record.get("due_t"),
                "t_intent": record.t,
            }
        case "applied":
            return {"t_applied": record.t, "applied_evidence": dict(record.get("evidence") or {})}
        case "landed":
            evidence = dict(record.get("evidence") or {})
            return {"t_landed": record.t, "landed": bool(record.get("landed")), "landed_evidence": evidence}
        case "undo":
            return {"t_undo": record.t}
        case "undone":
            evidence = dict(record.get("evidence") or {})
            return {"t_undone": record.t, "clean": bool(record.get("clean")), "undone_evidence": evidence}
        case _:
            return {"skipped": str(record.get("why", "")) or "no reason given"}
