"""The event tape: what this process tells the world, one JSON object a line (docs/event-tape.md).

Every record is one `write` to an O_APPEND descriptor and nothing is buffered, so a SIGKILL loses at most the record
that was never written.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

FORMAT = 1
_encode = msgspec.json.Encoder().encode


class Tape:
    """Writer of one process's tape. The first record is `start {role, pid, format}`."""

    def __init__(self, path: Path | None, role: str, now: float) -> None:
        self._file = -1
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.write(now, "start", {"role": role, "pid": os.getpid(), "format": FORMAT})

    def write(self, now: float, kind: str, fields: Mapping[str, Any]) -> None:
        """Append one record; `now` is CLOCK_MONOTONIC in seconds, one clock for all processes of a machine."""
        if self._file >= 0:
            line = _encode({"t": round(now, 6), "kind": kind, **fields}) + b"\n"
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, "the event tape took only a part of a record: is the disk full?")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def versions_told(tape: Path | None, kind: str) -> dict[int, int]:
    """The newest version of each fragment that earlier processes of this role have told of in records of `kind`.

    A syncer killed between the durable merge and its record leaves a merge that nobody was told of; its successor
    compares with this and tells it. Earlier tapes are the siblings NAME.1.jsonl, NAME.2.jsonl, ... of `tape`, and
    `tape` itself.
    """
    told: dict[int, int] = {}
    if tape is None or not tape.parent.is_dir():
        return told
    stem = re.sub(r"(\.\d+)?\.jsonl$", "", tape.name)
    pattern = re.compile(re.escape(stem) + r"(\.\d+)?\.jsonl")
    for path in sorted(tape.parent.iterdir()):
        if not pattern.fullmatch(path.name):
            continue
        for line in path.read_bytes().splitlines():
            try:
                record = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue  # the last line of a killed process may be cut; by contract it is ignored
            if record.get("kind") == kind:
                told[record["fragment"]] = max(record["version"], told.get(record["fragment"], 0))
    return told
