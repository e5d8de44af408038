"""One connection through the proxy: two pipes, each a reader thread, and a writer thread once a delay needs it.

                     forward pipe
    client ──▶ reader ──┬─────────────────────────┬──▶ server        no latency: the reader sends itself
                        └──▶ delay queue ──▶ writer                  latency: the writer sends what is due
    client ◀───────────── backward pipe ◀───────────── server

Without faults a pipe is `recv_into` and `sendall` on one buffer and one comparison: nothing is copied,
locked or timed. A thread that waits (for a cap, a due time, an open gate) waits on the pipe's condition,
which every swap of the snapshot notifies; so a removed fault lets go at once, and nothing is ever
interrupted in the middle of a socket call.

**Ends.** The end of a stream (EOF) is passed on as a half-close, behind all bytes held before it, and is
itself delayed and held like a byte. A reset is passed on likewise and then ends the connection both ways:
what is held for a dead peer is dropped and counted. A connection shares nothing with its successors but the
direction's snapshot, so a new incarnation inherits no block of an old one.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable

from chaoskit.links.counters import Tally
from chaoskit.links.direction import CLEAR, Direction, Snapshot
from chaoskit.links.settings import Partition
from chaoskit.links.shaper import CHUNK_BYTES_MAX, Cap, DelayQueue, Held

SOCKET_BUFFER_BYTES = 256 * 1024
"""For each of the four kernel buffers on a connection's way: a link that nobody reads swallows about 1 MiB,
then stalls as it should.
"""

RECHECK_S = 5.0
"""Waits are ended by a swap, by arriving work or by the end of the connection. This only bounds what a lost
wake-up could cost.
"""


class _StoppedError(Exception):
    """This pipe has nothing more to do: its connection was ended, or its sink is dead."""


class Connection:
    """One accepted connection and its way on.

    `dial` is called once, when no partition holds the connection any more, and may find nobody (None). `closed` is
    called once, by the last thread to leave, with whether the connection ended in a reset.
    """

    def __init__(
        self,
        client: socket.socket,
        forward: Direction,
        backward: Direction,
        dial: Callable[[], socket.socket | None],
        closed: Callable[[Connection, bool], None],
    ) -> None:
        self.client = client
        self.server: socket.socket | None = None
        self.aborted = False
        self.was_reset = False
        self._dial = dial
        self._closed = closed
        self._lock = threading.Lock()
        self._threads = 0
        self._forward = Pipe(self, forward)
        self._backward = Pipe(self, backward)
        self._forward.opposite = self._backward
        self._backward.opposite = self._forward

    def start(self) -> None:
        """Raises RuntimeError where no thread can be started; the connection is closed then."""
        try:
            self.spawn(self._run)
        except RuntimeError:
            self._close()
            raise

    def spawn(self, body: Callable[[], None]) -> None:
        """Runs `body` in a thread of this connection; whichever thread is the last to leave closes it."""
        with self._lock:
            self._threads += 1
        try:
            threading.Thread(target=self._guarded, args=(body,), daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._threads -= 1
            raise  # in a thread of this connection it ends the connection, as every defect does

    def abort(self, victim: socket.socket | None) -> None:
        """Ends the connection both ways. `victim` is reset, not closed: its peer sees what a dead peer looks like.

        A reader that is blocked on the victim is woken by closing only its receiving half, which sends
        nothing; the reset goes out when the last thread closes the socket. With no victim both ends are
        reset.
        """
        self.aborted = True
        for end in (self.client, self.server):
            if end is None:
                continue
            with contextlib.suppress(OSError):  # the end is gone already, which is what is wanted
                if victim is None or end is victim:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD if end is victim else socket.SHUT_RDWR)
        self._forward.wake()
        self._backward.wake()

    def _run(self) -> None:
        while self._forward.wait_open() or self._backward.wait_open():
            pass  # one may have closed while the other was waited for
        self.server = self._dial()
        if self.server is None:
            return  # the last thread to leave closes the client, who will try again
        self._forward.connect(self.client, self.server)
        self._backward.connect(self.server, self.client)
        self.spawn(self._backward.run)
        self._forward.run()

    def _guarded(self, body: Callable[[], None]) -> None:
        finished = False
        try:
            body()
            finished = True
        except _StoppedError:
            finished = True
        finally:
            # Anything else is a defect: its traceback goes to the log, and no half-alive connection stays behind.
            if not finished:
                self.abort(None)
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads:
                return
        self._close()

    def _close(self) -> None:
        self._forward.retire()
        self._backward.retire()
        self.client.close()
        if self.server is not None:
            self.server.close()
        self._closed(self, self.was_reset)


class Pipe:
    """One direction of one connection."""

    opposite: Pipe

    def __init__(self, connection: Connection, direction: Direction) -> None:
        self.tally = Tally()
        self.held_bytes = 0
        self._connection = connection
        self._direction = direction
        self._source = self._sink = connection.client
        self._changed = threading.Condition(threading.Lock())
        self._queue = DelayQueue()
        self._in_flight = 0
        """Chunks in the queue or in the writer's hand: while there are any, the reader must not send past them."""
        self._writing = False
        self._broken = False
        self._reset = False
        self._ended = False
        direction.add(self)

    def connect(self, source: socket.socket, sink: socket.socket) -> None:
        self._source, self._sink = source, sink

    def retire(self) -> None:
        self._direction.remove(self)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait_open(self) -> bool:
        """Waits until no partition holds this direction; says whether one did. Counts the connection as held by it."""
        blocked: dict[Partition, float] = {}
        with self._changed:
            while not self._passes_partitions(blocked, 0, connections=1):
                self._changed.wait(RECHECK_S)
        return bool(blocked)

    # The reader.

    def run(self) -> None:
        """Passes bytes on until the source ends, then passes on the end."""
        view = memoryview(bytearray(CHUNK_BYTES_MAX))
        direction, tally, recv_into = self._direction, self.tally, self._source.recv_into
        while True:
            try:
                size = self._read_capped(view) if direction.snapshot.caps else recv_into(view)
            except OSError:
                self._pass_end(reset=True)
                return
            if size == 0:
                self._pass_end(reset=False)
                return
            if direction.snapshot is CLEAR and not self._in_flight:
                self._send(view[:size])
                tally.bytes += size
                tally.chunks += 1
            else:
                self._shape(view[:size])

    def _read_capped(self, view: memoryview) -> int:
        size = self._direction.snapshot.chunk_bytes
        try:
            return self._source.recv_into(view, size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._direction.idle(self)
            return self._source.recv_into(view, size)

    def _shape(self, chunk: memoryview) -> None:
        """Takes a chunk through the faults, in slices as small as the caps want them."""
        read_at = time.monotonic()
        self._direction.hold(self, len(chunk))
        start = 0
        while start < len(chunk):
            part = chunk[start : start + self._direction.snapshot.chunk_bytes]
            self._wait_for_caps(len(part))
            self._pass_on(part, read_at)
            start += len(part)

    def _wait_for_caps(self, size: int) -> None:
        entered = now = time.monotonic()
        waited = False
        reserved: dict[Cap, float] = {}
        with self._changed:
            while caps := self._check().caps:
                release = self._direction.reserve(self, caps, reserved, size, now)
                now = time.monotonic()
                if release <= now:
                    break
                waited = True
                self._changed.wait(min(release - now, RECHECK_S))
        if reserved:
            self._direction.throttled(reserved, time.monotonic() - entered if waited else 0.0)

    def _pass_on(self, part: memoryview, read_at: float) -> None:
        entered = time.monotonic()
        blocked: dict[Partition, float] = {}
        waited = direct = False
        with self._changed:
            while True:
                snapshot = self._check()
                open_now = self._passes_partitions(blocked, len(part))
                if snapshot.delay_s and self._queue.has_room(len(part)) and (open_now or not self._in_flight):
                    self._direction.hit(snapshot.latencies, len(part))
                    self._enqueue(Held(bytes(part), read_at, entered, snapshot.latencies, blocked))
                    break
                if not snapshot.delay_s and open_now and not self._in_flight:
                    direct = True
                    break
                waited = True
                self._changed.wait(RECHECK_S)
        if waited:
            self._direction.idle(self)
        if not direct:
            return
        self._direction.let_go(self, len(part), time.monotonic() - read_at)
        self._send(part)
        self.tally.bytes += len(part)
        self.tally.chunks += 1

    def _pass_end(self, *, reset: bool) -> None:
        """The source has ended: the end goes through the same faults as a byte, behind all bytes before it."""
        now = time.monotonic()
        blocked: dict[Partition, float] = {}
        with self._changed:
            self._reset |= reset
            while True:
                snapshot = self._check()
                if snapshot.delay_s or self._in_flight:
                    self._enqueue(Held(b"", now, now, (), blocked, end=True))
                    return
                if self._passes_partitions(blocked, 0, connections=1):
                    break
                self._changed.wait(RECHECK_S)
        self._end()

    # The writer.

    def _enqueue(self, held: Held) -> None:
        self._queue.push(held)
        self._in_flight += 1
        if not self._writing:
            self._writing = True
            self._connection.spawn(self._write)
        self._changed.notify_all()

    def _write(self) -> None:
        """Sends each chunk when it is due and the gate is open, until the end of the stream has been passed on."""
        while not self._ended:
            held = self._wait_for_due()
            if held is None:
                return
            if held.end:
                self._end()
                return
            self._direction.let_go(self, len(held.data), time.monotonic() - held.read_at)
            self._send(held.data)
            self.tally.bytes += len(held.data)
            self.tally.chunks += 1
            with self._changed:
                self._in_flight -= 1
                self._changed.notify_all()

    def _wait_for_due(self) -> Held | None:
        """The next chunk, once it is due and may pass; None once the reader itself has passed on the end."""
        due_passed = False
        with self._changed:
            while not self._ended:
                snapshot = self._check()
                now = time.monotonic()
                head = self._queue.head()
                wait_s = self._queue.wait_s(now, snapshot.delay_s)
                if head is None or wait_s is None:
                    self._changed.wait(RECHECK_S)
                    continue
                if wait_s > 0 and not due_passed:
                    self._changed.wait(min(wait_s, RECHECK_S))
                    continue
                if not due_passed:
                    due_passed = True
                    self._direction.delayed(head.latencies, now - head.entered)
                if self._passes_partitions(head.blocked, len(head.data), connections=int(head.end)):
                    return self._queue.pop()
                self._changed.wait(RECHECK_S)
        return None

    # Shared by both.

    def _check(self) -> Snapshot:
        if self._connection.aborted or self._broken:
            raise _StoppedError
        return self._direction.snapshot

    def _passes_partitions(self, blocked: dict[Partition, float], size: int, *, connections: int = 0) -> bool:
        """Whether no partition holds a chunk of `size` bytes now. `blocked`: since when which one has held it."""
        partitions = self._check().partitions
        if not partitions and not blocked:
            return True
        now = time.monotonic()
        for fault in partitions:
            if fault not in blocked:
                blocked[fault] = now
                self._direction.hit((fault,), size, connections=connections)
        for fault in blocked:
            if fault not in partitions and blocked[fault] >= 0:
                self._direction.delayed((fault,), now - blocked[fault])
                blocked[fault] = -1.0
        return not partitions

    def _send(self, data: memoryview | bytes) -> None:
        try:
            self._sink.sendall(data)
        except OSError:
            self._sink_died()
            raise _StoppedError from None

    def _sink_died(self) -> None:
        """The receiver is gone. The source learns of it through the opposite pipe, as that one's faults allow."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):  # the source may be gone as well
            self._source.shutdown(socket.SHUT_RD)  # wakes our reader; sends nothing
        other = self.opposite
        with other._changed:
            other._reset = True
            already_ended = other._ended
        if already_ended:
            # The opposite stream had ended before, so nobody is left there to pass the reset on.
            other.wait_open()
            self._connection.was_reset = True
            self._connection.abort(self._source)

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            reset = self._reset
            self._changed.notify_all()
        if reset:
            self._connection.was_reset = True
            self._connection.abort(self._sink)
            return
        with contextlib.suppress(OSError):  # the sink is gone: there is nobody left to tell
            self._sink.shutdown(socket.SHUT_WR)
