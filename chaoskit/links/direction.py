"""One direction of one link: the snapshot of its faults and its counters, shared by all connections.

The order in which faults of one direction act is fixed, whatever the order in which they were set:

    source ──▶ read ──▶ [ bandwidth ] ──▶ [ latency ] ──▶ [ partition ] ──▶ send ──▶ sink
                         virtual clock     delay queue      gate

- *Bandwidth first*, as on a real path: the narrow line is the sender's, and what has left it is in flight.
  Were latency first, a cap would be paid after the delay and a sender would see its whole delay queue
  filled before it felt the cap.
- *Partition last*, so that it acts on the next byte: what is in flight in the delay queue is stopped too,
  and is let go in order. While a partition lasts nothing more is taken into the queue, so that a stalled
  link looks stalled to its sender.
- Several latencies add up; of several caps each keeps its own clock and the slowest decides; one partition
  of several is enough.

Connections feel a partition too: one that is made meanwhile is accepted, and dialled on only when both
directions are open again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from chaoskit.links.counters import DirectionCounters, DirectionStats, Tally
from chaoskit.links.settings import Bandwidth, Latency, LinkFault, Partition
from chaoskit.links.shaper import CHUNK_BYTES_MAX, Cap


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The faults of one direction at one time, sorted by what they do. Never changed, only replaced."""

    caps: tuple[Cap, ...] = ()
    latencies: tuple[Latency, ...] = ()
    partitions: tuple[Partition, ...] = ()
    delay_s: float = 0.0
    chunk_bytes: int = CHUNK_BYTES_MAX


CLEAR = Snapshot()
"""No faults. Compared by identity: the fast path is one `is`."""


class Waiter(Protocol):
    """One direction of one connection, as its direction knows it."""

    tally: Tally
    held_bytes: int

    def wake(self) -> None:
        """Looks at the snapshot again, whatever it waits for."""


class Direction:
    """Snapshot, caps and counters of one direction. The lock is never held across a wait or a socket call."""

    def __init__(self) -> None:
        self.snapshot = CLEAR
        self._faults: tuple[LinkFault, ...] = ()
        self._lock = threading.Lock()
        self._counters = DirectionCounters()
        self._waiters: set[Waiter] = set()
        self._backlogged: set[Waiter] = set()

    def swap(self, faults: Sequence[LinkFault]) -> None:
        """Replaces all faults, effective for the next byte and for those held now. A cap that stays keeps its clock."""
        with self._lock:
            self._faults = tuple(faults)
            known = {cap.fault: cap for cap in self.snapshot.caps}
            caps = tuple(known.get(fault) or Cap(fault) for fault in faults if isinstance(fault, Bandwidth))
            latencies = tuple(fault for fault in faults if isinstance(fault, Latency))
            self.snapshot = (
                Snapshot(
                    caps=caps,
                    latencies=latencies,
                    partitions=tuple(fault for fault in faults if isinstance(fault, Partition)),
                    delay_s=sum(fault.delay_s for fault in latencies),
                    chunk_bytes=min((cap.chunk_bytes for cap in caps), default=CHUNK_BYTES_MAX),
                )
                if faults
                else CLEAR
            )
            if caps != tuple(known.values()):
                self._backlogged.clear()
            waiters = tuple(self._waiters)
        for waiter in waiters:
            waiter.wake()

    def add(self, waiter: Waiter) -> None:
        with self._lock:
            self._waiters.add(waiter)

    def remove(self, waiter: Waiter) -> None:
        """The connection is over: its bytes stay counted, and what it still held is counted as undelivered."""
        with self._lock:
            self._waiters.discard(waiter)
            self._backlogged.discard(waiter)
            self._counters.ended.bytes += waiter.tally.bytes
            self._counters.ended.chunks += waiter.tally.chunks
            self._counters.let_go(waiter.held_bytes)
            self._counters.undelivered_bytes += waiter.held_bytes
            waiter.held_bytes = 0

    def reserve(
        self, waiter: Waiter, caps: tuple[Cap, ...], reserved: dict[Cap, float], size: int, now: float
    ) -> float:
        """When `size` bytes may leave by all of `caps`. Each cap is asked once; `reserved` remembers its answer."""
        with self._lock:
            backlogged = bool(self._backlogged)
            for cap in caps:
                if cap not in reserved:
                    reserved[cap] = cap.reserve(now, size, backlogged=backlogged)
                    self._hit(cap.fault, size)
            self._backlogged.add(waiter)
        return max(reserved[cap] for cap in caps)

    def throttled(self, reserved: dict[Cap, float], waited_s: float) -> None:
        """A chunk has passed the caps after `waited_s`; the cap that let it go last is the one that delayed it."""
        slowest = max(reserved, key=lambda cap: reserved[cap])
        with self._lock:
            self._counters.throttled_s += waited_s
            for cap in reserved:
                self._delayed(cap.fault, waited_s if cap is slowest else 0.0)

    def idle(self, waiter: Waiter) -> None:
        """Nothing waits behind the caps on this connection: from now on lateness is the sender's own."""
        with self._lock:
            self._backlogged.discard(waiter)

    def hold(self, waiter: Waiter, size: int) -> None:
        with self._lock:
            waiter.held_bytes += size
            self._counters.hold(size)

    def let_go(self, waiter: Waiter, size: int, delay_s: float) -> None:
        """`size` bytes are about to be sent, `delay_s` after they were read."""
        with self._lock:
            waiter.held_bytes -= size
            self._counters.let_go(size)
            self._counters.delays.add(delay_s)

    def hit(self, faults: Sequence[LinkFault], size: int, *, connections: int = 0) -> None:
        """These faults begin to act on a chunk of `size` bytes (or on a connection)."""
        with self._lock:
            for fault in faults:
                self._hit(fault, size, connections)

    def delayed(self, faults: Sequence[LinkFault], delay_s: float) -> None:
        """These faults let a chunk go after `delay_s`; several latencies share it by their settings."""
        with self._lock:
            total_s = sum(fault.delay_s for fault in faults if isinstance(fault, Latency))
            for fault in faults:
                share = fault.delay_s / total_s if isinstance(fault, Latency) else 1.0
                self._delayed(fault, delay_s * share)

    def stats(self) -> DirectionStats:
        with self._lock:
            # A fault that has hit nothing yet is shown too: present, with counters of zero.
            for fault in self._faults:
                self._counters.fault(fault.id, _kind(fault))
            present = {fault.id for fault in self._faults}
            return self._counters.stats([waiter.tally for waiter in self._waiters], present)

    def _hit(self, fault: LinkFault, size: int, connections: int = 0) -> None:
        counter = self._counters.fault(fault.id, _kind(fault))
        counter.bytes += size
        counter.chunks += 1 if size else 0
        counter.connections += connections

    def _delayed(self, fault: LinkFault, delay_s: float) -> None:
        self._counters.fault(fault.id, _kind(fault)).delays.add(delay_s)


def _kind(fault: LinkFault) -> str:
    return str(type(fault).__struct_config__.tag)
