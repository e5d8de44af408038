"""Reading a log or a tape while it is being written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from chaoskit.journal.lines import decode_fields

POLL_BYTES_MAX = 1 << 20
"""At most this much of a file is read by one poll, so that a flood on one tape cannot hold up the daemon's
loop."""


class Follower:
    """The newly completed lines of a file that grows, poll by poll.

    The file may not exist yet. A partial last line is left for the next poll, which reads it again from its
    beginning, so that a torn tail that its writer cuts later does no harm. Damaged lines are counted in
    `damaged` and left out.
    """

    def __init__(self, path: str | os.PathLike[str], *, poll_bytes_max: int = POLL_BYTES_MAX) -> None:
        self.path = Path(path)
        self.damaged = 0
        self._poll_bytes_max = poll_bytes_max
        self._fd = -1
        self._offset = 0
        self._in_overlong_line = False

    def poll(self) -> list[dict[str, Any]]:
        """The lines completed since the last poll, oldest first, as dicts with `t`, `kind` and the fields.

        Reads at most `poll_bytes_max` bytes; call again at once where nothing may be left behind. Costs one
        system call when there is nothing new. A line longer than `poll_bytes_max` is damaged.
        """
        if self._fd < 0 and not self._open():
            return []
        chunk = os.pread(self._fd, self._poll_bytes_max, self._offset)
        if not chunk:
            return []
        complete_bytes = chunk.rfind(b"\n") + 1
        if complete_bytes == 0:
            if len(chunk) == self._poll_bytes_max:
                self._offset += len(chunk)
                self._in_overlong_line = True
            return []
        self._offset += complete_bytes
        lines = chunk[: complete_bytes - 1].split(b"\n")
        if self._in_overlong_line:
            self._in_overlong_line = False
            self.damaged += 1
            del lines[0]
        decoded = [decode_fields(line) for line in lines]
        records = [fields for fields in decoded if fields is not None]
        self.damaged += len(decoded) - len(records)
        return records

    def close(self) -> None:
        """Close the file. A later poll opens it again and goes on where this one stopped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> bool:
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        return True
