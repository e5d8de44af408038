"""Real runs of the toy target: start `chaoskit run` as a user would, wait for its journal, look for what is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaoskit.daemon.ledger import LedgerState, read_ledger
from chaoskit.daemon.recover import needs_recovery, owners_alive
from chaoskit.journal import Follower, Record, read_log
from chaoskit.world.process import marked_processes

RECORD_DEADLINE_S = 60.0
CLEAN_DEADLINE_S = 5.0
"""The bar: no residue within 5 s."""
ROUNDS = 200
TARGET = Path(__file__).parent / "target.toml"


def plan_text(
    faults: str, *, name: str = "toy", target: Path = TARGET, limits: str = "down-max = 3", run: str = ""
) -> str:
    """A plan of the toy target."""
    return f'''
name = "{name}"
target = "{target}"
[run]
seed = 1
steady = "100 ms"
heal = "30 s"
deadline = "60 s"
{run}
[limits]
{limits}
{faults}
'''


@dataclass
class ToyRun:
    """One `chaoskit run` in a process of its own."""

    runner: subprocess.Popen[str]
    reports: Path
    name: str
    _seen: list[dict[str, Any]] = field(default_factory=list)
    _follower: Follower | None = None

    def wait_for(self, wanted: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """The journal's records as soon as they satisfy `wanted`. Fails when the runner ends first or time is up."""
        deadline = time.monotonic() + RECORD_DEADLINE_S
        while time.monotonic() < deadline:
            if self._follower is None and (folders := list(self.reports.glob(f"{self.name}-s*"))):
                self._follower = Follower(folders[0] / "journal.jsonl")
            ended = self.runner.poll() is not None
            self._seen += self._follower.poll() if self._follower else []
            if wanted(self._seen):
                return self._seen
            assert not ended, f"the runner ended first:\n{self.runner.communicate()[0]}"
            pause()
        raise AssertionError(f"not seen within {RECORD_DEADLINE_S} s; the journal: {self._seen}")

    def wait_for_folder(self) -> None:
        """Wait until the run has its folder, which is before anything of it runs."""
        deadline = time.monotonic() + RECORD_DEADLINE_S
        while not list(self.reports.glob(f"{self.name}-s*")):
            assert time.monotonic() < deadline, f"no run folder within {RECORD_DEADLINE_S} s"

    def wait_for_kinds(self, *kinds: str, injections: int = 1) -> list[dict[str, Any]]:
        """Wait until each of `kinds` was written for so many injections."""
        return self.wait_for(lambda seen: all(sum(r["kind"] == kind for r in seen) >= injections for kind in kinds))

    @property
    def run_dir(self) -> Path:
        """The run folder; there is one once `wait_for` has returned."""
        (folder,) = self.reports.glob(f"{self.name}-s*")
        return folder

    def end(self) -> tuple[int, str]:
        """(exit code, output) of the runner."""
        output, _ = self.runner.communicate(timeout=RECORD_DEADLINE_S)
        return self.runner.returncode, output

    def journal(self) -> list[Record]:
        """All records of the journal; it must be readable whatever happened."""
        return read_log(self.run_dir / "journal.jsonl")[0]

    def pid_of(self, role: str) -> int:
        """The pid of a role's latest process, "proxy" included."""
        state = read_ledger(self.run_dir)
        return [pid for name, pid, _ in state.processes if name == role][-1]

    def owner_pids(self) -> tuple[int, int]:
        """(daemon, guardian)."""
        daemon, guardian = read_ledger(self.run_dir).owners
        return daemon.pid, guardian.pid

    def assert_clean(self) -> LedgerState:
        """No process of the run, no open injection, a closed ledger without residue: within the bar."""
        deadline = time.monotonic() + CLEAN_DEADLINE_S
        while time.monotonic() < deadline:
            ended = not needs_recovery(self.run_dir) and not marked_processes(self.run_dir)
            if ended and not owners_alive(read_ledger(self.run_dir)):
                break
            pause()
        assert marked_processes(self.run_dir) == []
        state = read_ledger(self.run_dir)
        assert owners_alive(state) == []
        assert state.open_injections == {}
        assert state.closed
        assert state.residue == ()
        return state


def pause() -> None:
    """Give way between two looks at a file; every loop around it has a deadline and ends by an event."""
    subprocess.run(["sleep", "0.02"], check=True)


def start_run(plan: Path, reports: Path, name: str, *options: str, rounds: int = ROUNDS) -> ToyRun:
    """Start `chaoskit run PLAN`. The target ends by itself after so many rounds of 20 ms.

    The number travels by environment, so that runs of any length share one control run.
    """
    environment = os.environ | {"TOY_ROUNDS": str(rounds)}
    command = [sys.executable, "-P", "-m", "chaoskit.cli", "run", str(plan), "--reports", str(reports), *options]
    runner = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
    )
    return ToyRun(runner, reports, name)
