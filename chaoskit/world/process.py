"""Processes held by pid *and* start time: a pid alone may belong to somebody else by the time it is signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

RUN_MARK = "CHAOSKIT_RUN"
"""Environment variable that every process of a run carries, its run folder as value. By it `recover` finds strays."""


GONE_DEADLINE_S = 3.0
"""How long killed processes may take to go. A torch process with much memory takes 0.14 s."""
GONE_POLL_S = 0.01


@dataclass(frozen=True)
class ProcessStat:
    """The two fields of /proc/PID/stat that tell a process from another: `state` letter and `start_time` in ticks."""

    state: str
    start_time: int


def process_stat(pid: int) -> ProcessStat | None:
    """State and start time of a pid, read in one go; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may itself hold spaces and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(state=fields[0], start_time=int(fields[19]))


def is_alive(pid: int, start_time: int) -> bool:
    """Whether this very process (and not a later one of the same pid) still runs. A zombie does not."""
    stat = process_stat(pid)
    return stat is not None and stat.start_time == start_time and stat.state not in "ZX"


@dataclass(frozen=True)
class RoleProcess:
    """One process of a role. It leads a session and a process group of its own, so that signals reach all of it."""

    role: str
    pid: int
    start_time: int
    start: int = 1
    """1 for the first process of this role in the run, 2 for the next ..."""

    def state(self) -> str | None:
        stat = process_stat(self.pid)
        if stat is None or stat.start_time != self.start_time:
            return None
        return stat.state

    def signal(self, number: int) -> bool:
        """Signal the whole group. False when the process had gone; nobody else is ever hit.

        Only the parent (or subreaper) of the process may rely on this: while it has not been reaped, its pid and
        its group's id cannot be given to another.
        """
        if not is_alive(self.pid, self.start_time):
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def kill_exactly(pid: int, start_time: int) -> None:
    """SIGKILL one process through a pidfd, after its start time was checked *through* that pidfd's lifetime."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The pidfd pins the process: if the start time matches now, the signal goes to that one or to nobody.
        if is_alive(pid, start_time):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)


def kill_until_gone(living: Callable[[], Sequence[tuple[str, int, int]]]) -> tuple[list[str], list[str]]:
    """SIGKILL what `living` finds (name, pid, start time) until it finds nothing: (killed, left at the deadline).

    It is asked again each time, for a process may fork while we look. Our own dead children are reaped meanwhile, the
    adopted ones as well: a zombie would look like a leftover to others.
    """
    killed: dict[tuple[int, int], str] = {}
    deadline = time.monotonic() + GONE_DEADLINE_S
    while (found := living()) and time.monotonic() < deadline:
        for name, pid, start_time in found:
            kill_exactly(pid, start_time)
            killed[pid, start_time] = f"{name} (pid {pid})"
        time.sleep(GONE_POLL_S)
        for _, pid, _ in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    return list(killed.values()), [f"{name} (pid {pid})" for name, pid, _ in found]


def marked_processes(run_dir: Path) -> list[tuple[int, int]]:
    """(pid, start time) of every live process whose environment carries this run's mark, the caller excepted."""
    wanted = f"{RUN_MARK}={run_dir}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            # Gone meanwhile, or another user's: then it is not one of ours, for we start none under other users.
            continue
        stat = process_stat(int(entry.name))
        if stat and stat.state not in "ZX" and wanted in environment.split(b"\0"):
            found.append((int(entry.name), stat.start_time))
    return found
