"""What the proxy measures: the evidence that a fault landed, per link, per direction and per fault.

The counters are plain numbers guarded by the lock of their direction; what leaves the process are the
frozen `...Stats`. `msgspec.to_builtins(stats)` turns them into what a journal takes.
"""

from __future__ import annotations

import math

import msgspec

BUCKETS_PER_OCTAVE = 16
SMALLEST_S = 1e-6
BUCKETS = 30 * BUCKETS_PER_OCTAVE
"""Thirty octaves from a microsecond reach 18 minutes; sixteen buckets an octave give the median within 2.2 %."""

FAULTS_REMEMBERED_MAX = 1024
"""Counters of removed faults are kept for the report; beyond this many the oldest are forgotten."""


class DelayStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Delays in seconds: how many were measured, their sum, least, greatest and median (within 2.2 %)."""

    count: int
    total_s: float
    least_s: float
    max_s: float
    median_s: float


class FaultStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one fault did to one direction. `present` says whether it is in force now.

    `bytes` and `chunks` are counted when the fault begins to act on them, `delay` when it lets them go; so
    a partition that still holds shows bytes and no delay yet. `connections` counts connections whose
    making or whose end was held by a partition.
    """

    kind: str
    present: bool
    bytes: int
    chunks: int
    connections: int
    delay: DelayStats


class DirectionStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One direction of a link. `delay` covers the chunks that met a fault, from being read to being let go."""

    bytes: int
    chunks: int
    held_bytes: int
    held_bytes_max: int
    undelivered_bytes: int
    throttled_s: float
    delay: DelayStats
    faults: dict[str, FaultStats]


class LinkStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One link. `refused`: over the limit of connections. `no_upstream`: the accepting side was not there."""

    accepted: int
    open: int
    refused: int
    no_upstream: int
    reset: int
    upstream_error: str
    forward: DirectionStats
    backward: DirectionStats


class Delays:
    """A histogram of delays in fixed buckets: bounded memory, exact count, sum, least and greatest."""

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.least_s = math.inf
        self.max_s = 0.0
        self._buckets = [0] * BUCKETS

    def add(self, delay_s: float) -> None:
        delay_s = max(delay_s, 0.0)
        self.count += 1
        self.total_s += delay_s
        self.least_s = min(self.least_s, delay_s)
        self.max_s = max(self.max_s, delay_s)
        octaves = math.log2(max(delay_s / SMALLEST_S, 1.0))
        self._buckets[min(BUCKETS - 1, int(octaves * BUCKETS_PER_OCTAVE))] += 1

    def median_s(self) -> float:
        """The middle of the median's bucket, kept within what was really seen; 0 if nothing was."""
        seen = 0
        for bucket, count in enumerate(self._buckets):
            seen += count
            if count and 2 * seen >= self.count:
                middle = SMALLEST_S * math.exp2((bucket + 0.5) / BUCKETS_PER_OCTAVE)
                return min(max(middle, self.least_s), self.max_s)
        return 0.0

    def stats(self) -> DelayStats:
        return DelayStats(
            count=self.count,
            total_s=self.total_s,
            least_s=self.least_s if self.count else 0.0,
            max_s=self.max_s,
            median_s=self.median_s(),
        )


class FaultCounter:
    """What one fault did; see `FaultStats`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.bytes = 0
        self.chunks = 0
        self.connections = 0
        self.delays = Delays()

    def stats(self, present: bool) -> FaultStats:
        return FaultStats(
            kind=self.kind,
            present=present,
            bytes=self.bytes,
            chunks=self.chunks,
            connections=self.connections,
            delay=self.delays.stats(),
        )


class Tally:
    """Bytes and chunks of one direction of one connection. One thread writes at a time: no lock."""

    __slots__ = ("bytes", "chunks")

    def __init__(self) -> None:
        self.bytes = 0
        self.chunks = 0


class DirectionCounters:
    """Counters of one direction. The caller holds the direction's lock."""

    def __init__(self) -> None:
        self.ended = Tally()
        self.held_bytes = 0
        self.held_bytes_max = 0
        self.undelivered_bytes = 0
        self.throttled_s = 0.0
        self.delays = Delays()
        self.faults: dict[str, FaultCounter] = {}

    def hold(self, size: int) -> None:
        self.held_bytes += size
        self.held_bytes_max = max(self.held_bytes_max, self.held_bytes)

    def let_go(self, size: int) -> None:
        self.held_bytes -= size
        assert self.held_bytes >= 0, "more bytes were let go than held"

    def fault(self, fault_id: str, kind: str) -> FaultCounter:
        counter = self.faults.get(fault_id)
        if counter is None:
            if len(self.faults) >= FAULTS_REMEMBERED_MAX:
                del self.faults[next(iter(self.faults))]
            counter = self.faults[fault_id] = FaultCounter(kind)
        return counter

    def stats(self, tallies: list[Tally], present: set[str]) -> DirectionStats:
        return DirectionStats(
            bytes=self.ended.bytes + sum(tally.bytes for tally in tallies),
            chunks=self.ended.chunks + sum(tally.chunks for tally in tallies),
            held_bytes=self.held_bytes,
            held_bytes_max=self.held_bytes_max,
            undelivered_bytes=self.undelivered_bytes,
            throttled_s=self.throttled_s,
            delay=self.delays.stats(),
            faults={fault_id: counter.stats(fault_id in present) for fault_id, counter in self.faults.items()},
        )
