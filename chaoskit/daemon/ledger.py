"""The write-ahead ledger: what must be undone, known before it is done, and readable after everybody died.

open {owners}              who owns the run: pids with start times
spawn {role, pid, ...}     a process of the run (roles and proxy)
intent {injection, until_t, ...}   synced to disk BEFORE the first side effect
undone {injection, clean}
closed {residue}           the run's end; without it the run is a residue until `recover` has been there
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaoskit.journal import AppendLog, Record, read_log

LEDGER = "ledger.jsonl"


class Ledger:
    """The ledger while its run is on. Every record is on disk before `write` returns."""

    def __init__(self, run_dir: Path) -> None:
        self._log = AppendLog(run_dir / LEDGER, sync=True)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one record and wait until it is on disk."""
        self._log.append(kind, **fields)

    def close(self) -> None:
        self._log.close()


@dataclass(frozen=True)
class Owner:
    """The daemon or guardian of a run."""

    pid: int
    start_time: int


@dataclass(frozen=True)
class LedgerState:
    """What a ledger says, folded."""

    owners: tuple[Owner, ...]
    processes: tuple[tuple[str, int, int], ...]
    """(role or "proxy", pid, start time) of every process that the run ever started."""
    open_injections: dict[str, dict[str, Any]]
    """Injection id -> its intent, for each intent without a clean undoing."""
    closed: bool
    residue: tuple[str, ...]
    torn: bool


def read_ledger(run_dir: Path) -> LedgerState:
    """Fold a run's ledger. A torn last line is a record whose effect had not begun. Raises JournalError."""
    records, torn = read_log(run_dir / LEDGER)
    return fold(records, torn=torn)


def fold(records: list[Record], *, torn: bool = False) -> LedgerState:
    """The state after these records."""
    owners: list[Owner] = []
    processes: list[tuple[str, int, int]] = []
    injections: dict[str, dict[str, Any]] = {}
    closed = False
    residue: tuple[str, ...] = ()
    for record in records:
        data = record.data
        if record.kind == "open":
            owners += [Owner(**owner) for owner in data["owners"]]
        elif record.kind == "spawn":
            processes.append((data["role"], data["pid"], data["start_time"]))
        elif record.kind == "intent":
            injections[data["injection"]] = data
        elif record.kind == "undone" and data["clean"]:
            injections.pop(data["injection"], None)
        elif record.kind == "closed":
            closed = True
            residue = tuple(data["residue"])
    return LedgerState(tuple(owners), tuple(processes), injections, closed, residue, torn)
