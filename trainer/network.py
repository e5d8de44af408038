"""One framed TCP connection, the same on both sides: read, write, ping, notice silence.

    machine ── Send ──▶ Outbox (bounded, coalescing) ── pump ──▶ TCP ──▶ Decoder ── deliver ──▶ machine

A slow link never makes the sender's memory grow: of each fragment only the newest version waits, of progress only the
newest counters, and everything else is bounded by `OUTBOX_MAX`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from trainer.config import Timing
from trainer.messages import Fragment, Message, Ping, Progress
from trainer.wire import Decoder, Frame, FrameError, encode

SOCKET_BUFFER_BYTES = 256 * 1024
"""The system's default swallows up to 21 MiB on a link that nobody reads, which then looks alive."""
WRITE_BUFFER_BYTES = 64 * 1024
READ_BYTES = 256 * 1024
OUTBOX_MAX = 1024
FLUSH_S = 1.0
"""How long a connection that is being closed may take to send what is already queued."""


class Outbox:
    """Messages waiting for one connection. Safe to fill from another thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: OrderedDict[Hashable, tuple[Message, bytes]] = OrderedDict()
        self._serial = 0
        self.closing: str | None = None
        """Why the connection is to be closed once the queue is empty."""

    def put(self, message: Message, payload: bytes = b"") -> None:
        """Queue, or replace an older one that says less; when the queue is full, begin to close."""
        with self._lock:
            if self.closing is not None:
                return
            key: Hashable
            if isinstance(message, Progress):
                key = "progress"
            elif isinstance(message, Fragment) and not message.overwrite:
                key = ("fragment", message.fragment)
            else:
                self._serial += 1
                key = self._serial
            if key not in self._waiting and len(self._waiting) >= OUTBOX_MAX:
                self.closing = f"{OUTBOX_MAX} messages waiting: the link is too slow"
                self._waiting.clear()
            else:
                self._waiting[key] = (message, payload)
        self._wake()

    def pop(self) -> bytes | None:
        """The oldest as a frame, or None when nothing waits."""
        with self._lock:
            if not self._waiting:
                return None
            _, (message, payload) = self._waiting.popitem(last=False)
        return encode(message, payload)

    def close(self, why: str) -> None:
        """Let what is queued leave, then close."""
        with self._lock:
            self.closing = self.closing or why
        self._wake()


@dataclass(frozen=True)
class Ending:
    """How a connection ended; `bad_frame` when its stream was cut or corrupt."""

    why: str
    bad_frame: bool


def tune(sock: socket.socket, timing: Timing) -> None:
    """No Nagle delay, small buffers, and unacknowledged data for longer than `idle_s` is an error."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timing.idle_s * 1000))


class Conversation:
    """One connection from open to end. `greeted` tells whether the peer has said who it is."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        timing: Timing,
        decoder: Decoder,
        deliver: Callable[[Frame], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader, self._writer = reader, writer
        self._timing, self._decoder, self._deliver = timing, decoder, deliver
        self._work = asyncio.Event()
        self._quiet_ticks = 0
        self.greeted = False
        self.outbox = Outbox(self._wake)

    def _wake(self) -> None:
        # The loop is closed only when the whole process ends; a message for it has nowhere to go then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._work.set)

    async def run(self) -> Ending:
        """Talk until either side ends it, then leave nothing open."""
        tasks = [asyncio.create_task(work()) for work in (self._read, self._write, self._watch)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._writer.transport.abort() if self.outbox.closing is None else self._writer.close()

    async def _read(self) -> Ending:
        try:
            while data := await self._reader.read(READ_BYTES):
                self._quiet_ticks = 0
                self._decoder.feed(data)
                while frame := self._decoder.next():
                    self._deliver(frame)
            self._decoder.finish()
        except FrameError as error:
            return Ending(str(error), bad_frame=True)
        except OSError as error:
            return Ending(error.strerror or type(error).__name__, bad_frame=False)
        return Ending("closed by the peer", bad_frame=False)

    async def _write(self) -> Ending:
        self._writer.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        try:
            while True:
                self._work.clear()
                while frame := self.outbox.pop():
                    self._writer.write(frame)
                    await self._writer.drain()
                if self.outbox.closing is not None:
                    return await self._flushed(self.outbox.closing)
                await self._work.wait()
        except OSError as error:
            return Ending(error.strerror or type(error).__name__, bad_frame=False)

    async def _flushed(self, why: str) -> Ending:
        self._writer.transport.set_write_buffer_limits(high=0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._writer.drain()
        return Ending(why, bad_frame=False)

    async def _watch(self) -> Ending:
        """Ping, and count our own ticks without a word: after a pause of *this* process the peer is not to blame."""
        timing, ticks = self._timing, 0
        while True:
            await asyncio.sleep(timing.ping_s)
            ticks += 1
            self._quiet_ticks += 1
            if not self.greeted and ticks * timing.ping_s >= timing.hello_s:
                return Ending(f"no hello within {timing.hello_s} s", bad_frame=True)
            if self._quiet_ticks * timing.ping_s >= timing.idle_s:
                return Ending(f"silent for {timing.idle_s} s", bad_frame=False)
            if self.greeted:
                self.outbox.put(Ping())
