"""Following a run's files, and showing its state: drawn in place in a terminal, else as one plain line an event."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live

from chaoskit.daemon.spec import read_spec
from chaoskit.errors import UsageError
from chaoskit.journal import Follower
from chaoskit.live.draw import draw
from chaoskit.live.state import RunState

DRAW_INTERVAL_S = 0.25
"""Least time between two looks at the files. `refresh` may be called more often and then does nothing."""
EVAL_LINE_INTERVAL_S = 10.0
"""Least time of the run between two lines about the loss where there is no terminal."""
POLLS_MAX = 64
"""Polls of one file in one look, so that a view opened late on a long run still returns soon."""


class LiveView:
    """Shows the run in `run_dir` on `console`, from the first `refresh` on. Leaving it as a context draws once more.

    `control` maps merges to the loss of the control run; by default it is read from the control run that the run folder
    names. `clock` must be the clock of the run's files, CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        run_dir: Path,
        console: Console,
        total_rounds: int | None = None,
        *,
        control: Mapping[int, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = RunState()
        self.state.total_rounds = total_rounds
        self._tape_dir = Path(run_dir) / "tape"
        self._journal = Follower(Path(run_dir) / "journal.jsonl")
        self._tapes: dict[str, Follower] = {}
        self._console = console
        self._control = control_losses(Path(run_dir)) if control is None else control
        self._clock = clock
        self._looked_t = float("-inf")
        self._lines_told = 0
        self._eval_told_t = float("-inf")
        # No thread of rich's own: the runner's loop is the only one that draws.
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._look()
        finally:
            if self._live is not None:
                self._live.stop()
            for follower in (self._journal, *self._tapes.values()):
                follower.close()

    def refresh(self) -> None:
        """Read what is new and show it, at most four times a second. Called by the runner's loop."""
        if self._clock() - self._looked_t >= DRAW_INTERVAL_S:
            self._look()

    def _look(self) -> None:
        self._looked_t = self._clock()
        for name in self._new_tapes():
            self._tapes[name] = Follower(self._tape_dir / name)
        fresh = self._read(self._journal, "")
        for name, follower in self._tapes.items():
            fresh += self._read(follower, name.split(".")[0])
        # By time, or the journal's word that a process is gone would come before the process's own last words.
        fresh.sort(key=lambda told: told[0])
        for _, role, record in fresh:
            self.state.apply(record, role)
        if self._live is None:
            self._print_lines()
        else:
            picture = draw(self.state, self._looked_t, self._console.width, self._control)
            self._live.update(picture, refresh=True)

    def _read(self, follower: Follower, role: str) -> list[tuple[float, str, dict[str, Any]]]:
        found: list[tuple[float, str, dict[str, Any]]] = []
        for _ in range(POLLS_MAX):
            records = follower.poll()
            if not records:
                break
            found += [(record["t"], role, record) for record in records]
        return found

    def _new_tapes(self) -> list[str]:
        try:
            names = os.listdir(self._tape_dir)  # noqa: PTH208  a list of names is all that is needed, four times a second
        except FileNotFoundError:
            return []
        return sorted(name for name in names if name.endswith(".jsonl") and name not in self._tapes)

    def _print_lines(self) -> None:
        """The events since the last look, oldest first; of those about the loss, one now and then."""
        fresh = min(self.state.event_count - self._lines_told, len(self.state.events))
        self._lines_told = self.state.event_count
        start_t = self.state.start_t or 0.0
        for event in list(self.state.events)[len(self.state.events) - fresh :]:
            if not event.loud:
                if event.t - self._eval_told_t < EVAL_LINE_INTERVAL_S:
                    continue
                self._eval_told_t = event.t
            line = f"{event.t - start_t:8.1f} s  {event.text}"
            self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True, style=None)


def control_losses(run_dir: Path) -> dict[int, float]:
    """Merges -> loss of the control run that `run_dir` is judged against; empty where there is none to read."""
    try:
        control = read_spec(run_dir).control
    except UsageError:
        return {}
    losses: dict[int, float] = {}
    for tape in sorted((run_dir / control / "tape").glob("*.jsonl")) if control else ():
        follower = Follower(tape)
        records = [record for _ in range(POLLS_MAX) for record in follower.poll() if record["kind"] == "eval"]
        follower.close()
        losses |= {
            record["merges"]: float(record["loss"])
            for record in records
            if type(record.get("merges")) is int and isinstance(record.get("loss"), (int, float))
        }
    return losses
