"""The daemon's side of the proxy: owns the listening sockets, starts the process, sets faults, reads counters.

    proxy = Proxy.start([LinkAddress("learner-0 -> syncer", run / "target/syncer.address")])
    environment["SYNCER"] = f"127.0.0.1:{proxy.port('learner-0 -> syncer')}"
    proxy.set_faults("learner-0 -> syncer", forward=[Latency("slow#1", delay_s=0.05)])
    proxy.stats()["learner-0 -> syncer"].forward.faults["slow#1"].delay.median_s

All calls are blocking and safe from any thread (`asyncio.to_thread`), each has a deadline, and none waits
for data on a link.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from chaoskit.errors import PreflightError, nearest
from chaoskit.links.counters import LinkStats
from chaoskit.links.pipe import SOCKET_BUFFER_BYTES
from chaoskit.links.settings import LinkError, LinkFault, ProxyError, check_distinct

CONTROL_DEADLINE_S = 2.0
"""Longest wait for a reply. A healthy proxy answers within milliseconds, whatever its links do."""

START_DEADLINE_S = 20.0
"""Longest wait for a new process to take its links over: an interpreter's start on a busy machine."""

EXIT_DEADLINE_S = 1.0
"""Longest wait for a process that was told to exit; then it is killed."""

KILL_DEADLINE_S = 5.0
"""Longest wait for a killed process to be gone; longer means that the kernel cannot end it."""

BACKLOG = 128
"""Connections that wait in the kernel while a dead proxy is replaced."""

REPLY_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True)
class LinkAddress:
    """A link, "learner-0 -> syncer", and the file in which its accepting side will publish `host:port`."""

    name: str
    upstream: Path


