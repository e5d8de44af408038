"""How long a step took, and how much of it the training thread stood blocked.

On a machine with more work than cores a step takes longer without anybody waiting for anything. The kernel knows the
difference: it counts for every thread the time on a core and the time ready for one. What is left of the wall clock is
time blocked: on a lock, a socket, a disk, or stopped. Decoupled training has none of it, whatever the load.
"""

from __future__ import annotations

import os
import time

SCHEDSTAT = "/proc/thread-self/schedstat"
"""Nanoseconds on a core, nanoseconds ready and waiting for one, time slices (Linux, Documentation/scheduler)."""


class Stopwatch:
    """Laps of the thread that makes it."""

    def __init__(self) -> None:
        try:
            self._fd = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # Not every kernel counts; then nothing is said about blocking, rather than something wrong.
            self._fd = -1
        self.restart()

    def restart(self) -> None:
        """Begin a lap now."""
        self._wall_s, self._busy_s = time.monotonic(), self._read_busy_s()

    def lap(self) -> tuple[float, float | None]:
        """(seconds since the lap began, seconds of them blocked or None); the next lap begins."""
        wall_s, busy_s = self._wall_s, self._busy_s
        self.restart()
        took_s = self._wall_s - wall_s
        if busy_s is None or self._busy_s is None:
            return took_s, None
        return took_s, max(0.0, took_s - (self._busy_s - busy_s))

    def _read_busy_s(self) -> float | None:
        if self._fd < 0:
            return None
        running, ready, _ = os.pread(self._fd, 128, 0).split()
        return (int(running) + int(ready)) / 1e9
