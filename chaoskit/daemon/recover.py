"""Ending what a dead run left: used by the guardian, by the runner, and by `chaoskit recover`.

Every fault of today lives in the processes of its run: a stopped process, a link in the proxy. So a run whose processes
are provably gone has no fault left. What cannot be proved is said, never assumed.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from chaoskit.daemon.control import ask
from chaoskit.daemon.ledger import LEDGER, Ledger, LedgerState, read_ledger
from chaoskit.daemon.spec import SPEC
from chaoskit.errors import JournalError, UsageError
from chaoskit.journal import AppendLog
from chaoskit.world.process import is_alive, kill_until_gone, marked_processes


@dataclass(frozen=True)
class Recovery:
    """What was found and ended, and what could not be proved clean."""

    run_dir: Path
    killed: tuple[str, ...]
    injections: tuple[str, ...]
    unproved: tuple[str, ...]


def owners_alive(state: LedgerState) -> list[int]:
    """Pids of the run's daemon and guardian that are still there."""
    return [owner.pid for owner in state.owners if is_alive(owner.pid, owner.start_time)]


def needs_recovery(run_dir: Path) -> bool:
    """Whether a run folder holds a ledger that nobody closed, or one closed with a residue."""
    ledger = run_dir / LEDGER
    # An empty one is a run that is just starting, perhaps beside us: nothing is done before its first record.
    if not ledger.exists() or ledger.stat().st_size == 0:
        return False
    try:
        state = read_ledger(run_dir)
    except JournalError:
        return True
    return not state.closed or bool(state.residue)


def end_run(run_dir: Path, by: str) -> Recovery:
    """Kill what is left of a run, prove it gone, and close its ledger and journal. Idempotent.

    A daemon or guardian that is still there (it hangs, or the caller would not be here) is killed first: it would go on
    writing and starting processes after the end.
    """
    damage: tuple[str, ...] = ()
    try:
        state = read_ledger(run_dir) if (run_dir / LEDGER).exists() else LedgerState((), (), {}, False, (), False)
    except JournalError as error:
        state = LedgerState((), (), {}, closed=False, residue=(), torn=False)
        damage = (f"the ledger cannot be read, so only marked processes were looked for: {error}",)
        # Kept for whoever wants to look; a new one takes its place, so that the next recovery can come to a clean end.
        with contextlib.suppress(FileNotFoundError):
            (run_dir / LEDGER).rename(run_dir / f"{LEDGER}.damaged")
    killed, left = kill_until_gone(lambda: _living(run_dir, state))
    unproved = (*damage, *(f"{name} is still alive" for name in left))
    _write_end(run_dir, state, unproved, by, killed)
    return Recovery(run_dir, tuple(killed), tuple(state.open_injections), unproved)


def recover(run_dir: Path) -> Recovery:
    """`chaoskit recover RUN`. Raises UsageError while the run's daemon or guardian is alive."""
    if not (run_dir / SPEC).exists():
        raise UsageError(f"{run_dir}: not a run folder (it has no {SPEC}); expected one such as reports/NAME-s7-DATE")
    with contextlib.suppress(JournalError):
        alive = owners_alive(read_ledger(run_dir))
        if alive and _answers(run_dir):
            raise UsageError(
                f"{run_dir}: this run is still on (pid {', '.join(map(str, alive))}); expected a dead one; "
                f"to end it, run: chaoskit stop {run_dir}"
            )
    return end_run(run_dir, "recover")


def _answers(run_dir: Path) -> bool:
    """Whether the daemon answers on its socket. One that lives and does not is hung."""
    try:
        ask(run_dir, "status")
    except UsageError:
        return False
    return True


def _living(run_dir: Path, state: LedgerState) -> list[tuple[str, int, int]]:
    owners = [("daemon or guardian", owner.pid, owner.start_time) for owner in state.owners if owner.pid != os.getpid()]
    listed = [process for process in (*owners, *state.processes) if is_alive(process[1], process[2])]
    known = {pid for _, pid, _ in listed}
    strays = [("marked process", pid, start) for pid, start in marked_processes(run_dir) if pid not in known]
    return listed + strays


def _write_end(run_dir: Path, state: LedgerState, unproved: tuple[str, ...], by: str, killed: list[str]) -> None:
    clean = not unproved
    ledger = Ledger(run_dir)
    for injection in state.open_injections:
        ledger.write("undone", injection=injection, clean=clean)
    ledger.write("closed", residue=list(unproved))
    ledger.close()
    if not (run_dir / "journal.jsonl").exists():
        return  # the daemon died before it wrote a word: a journal without its opening would be read by nobody
    # A journal that was damaged stays as it is: the ledger is what decides, and it is closed by now.
    with contextlib.suppress(JournalError), AppendLog(run_dir / "journal.jsonl") as journal:
        journal.append("guardian", event="healed", by=by, killed=killed, unproved=list(unproved))
        evidence = {"why": f"every process of the run is gone, ended by the {by}"} if clean else {}
        for injection in state.open_injections:
            journal.append("undone", injection=injection, clean=clean, evidence=evidence)