class Proxy:
    """A running proxy process and the listening sockets behind it. Make one with `Proxy.start`."""

    def __init__(self, log: Path | None, environment: Mapping[str, str] | None) -> None:
        self._log = log
        self._environment = {**os.environ, **(environment or {})}
        self._listeners: dict[str, socket.socket] = {}
        self._upstreams: dict[str, Path] = {}
        self._faults: dict[str, tuple[tuple[LinkFault, ...], tuple[LinkFault, ...]]] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._unread = bytearray()
        self._last_id = 0
        self._closed = False

    @classmethod
    def start(
        cls,
        links: Sequence[LinkAddress],
        *,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Proxy:
        """Binds a port of 127.0.0.1 for every link and starts the process. Its output goes to `log`, else to ours.

        Raises LinkError for a link named twice, PreflightError where no port is free, ProxyError where the
        process does not come up; nothing is left behind then.
        """
        proxy = cls(log, environment)
        try:
            for link in links:
                if link.name in proxy._listeners:
                    raise LinkError(
                        f"two links are named {link.name!r}; expected one per connecting and accepting role"
                    )
                proxy._listeners[link.name] = _listen(link.name)
                proxy._upstreams[link.name] = Path(link.upstream).absolute()
                proxy._faults[link.name] = ((), ())
            with proxy._turn("start", CONTROL_DEADLINE_S):
                proxy._spawn()
        except BaseException:
            proxy.close()
            raise
        return proxy

    def port(self, link: str) -> int:
        """The port on 127.0.0.1 where the connecting side of `link` shall connect; the same for the whole run."""
        self._known(link)
        return int(self._listeners[link].getsockname()[1])

    def set_faults(self, link: str, forward: Sequence[LinkFault] = (), backward: Sequence[LinkFault] = ()) -> None:
        """Replaces all faults of `link` in both directions, effective for the next byte; no faults at all heals it.

        Raises LinkError if refused (nothing has changed), ProxyError if the process is gone or silent. In
        that case the faults are remembered all the same, so that `restart` brings the links to the state
        that was wanted last.
        """
        self._known(link)
        check_distinct(forward, f"{link}: forward")
        check_distinct(backward, f"{link}: backward")
        with self._turn("set", CONTROL_DEADLINE_S):
            before = self._faults[link]
            self._faults[link] = (tuple(forward), tuple(backward))
            try:
                self._call("set", CONTROL_DEADLINE_S, link=link, **_directions(self._faults[link]))
            except LinkError:
                self._faults[link] = before
                raise

    def stats(self) -> dict[str, LinkStats]:
        """The counters of every link since this process started. Raises ProxyError."""
        with self._turn("stats", CONTROL_DEADLINE_S):
            reply = self._call("stats", CONTROL_DEADLINE_S)
        return msgspec.convert(reply["links"], dict[str, LinkStats])

    def alive(self) -> bool:
        """Whether the process runs. A stopped (SIGSTOP) or hung one does; a call to it ends in ProxyError."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the present process, or of the last one."""
        return self._process.pid if self._process is not None else 0

    def restart(self) -> None:
        """Ends the process if it still runs; starts another on the same ports, with the same faults. Raises ProxyError.

        Connections that the old process carried are reset; those made meanwhile wait in the backlog and
        meet the faults from their first byte. Counters begin anew: read `stats` before if the process still
        answers.
        """
        with self._turn("restart", START_DEADLINE_S):
            if self._closed:
                raise ProxyError("the proxy was closed by this daemon; start a new one with Proxy.start")
            if not self._end_process(0.0):
                raise ProxyError(
                    f"restart: the old process (pid {self.pid}) is still there {KILL_DEADLINE_S:g} s after SIGKILL"
                )
            self._spawn()

    def close(self) -> None:
        """Ends the process and closes the ports; may be called twice. A process that nothing ends stays `alive`."""
        with self._turn("close", START_DEADLINE_S):
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(ProxyError, LinkError):  # gone or silent: it is killed below
                self._call("close", EXIT_DEADLINE_S)
            self._end_process(EXIT_DEADLINE_S)
            for listener in self._listeners.values():
                listener.close()

    @contextlib.contextmanager
    def _turn(self, verb: str, deadline_s: float) -> Iterator[None]:
        """One call at a time, and none waits for its turn beyond its deadline."""
        if not self._lock.acquire(timeout=deadline_s):
            raise ProxyError(f"{verb}: another call to the proxy has not ended within {deadline_s:g} s")
        try:
            yield
        finally:
            self._lock.release()

    def _known(self, link: str) -> None:
        if link not in self._listeners:
            links = ", ".join(map(repr, self._listeners)) or "none"
            raise LinkError(f"unknown link {link!r}; links of this run: {links}{nearest(link, self._listeners)}")

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        fds = {name: listener.fileno() for name, listener in self._listeners.items()}
        log_fd = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if self._log else None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "chaoskit.links.proxy", "--control-fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(), *fds.values()),
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                env=self._environment,
                start_new_session=True,  # a session of its own keeps delays exact beside busy learners, and Ctrl-C away
            )
        except OSError as problem:
            ours.close()
            raise ProxyError(f"the proxy process could not be started: {problem}") from problem
        finally:
            theirs.close()
            if log_fd is not None:
                os.close(log_fd)
        self._channel, self._unread = ours, bytearray()
        openings = [
            {
                "name": name,
                "fd": fd,
                "upstream": str(self._upstreams[name]),
                **_directions(self._faults[name]),
            }
            for name, fd in fds.items()
        ]
        self._call("open", START_DEADLINE_S, links=openings)

    def _end_process(self, grace_s: float) -> bool:
        """Lets go of the control end, upon which a healthy process exits; kills it after `grace_s`. Is it gone?"""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is None:
            return True
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # `alive` tells the caller
                self._process.wait(KILL_DEADLINE_S)
        return not self.alive()

    def _call(self, verb: str, deadline_s: float, **arguments: Any) -> dict[str, Any]:
        """One request and its reply; the lock is held. Replies to calls that timed out earlier are passed over."""
        channel = self._channel
        if channel is None:
            raise ProxyError(f"{verb}: there is no proxy process; `restart` starts one")
        deadline = time.monotonic() + deadline_s
        self._last_id += 1
        request = json.dumps({"id": self._last_id, "do": verb, **arguments}).encode() + b"\n"
        try:
            channel.settimeout(deadline_s)
            channel.sendall(request)
            while True:
                reply = json.loads(self._read_line(channel, deadline))
                if reply.get("id") == self._last_id:
                    break
        except TimeoutError as problem:
            raise ProxyError(f"{verb}: the proxy (pid {self.pid}) did not answer within {deadline_s:g} s") from problem
        except (OSError, ValueError) as problem:
            raise ProxyError(f"{verb}: the proxy (pid {self.pid}) is gone: {problem}") from problem
        if not reply["ok"]:
            raise LinkError(str(reply["error"]))
        return dict(reply)

    def _read_line(self, channel: socket.socket, deadline: float) -> bytes:
        while (end := self._unread.find(b"\n")) < 0:
            if len(self._unread) > REPLY_BYTES_MAX:
                raise ValueError(f"a reply of more than {REPLY_BYTES_MAX} bytes")
            channel.settimeout(max(deadline - time.monotonic(), 1e-3))
            received = channel.recv(1 << 16)
            if not received:
                raise ConnectionResetError("it closed its control end")
            self._unread += received
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line


def _listen(link: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Accepted sockets inherit the buffer; set here it bounds the window that is offered from the first byte on.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen(BACKLOG)
    except OSError as problem:
        listener.close()
        raise PreflightError(
            f"no port of 127.0.0.1 for link {link!r}: {problem}; free some ports and try again"
        ) from problem
    return listener


def _directions(faults: tuple[tuple[LinkFault, ...], tuple[LinkFault, ...]]) -> dict[str, Any]:
    forward, backward = faults
    return {"forward": msgspec.to_builtins(forward), "backward": msgspec.to_builtins(backward)}
