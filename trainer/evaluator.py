"""The evaluator as a process: the loss of the *global* parameters on held-out text, every so many merges.

It reads the syncer's durable fragments and talks to nobody, so no fault on a link touches it, and it sees what would
survive.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

import numpy as np

from trainer.durable import DurableError, read_fragment
from trainer.fragments import fragments_of, total_size
from trainer.options import RoleOptions
from trainer.tape import Tape
from trainer.text import Corpus

POLL_S = 0.05


def run(options: RoleOptions) -> int:
    """Evaluate until the final state has been evaluated, or, when told to end, evaluate what there is and end."""
    ending: list[int] = []
    loaded = False

    def on_signal(number: int, _frame: FrameType | None) -> None:
        ending.append(number)
        if not loaded:
            os._exit(0)  # still loading torch: nothing has been evaluated, and an import cannot be interrupted cleanly

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    tape = Tape(options.tape, "evaluator", time.monotonic())
    evaluator = Evaluator(options, tape)
    loaded = True
    while not evaluator.complete:
        last_look = bool(ending)
        evaluator.look(at_once=last_look)
        if last_look:
            break
        if not evaluator.complete:
            time.sleep(POLL_S)
    tape.write(time.monotonic(), "stop", {"reason": "complete" if evaluator.complete else "asked to end"})
    tape.close()
    return 0


class Evaluator:
    """Remembers how far it has evaluated; `look` evaluates when enough merges have happened since."""

    def __init__(self, options: RoleOptions, tape: Tape) -> None:
        from trainer.model import Transformer, use_one_thread  # late: importing torch takes seconds

        use_one_thread()
        config = options.config
        self.state_dir, self.tape, self.config = options.state, tape, config
        self.fragments = fragments_of(config.model, config.protocol.P)
        self.flat = np.zeros(total_size(self.fragments), dtype=np.float32)
        self.transformer = Transformer(config.model, self.fragments, self.flat)
        self.sample = Corpus(config, options.seed).held_out_sample(config.evaluation.sequences)
        self.due = 0
        self.done = -1
        self.complete = False
        self._stamps: list[int] = []

    def look(self, at_once: bool = False) -> None:
        """Read the durable state if it has changed; evaluate when due, when complete, or `at_once`."""
        merges = self._read()
        if merges is None or merges == self.done:
            return
        final = merges >= self.config.rounds_total
        if merges >= self.due or final or at_once:
            loss = self.transformer.evaluate(self.sample)
            self.tape.write(time.monotonic(), "eval", {"merges": merges, "loss": round(loss, 6)})
            self.done = merges
            every = self.config.evaluation.every_merges
            self.due = (merges // every + 1) * every
        self.complete = final

    def _read(self) -> int | None:
        """Load all fragments; the sum of their versions, or None when nothing is new or nothing is there yet."""
        paths = [self.state_dir / "durable" / f"fragment-{fragment.index:03d}.bin" for fragment in self.fragments]
        try:
            stamps = [path.stat().st_mtime_ns for path in paths]
            if stamps == self._stamps and self.done >= 0:
                return None
            stored = [read_fragment(self.state_dir, fragment) for fragment in self.fragments]
        except (FileNotFoundError, DurableError):
            return None  # the syncer has not begun; a damaged file is the syncer's to report
        self._stamps = stamps
        for fragment, newest in zip(self.fragments, stored, strict=True):
            self.flat[fragment.slice] = newest.theta
        return sum(newest.version for newest in stored)
