"""Where each key of a TOML text stands. `tomllib` tells what a file says, but not on which line.

    locate('name = "x"\\n[run]\\nseed = 7\\n')   ->   {("name",): 1, ("run",): 2, ("run", "seed"): 3}

Works on text that `tomllib` has accepted, and trusts that: it need not find errors, only skip values rightly
(strings of four kinds, arrays and inline tables over several lines, comments). A property test holds it
against `tomllib` itself.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRINGS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        # A closing delimiter of three may be preceded by up to two quotes that belong to the text.
        r'"""(?:\\.|[^\\])*?"{3,5}(?!")',
        r"'''.*?'{3,5}(?!')",
        r'"(?:\\.|[^"\\])*"',
        r"'[^']*'",
    )
)
_PLAIN_VALUE = re.compile(r"[^,\]}#\n]*")


def locate(text: str) -> dict[Path, int]:
    """Path of every key, table and array element -> its line, from 1. A table that is defined by parts has
    its first line.

    Raises ValueError or IndexError on text that is not TOML.
    """
    return _Scanner(text.replace("\r\n", "\n")).scan()


def line_of(lines: dict[Path, int], path: Path) -> int:
    """The line of the path, or of the nearest table around it that has one; 1 for the whole file."""
    for end in range(len(path), 0, -1):
        line = lines.get(path[:end])
        if line is not None:
            return line
    return 1


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.lines: dict[Path, int] = {}
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.table_counts: dict[Path, int] = {}
        """How often each [[array of tables]] has been opened."""

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while True:
            self._skip(_BLANK)
            if self.position >= len(self.text):
                return self.lines
            if self.text[self.position] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        line = self._line()
        is_array = self.text.startswith("[[", self.position)
        self.position += 2 if is_array else 1
        names = self._key()
        self._skip(_SPACE)
        self.position += 2 if is_array else 1
        path: Path = ()
        for name in names[:-1]:
            path = self._inside((*path, name), line)
        path = (*path, names[-1])
        if not is_array:
            self.lines.setdefault(path, line)
            return path
        self.lines.setdefault(path, line)
        index = self.table_counts.get(path, 0)
        self.table_counts[path] = index + 1
        self.lines[(*path, index)] = line
        return (*path, index)

    def _inside(self, path: Path, line: int) -> Path:
        """The table that a header's leading name means: the last element where it is an array of tables."""
        self.lines.setdefault(path, line)
        count = self.table_counts.get(path)
        return path if count is None else (*path, count - 1)

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for name in self._key():
            path = (*path, name)
            self.lines.setdefault(path, line)
        self._skip(_SPACE)
        self.position += 1  # The equals sign.
        self._skip(_SPACE)
        self._value(path)

    def _key(self) -> list[str]:
        names = [self._name()]
        self._skip(_SPACE)
        while self.text.startswith(".", self.position):
            self.position += 1
            names.append(self._name())
            self._skip(_SPACE)
        return names

    def _name(self) -> str:
        self._skip(_SPACE)
        if self.text[self.position] in "\"'":
            quoted = self._string()
            return str(tomllib.loads(f"x = {quoted}")["x"])
        match = _BARE.match(self.text, self.position)
        if match is None:
            raise ValueError(f"no key at character {self.position}")
        self.position = match.end()
        return match[0]

    def _value(self, path: Path) -> None:
        match self.text[self.position]:
            case "[":
                self._array(path)
            case "{":
                self._inline_table(path)
            case '"' | "'":
                self._string()
            case _:
                start = self.position
                self._skip(_PLAIN_VALUE)
                if self.position == start:
                    raise ValueError(f"no value at character {start}")

    def _array(self, path: Path) -> None:
        self.position += 1
        index = 0
        while True:
            self._skip(_BLANK)
            if self.text[self.position] == "]":
                self.position += 1
                return
            self.lines[(*path, index)] = self._line()
            self._value((*path, index))
            index += 1
            self._skip(_BLANK)
            if self.text[self.position] == ",":
                self.position += 1

    def _inline_table(self, path: Path) -> None:
        self.position += 1
        while True:
            self._skip(_BLANK)
            if self.text[self.position] == "}":
                self.position += 1
                return
            self._pair(path)
            self._skip(_BLANK)
            if self.text[self.position] == ",":
                self.position += 1

    def _string(self) -> str:
        for pattern in _STRINGS:
            match = pattern.match(self.text, self.position)
            if match is not None:
                self.position = match.end()
                return match[0]
        raise ValueError(f"no string at character {self.position}")

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.position)
        assert match is not None, "every skipped pattern matches the empty text"
        self.position = match.end()

    def _line(self) -> int:
        return bisect_right(self.line_starts, self.position)
