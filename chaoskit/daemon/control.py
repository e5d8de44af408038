"""The control socket of a run: JSON lines over a unix socket, mode 0600, in the run folder.

{"do": "status"}  ->  {"ok": true, "phase": "chaos", "round": 61, ...}
{"do": "stop"}    ->  {"ok": true}          heals now and finishes the journal
{"do": "interrupt"}   the same, from the runner when it was interrupted
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from chaoskit.errors import UsageError, nearest

SOCKET = "control.sock"
REQUEST_BYTES_MAX = 64 * 1024
CONTROL_DEADLINE_S = 2.0

Handler = Callable[[], dict[str, Any]]


@contextlib.contextmanager
def _short_path(run_dir: Path) -> Iterator[str]:
    """A path of the socket that fits the 108 bytes a unix address may have, however deep the run folder lies."""
    folder = os.open(run_dir, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


class ControlServer:
    """Answers requests from the daemon's own loop; a handler returns at once and never waits for data."""

    def __init__(self, run_dir: Path, handlers: dict[str, Handler]) -> None:
        self._run_dir = run_dir
        self._handlers = handlers
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Bind the socket so that at no moment anybody else may connect."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        previous = os.umask(0o177)
        try:
            with _short_path(self._run_dir) as path:
                server.bind(path)
        finally:
            os.umask(previous)
        self._server = await asyncio.start_unix_server(self._serve, sock=server, limit=REQUEST_BYTES_MAX)

    async def close(self) -> None:
        """Stop listening and take the socket away."""
        if self._server is not None:
            self._server.close()
            (self._run_dir / SOCKET).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CONTROL_DEADLINE_S):
                line = await reader.readline()
                writer.write(msgspec.json.encode(self._answer(line)) + b"\n")
                await writer.drain()
        except (TimeoutError, ValueError, ConnectionError):
            # A client that sends no whole line, too long a line, or leaves: nothing to answer.
            return
        finally:
            writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as error:
            return {"ok": False, "error": f"not a JSON object: {error}"}
        wanted = str(request.get("do"))
        handler = self._handlers.get(wanted)
        if handler is None:
            names = ", ".join(self._handlers)
            return {
                "ok": False,
                "error": f"unknown request {wanted!r}{nearest(wanted, self._handlers)}; expected {names}",
            }
        return {"ok": True, **handler()}


def ask(run_dir: Path, request: str, deadline_s: float = CONTROL_DEADLINE_S) -> dict[str, Any]:
    """Send one request to the daemon of a run and return its answer. Raises UsageError when nobody answers."""
    try:
        with _short_path(run_dir) as path, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(deadline_s)
            client.connect(path)
            client.sendall(msgspec.json.encode({"do": request}) + b"\n")
            with client.makefile("rb") as answers:
                line = answers.readline(REQUEST_BYTES_MAX)
    except OSError as error:
        raise UsageError(
            f"{run_dir}: no run is on here ({error.strerror or error}); expected a run that has not ended"
        ) from error
    answer = msgspec.json.decode(line, type=dict[str, Any]) if line else {"ok": False, "error": "the daemon hung up"}
    if not answer["ok"]:
        raise UsageError(f"{run_dir}: {answer['error']}")
    return answer
