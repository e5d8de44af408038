"""Append-only logs: the run's journal and the daemon's ledger.

Why it looks like this: the journal must be readable after the writer was killed at any instruction, and what
it says must not depend on a clean end. So a record is one `write` of one whole line to a file opened for
appending, every line carries its checksum, and nothing is ever rewritten. A kill can cost at most the line
that was being written; that torn tail is recognised and cut. Damage anywhere else cannot come from a crash
and is an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from chaoskit.errors import JournalError
from chaoskit.journal.lines import RESERVED_FIELDS, decode_fields, seal, seal_holds

FORMAT = 1
"""Version of the journal's and the tape's format, written in the first record of each."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened. `record["fragment"]` reads a field of `data`.

    `n` is the number of the record (in a log: counted by its writer; in a `History`: its place in the merged
    order), `t` is in seconds of CLOCK_MONOTONIC, `node` is a role's name or "daemon".
    """

    n: int
    t: float
    node: str
    kind: str
    data: dict[str, Any]

    def __getitem__(self, field: str) -> Any:
        return self.data[field]

    def __contains__(self, field: str) -> bool:
        return field in self.data

    def get(self, field: str, default: Any = None) -> Any:
        """The field's value, or `default` where the record has no such field."""
        return self.data.get(field, default)


class AppendLog:
    """A log open for appending. One writer at a time, from one thread.

    Opening an existing file continues its numbering; a torn last line is cut off first and counted in `torn`.
    When another process has appended meanwhile (the guardian, after the daemon hung), numbering goes on after
    its last line.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, sync: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Open or create `path`. With `sync`, `append` returns only when the line is on the disk.

        Raises JournalError if the file cannot be opened.
        """
        self.path = Path(path)
        self.torn = 0
        self._sync = sync
        self._clock = clock
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalError(
                f"{self.path}: cannot be opened for appending ({error.strerror}); expected a writable folder"
            ) from error
        self._next_n = 0
        self._end = 0
        self._resume()
        if sync:
            _sync_folder(self.path.parent)

    def append(self, kind: str, /, **fields: Any) -> Record:
        """Write one record and return it.

        Raises JournalError if the line could not be written whole (it is then not in the file), ValueError
        for a field name that the line itself uses, TypeError for a value JSON cannot say.
        """
        taken = RESERVED_FIELDS & fields.keys()
        if taken:
            raise ValueError(f"the record {kind!r} has a field {min(taken)!r}, which every line already has")
        if self._fd < 0:
            raise JournalError(f"{self.path}: a record {kind!r} came after the log was closed")
        if os.fstat(self._fd).st_size != self._end:
            self._resume()
        t = self._clock()
        line = seal(self._next_n, t, kind, fields)
        self._write(line, kind)
        record = Record(self._next_n, t, "daemon", kind, fields)
        self._next_n += 1
        self._end += len(line)
        return record

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> AppendLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: bytes, kind: str) -> None:
        try:
            written = os.write(self._fd, line)
            if written == len(line):
                if self._sync:
                    os.fdatasync(self._fd)
                return
            reason = f"only {written} of {len(line)} bytes were written"
        except OSError as error:
            reason = error.strerror or str(error)
        # Half a line must not stay: the next record would be glued to it, and both would be lost.
        os.ftruncate(self._fd, self._end)
        raise JournalError(f"{self.path}: the record {kind!r} could not be written ({reason}); is the disk full?")

    def _resume(self) -> None:
        """Find the end of the intact file and the next number; cut a torn last line."""
        size = os.fstat(self._fd).st_size
        content = os.pread(self._fd, size, 0) if size else b""
        whole_end = content.rfind(b"\n") + 1
        if whole_end == len(content) and whole_end and not seal_holds(_line_before(content, whole_end)):
            whole_end = content.rfind(b"\n", 0, whole_end - 1) + 1
        if whole_end < len(content):
            self.torn += 1
            os.ftruncate(self._fd, whole_end)
        self._end = whole_end
        self._next_n = _last_number(content, whole_end) + 1


def read_log(path: str | os.PathLike[str]) -> tuple[list[Record], bool]:
    """All records of a log, and whether its last line was torn (and left out).

    Raises JournalError with file:line if a line before the last is damaged or missing, or the file cannot be
    read. A number may occur twice (two writers met), but none may be missing.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise JournalError(f"{path}: cannot be read ({error.strerror}); expected a log of a run") from error
    torn = lines.pop() != b""
    records: list[Record] = []
    number = -1
    for index, line in enumerate(lines):
        fields = decode_fields(line)
        if fields is None or "n" not in fields or not seal_holds(line):
            if index == len(lines) - 1 and not torn:
                return records, True
            raise JournalError(
                f"{path}:{index + 1}: the line is damaged; expected a JSON object with a checksum that holds."
                " A crash can only tear the last line, so the file was changed or the disk is bad"
            )
        n = fields.pop("n")
        if n not in (number, number + 1):
            raise JournalError(
                f"{path}:{index + 1}: record {n} comes after record {number}; expected {number + 1}. Lines are missing"
            )
        number = n
        records.append(Record(n, fields.pop("t"), "daemon", fields.pop("kind"), fields))
    return records, torn


def _line_before(content: bytes, end: int) -> bytes:
    """The line whose newline is the byte before `end`, without it."""
    return content[content.rfind(b"\n", 0, end - 1) + 1 : end - 1]


def _last_number(content: bytes, end: int) -> int:
    """The number of the last intact line that ends at or before `end`; -1 if there is none."""
    while end > 0:
        line = _line_before(content, end)
        fields = decode_fields(line)
        if fields is not None and type(fields.get("n")) is int:
            return int(fields["n"])
        end = content.rfind(b"\n", 0, end - 1) + 1
    return -1


def _sync_folder(folder: Path) -> None:
    """Make the file's name durable too: without it a synced new file may be gone after a power loss."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
