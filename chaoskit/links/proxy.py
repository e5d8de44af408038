"""The proxy process, `python -P -m chaoskit.links.proxy --control-fd N`: one for all links of a run.

Control is a socketpair whose other end the daemon holds: JSON lines, a request `{"id": n, "do": ...}`, a
reply `{"id": n, "ok": true, ...}` or `{"id": n, "ok": false, "error": "..."}`. The main thread serves it
and never waits for data: it swaps snapshots and reads counters. When the control end closes (the daemon is
dead or has let go) the process exits at once: a link without its daemon must not go on shaping traffic that
nobody accounts for.

    open   {links: [{name, fd, upstream, forward?, backward?}]}  fd: an inherited listening socket,
                                                                 upstream: a file that will hold host:port
    set    {link, forward: [fault...], backward: [fault...]}     replaces all faults of one link
    stats  {}                                                    -> {links: {name: LinkStats}}
    close  {}                                                    replies, then exits
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from chaoskit.errors import nearest
from chaoskit.links.counters import LinkStats
from chaoskit.links.direction import Direction
from chaoskit.links.pipe import SOCKET_BUFFER_BYTES, Connection
from chaoskit.links.settings import LinkError, LinkFault, LinkOpening, decode_faults

CONNECTIONS_PER_LINK_MAX = 128
"""Open connections of one link, those held by a partition included. A trainer has one or two; a hundred is
a leak or a flood.
"""

UPSTREAM_CONNECT_S_MAX = 5.0
"""How long one attempt to reach the accepting side may take. On loopback it is there at once or refuses."""

ACCEPT_RETRY_S = 0.1
"""Pause after a failed accept (no file descriptors left, say), so that a full process does not spin."""

PR_SET_TIMERSLACK = 29
"""From linux/prctl.h."""

ADDRESS_BYTES_MAX = 512
REQUEST_BYTES_MAX = 1024 * 1024


class Link:
    """One link: its listening socket, its two directions and its open connections."""

    def __init__(self, name: str, listener: socket.socket, upstream: Path) -> None:
        self.name = name
        self.forward = Direction()
        self.backward = Direction()
        self._listener = listener
        self._upstream = upstream
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._accepted = self._refused = self._no_upstream = self._reset = 0
        self._upstream_error = ""

    def start(self) -> None:
        threading.Thread(target=self._accept, name=f"accept {self.name}", daemon=True).start()

    def swap(self, forward: tuple[LinkFault, ...], backward: tuple[LinkFault, ...]) -> None:
        self.forward.swap(forward)
        self.backward.swap(backward)

    def stats(self) -> LinkStats:
        with self._lock:
            return LinkStats(
                accepted=self._accepted,
                open=len(self._connections),
                refused=self._refused,
                no_upstream=self._no_upstream,
                reset=self._reset,
                upstream_error=self._upstream_error,
                forward=self.forward.stats(),
                backward=self.backward.stats(),
            )

    def _accept(self) -> None:
        pause = threading.Event()
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                pause.wait(ACCEPT_RETRY_S)
                continue
            with self._lock:
                full = len(self._connections) >= CONNECTIONS_PER_LINK_MAX
                if full:
                    self._refused += 1
                else:
                    self._accepted += 1
            if full:
                client.close()
                continue
            self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a client that is gone already is found gone by the reader
            _tune(client)
        connection = Connection(client, self.forward, self.backward, self._dial, self._ended)
        with self._lock:
            self._connections.add(connection)
        try:
            connection.start()
        except RuntimeError:  # no more threads: `start` has closed the connection
            with self._lock:
                self._refused += 1

    def _dial(self) -> socket.socket | None:
        """A connection to the accepting side, whose address is read now: it may have come back on another port."""
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            host, port = read_address(self._upstream)
            _tune(server)
            server.settimeout(UPSTREAM_CONNECT_S_MAX)
            server.connect((host, port))
            server.settimeout(None)
        except (OSError, ValueError) as problem:
            server.close()
            with self._lock:
                self._no_upstream += 1
                self._upstream_error = str(problem)
            return None
        return server

    def _ended(self, connection: Connection, was_reset: bool) -> None:
        with self._lock:
            self._connections.discard(connection)
            self._reset += was_reset


class Control:
    """Serves requests one at a time, in the main thread. Nothing in here waits for a data thread."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._verbs: dict[str, Callable[..., dict[str, Any]]] = {
            "open": self._open,
            "set": self._set,
            "stats": self._stats,
            "close": self._close,
        }
        self.closing = False

    def answer(self, line: bytes) -> dict[str, Any]:
        """The reply to one request line. A request that is refused has changed nothing."""
        request_id: object = None
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise LinkError(f"expected a JSON object, got {type(request).__name__}")
            request_id = request.pop("id", None)
            verb = request.pop("do", None)
            if not isinstance(verb, str) or verb not in self._verbs:
                expected = ", ".join(self._verbs)
                raise LinkError(
                    f"unknown request {verb!r}; expected one of {expected}{nearest(str(verb), self._verbs)}"
                )
            return {"id": request_id, "ok": True, **self._verbs[verb](**request)}
        except (LinkError, OSError, ValueError, TypeError, RecursionError) as problem:  # TypeError: wrong arguments
            return {"id": request_id, "ok": False, "error": str(problem)}

    def _open(self, links: list[Any]) -> dict[str, Any]:
        opened: dict[str, Link] = {}
        for raw in links:
            opening = msgspec.convert(raw, LinkOpening)
            if opening.name in self._links or opening.name in opened:
                raise LinkError(f"link {opening.name!r} is open already")
            listener = socket.socket(fileno=opening.fd)
            if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                raise LinkError(f"link {opening.name!r}: fd {opening.fd} is not a listening socket")
            link = Link(opening.name, listener, Path(opening.upstream))
            link.swap(
                decode_faults(opening.forward, f"{opening.name}: forward"),
                decode_faults(opening.backward, f"{opening.name}: backward"),
            )
            opened[opening.name] = link
        self._links.update(opened)
        for link in opened.values():
            link.start()
        return {}

    def _set(self, link: str, forward: list[Any], backward: list[Any]) -> dict[str, Any]:
        if link not in self._links:
            expected = ", ".join(map(repr, self._links)) or "none, nothing is open"
            raise LinkError(f"unknown link {link!r}; open links: {expected}{nearest(link, self._links)}")
        faults = (decode_faults(forward, f"{link}: forward"), decode_faults(backward, f"{link}: backward"))
        self._links[link].swap(*faults)
        return {}

    def _stats(self) -> dict[str, Any]:
        return {"links": {name: msgspec.to_builtins(link.stats()) for name, link in self._links.items()}}

    def _close(self) -> dict[str, Any]:
        self.closing = True
        return {}


