"""A real proxy process between real sockets. Nothing sleeps: sockets block with a deadline, counters are asked for."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaoskit.links.control import LinkAddress, Proxy
from chaoskit.links.counters import LinkStats
from chaoskit.links.settings import LinkFault

LINK = "learner-0 -> syncer"

SOCKET_DEADLINE_S = 20.0
"""Longest wait for bytes that must come. Generous: a machine that runs other tests is slow, not wrong."""

Ends = tuple[socket.socket, socket.socket]


class Wire:
    """One link through a proxy, with both of its ends in the test's hands."""

    def __init__(self, folder: Path) -> None:
        self.address = folder / "syncer.address"
        self.listener = self.listen()
        self.proxy = Proxy.start([LinkAddress(LINK, self.address)])
        self._open: list[socket.socket] = []

    def listen(self) -> socket.socket:
        """A new accepting side, published in the address file."""
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(SOCKET_DEADLINE_S)
        self.address.write_text(f"127.0.0.1:{listener.getsockname()[1]}\n")
        return listener

    def dial(self) -> socket.socket:
        """A connection to the link's port; whether it is passed on is another matter."""
        client = socket.create_connection(("127.0.0.1", self.proxy.port(LINK)), SOCKET_DEADLINE_S)
        self._open.append(client)
        return client

    def accept(self) -> socket.socket:
        server, _ = self.listener.accept()
        server.settimeout(SOCKET_DEADLINE_S)
        self._open.append(server)
        return server

    def connect(self) -> Ends:
        """Both ends of a new connection."""
        return self.dial(), self.accept()

    def set(self, forward: list[LinkFault] | None = None, backward: list[LinkFault] | None = None) -> None:
        self.proxy.set_faults(LINK, forward or [], backward or [])

    def stats(self) -> LinkStats:
        return self.proxy.stats()[LINK]

    def until(self, holds: Callable[[LinkStats], bool]) -> LinkStats:
        """The counters once they say what is waited for."""
        deadline = time.monotonic() + SOCKET_DEADLINE_S
        while not holds(stats := self.stats()):
            assert time.monotonic() < deadline, f"not within {SOCKET_DEADLINE_S} s; the counters say {stats}"
        return stats

    def close_ends(self) -> None:
        for end in self._open:
            end.close()
        self._open.clear()

    def close(self) -> None:
        self.close_ends()
        self.proxy.close()
        self.listener.close()


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with contextlib.closing(Wire(tmp_path)) as made:
        yield made


@pytest.fixture(scope="module")
def shared_wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """One proxy for many examples of a property: each makes connections of its own."""
    with contextlib.closing(Wire(tmp_path_factory.mktemp("links"))) as made:
        yield made


def receive(end: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes; fewer only where the stream ends."""
    received = bytearray()
    while len(received) < size and (part := end.recv(min(65536, size - len(received)))):
        received += part
    return bytes(received)


def nothing_arrives(end: socket.socket) -> bool:
    """Whether not a byte and no end waits at `end` now."""
    return not select.select([end], [], [], 0)[0]
