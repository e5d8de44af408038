"""The arithmetic of caps and delays: pure, no thread, no socket; every time is an argument, in seconds.

**Cap.** A virtual clock (GCRA, ITU-T I.371): `clock` is the time at which everything admitted so far would
have left a line of exactly `rate` bytes a second. Admitting n bytes advances it by n / rate, and they may
leave at

    release = clock - burst / rate

What decides whether a cap is exact is when the clock is pulled forward to the present. A reset whenever the
sender is late loses every late wake-up for good (24 % was measured at 2 Gbit/s). Here the clock is pulled
forward only when the link was truly idle; while bytes are backlogged it stays behind, so that a late
wake-up is caught up by the next chunks. The credit for lateness is bounded (`CATCH_UP_S_MAX`): a receiver
that reads nothing for a minute earns no minute of full speed.

**Delay.** A first-in first-out queue of chunks, each with the time it entered. A chunk is due at `entered +
delay`, with the delay of *now*: whoever removes or shortens a delay releases the queue at once, and order
cannot be lost.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from chaoskit.links.settings import Bandwidth, Latency, Partition

CHUNK_BYTES_MAX = 256 * 1024
"""Greatest read of one thread: beyond it throughput no longer grows, and a change of faults would act later."""

CHUNK_BYTES_MIN = 1024
"""Smallest slice of a capped link: keeps a 1 Mbit/s link at about 120 wake-ups a second."""

CHUNK_S = 0.002
"""A capped link passes slices of about this duration, so that the flow is even and a change acts within 5 ms."""

CATCH_UP_S_MAX = 0.25
"""Most lateness that a backlogged cap makes good. Above the wake-up delays of a loaded machine, far below a stall."""

HELD_BYTES_MAX = 32 * 1024 * 1024
"""Most bytes in flight on one delayed direction of one connection; beyond it the sender feels backpressure."""

HELD_CHUNKS_MAX = 16 * 1024
"""Most chunks in flight there: bounds the memory of many small messages, each of which costs a few hundred bytes."""


class Cap:
    """The virtual clock of one bandwidth fault, shared by all connections of one direction of one link."""

    def __init__(self, fault: Bandwidth) -> None:
        self.fault = fault
        self._rate_bytes_s = fault.rate_bit_s / 8
        self._burst_s = fault.burst_bytes / self._rate_bytes_s
        self._clock = float("-inf")

    @property
    def chunk_bytes(self) -> int:
        """How many bytes to pass at once: about `CHUNK_S` of the rate, within the bounds of a chunk."""
        return min(CHUNK_BYTES_MAX, max(CHUNK_BYTES_MIN, int(self._rate_bytes_s * CHUNK_S)))

    def reserve(self, now: float, size: int, *, backlogged: bool) -> float:
        """Admits `size` bytes; returns when they may leave, perhaps in the past. `backlogged`: they had to wait."""
        fresh = self._clock == float("-inf")
        floor = now - CATCH_UP_S_MAX if backlogged and not fresh else now
        self._clock = max(self._clock, floor) + size / self._rate_bytes_s
        return self._clock - self._burst_s


@dataclass(slots=True)
class Held:
    """A chunk in flight.

    `read_at` is when it was read, `entered` when it had passed the caps; `latencies` are the delays it met
    then, `blocked` since when which partition has held it. `end` marks the end of a stream, which is held
    and delivered in order like bytes.
    """

    data: bytes
    read_at: float
    entered: float
    latencies: tuple[Latency, ...] = ()
    blocked: dict[Partition, float] = field(default_factory=dict)
    end: bool = False


class DelayQueue:
    """Chunks in flight in one direction of one connection, first in, first out, bounded in bytes and in chunks."""

    def __init__(self) -> None:
        self._chunks: deque[Held] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may enter. An empty queue has room for any chunk, so that none is stuck."""
        if not self._chunks:
            return True
        return self.bytes + size <= HELD_BYTES_MAX and len(self._chunks) < HELD_CHUNKS_MAX

    def push(self, held: Held) -> None:
        self._chunks.append(held)
        self.bytes += len(held.data)

    def head(self) -> Held | None:
        return self._chunks[0] if self._chunks else None

    def wait_s(self, now: float, delay_s: float) -> float | None:
        """Seconds until the first chunk is due under `delay_s`; 0 or less if it is; None if nothing is held."""
        if not self._chunks:
            return None
        return self._chunks[0].entered + delay_s - now

    def pop(self) -> Held:
        held = self._chunks.popleft()
        self.bytes -= len(held.data)
        return held