def read_address(path: Path) -> tuple[str, int]:
    """The `host:port` that the accepting side has published in a file. Raises OSError or ValueError."""
    with path.open("rb") as file:
        text = file.read(ADDRESS_BYTES_MAX).decode("utf-8", "replace").strip()
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{path}: {text[:80]!r}; expected host:port")
    return host, int(port)


def _tune(end: socket.socket) -> None:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)


def _wake_exactly() -> None:
    """Asks Linux for timers without slack: its 50 us would be added to every delay."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: there is no prctl
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def main() -> None:
    """Serves control until it closes, then ends the process, whatever its threads are in the middle of."""
    parser = argparse.ArgumentParser(
        prog="chaoskit.links.proxy", description="The data plane of a run; started by its daemon."
    )
    parser.add_argument("--control-fd", type=int, required=True, help="inherited end of the daemon's socketpair")
    arguments = parser.parse_args()
    _wake_exactly()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the daemon's to handle; links stay up while it heals
    channel = socket.socket(fileno=arguments.control_fd)
    channel.setblocking(True)
    control = Control()
    with contextlib.suppress(OSError), channel.makefile("rb") as requests:  # OSError: the daemon is gone
        for line in iter(functools.partial(requests.readline, REQUEST_BYTES_MAX), b""):
            channel.sendall(json.dumps(control.answer(line)).encode() + b"\n")
            if control.closing:
                break
    os._exit(0)


if __name__ == "__main__":
    main()
