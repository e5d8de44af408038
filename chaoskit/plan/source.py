"""A TOML file as the reader sees it: its values, the line of each key, and the problems found in it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from chaoskit.errors import PlanError, nearest
from chaoskit.plan import files
from chaoskit.plan.locate import Path as KeyPath
from chaoskit.plan.locate import line_of, locate
from chaoskit.plan.units import shown

FILE_BYTES_MAX = 256 * 1024
"""A plan is written and read by people. A larger file is a mistake, and TOML readers are slow on hostile
input."""
PROBLEMS_SHOWN_MAX = 100

ModelT = TypeVar("ModelT", bound=BaseModel)

_TOML_LINE = re.compile(r" \(at line (\d+), column (\d+)\)$")
_TYPE_WORDS = {
    "string_type": "a text in quotes",
    "int_type": "a whole number",
    "list_type": "an array",
    "dict_type": "a table",
    "model_type": "a table",
}
"""pydantic's name of an error -> what was expected, in the words of a file."""
_PATTERN_WORDS = {
    files.NAME_PATTERN: "at most 64 letters, digits, '.', '_' or '-', the first a letter or digit",
    files.VARIABLE_PATTERN: "the name of an environment variable: letters, digits and '_'",
}
_TABLES: dict[str, type[BaseModel]] = {
    "run": files.RunTable,
    "limits": files.LimitsTable,
    "role": files.RoleTable,
    "link": files.LinkTable,
}


@dataclass
class Source:
    """A file under examination. `add` collects problems; `raise_problems` ends the examination if there are
    any."""

    path: Path
    sha: str
    values: dict[str, Any]
    lines: dict[KeyPath, int]
    problems: list[tuple[int, str]] = field(default_factory=list)
    foreign_problems: list[str] = field(default_factory=list)
    """Problems of another file that this one names, already with their path and line."""

    def add(self, key: KeyPath, message: str) -> None:
        """A problem at this key, or at the table around it where the key is absent."""
        self.problems.append((line_of(self.lines, key), message))

    def raise_problems(self) -> None:
        """Raises PlanError with all problems, in the order of lines, if there are any."""
        told = [f"{self.path}:{line}: {message}" for line, message in sorted(dict.fromkeys(self.problems))]
        told += self.foreign_problems
        if len(told) > PROBLEMS_SHOWN_MAX:
            left_out = len(told) - PROBLEMS_SHOWN_MAX
            told = [*told[:PROBLEMS_SHOWN_MAX], f"{self.path}:1: {left_out} more problems; mend these first"]
        if told:
            raise PlanError(*told)


def read_source(path: str | os.PathLike[str], what: str) -> Source:
    """Read and parse the file; `what` says in errors what it should be ("a plan"). Raises PlanError."""
    path = Path(path)
    content = _read_bytes(path, what)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise PlanError(f"{path}:{line}: byte 0x{byte:02x} is not UTF-8; expected a text file in UTF-8") from error
    if text.startswith("\ufeff"):
        raise PlanError(f"{path}:1: the file begins with a byte order mark; expected UTF-8 without one")
    try:
        values = tomllib.loads(text)
        lines = locate(text)
    except RecursionError:
        raise PlanError(f"{path}:1: arrays or tables are nested too deep; expected {what}") from None
    except ValueError as error:
        raise PlanError(_toml_problem(path, text, error)) from error
    return Source(path, hashlib.sha256(content).hexdigest(), values, lines)


def validate(source: Source, model: type[ModelT]) -> ModelT | None:
    """The file's values in the shape of the model; None, with every problem added, if they do not have it."""
    try:
        return model.model_validate(source.values)
    except ValidationError as error:
        for details in error.errors(include_url=False, include_context=True, include_input=True):
            source.add(tuple(details["loc"]), _said(details, model))
        return None


def valid_or_none(model: type[ModelT], values: object) -> ModelT | None:
    """One table in the shape of the model, or None. For going on with what is right after `validate` told
    what is not."""
    try:
        return model.model_validate(values)
    except ValidationError:
        return None


def unknown_key(key: str, table: str, valid: Iterable[str]) -> str:
    """The message for a key that a table does not have."""
    valid = list(valid)
    return f"unknown key {shown(key)} in {table}; expected one of {', '.join(valid)}{nearest(key[:64], valid)}"


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys a table may have, as files write them."""
    return [info.alias or name for name, info in model.model_fields.items()]


def table_name(loc: KeyPath) -> str:
    """The table of a place in a file, as the file writes it."""
    names = [part for part in loc if isinstance(part, str)]
    is_array = any(isinstance(part, int) for part in loc)
    if not names:
        return "the file"
    return f"[[{names[0]}]]" if is_array else f"[{'.'.join(names)}]"


def _read_bytes(path: Path, what: str) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise PlanError(f"{path}:1: is not a file; expected {what}")
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise PlanError(
            f"{shown_path(path)}:1: cannot be read ({reason}); expected {what}{_neighbour(path)}"
        ) from error
    if len(content) > FILE_BYTES_MAX:
        raise PlanError(
            f"{path}:1: the file is larger than {FILE_BYTES_MAX // 1024} KiB; expected {what}, which people can read"
        )
    return content


def shown_path(path: Path) -> str:
    """The path as an error shows it: on one line."""
    text = str(path)
    return text if text.isprintable() else shown(text)


def _neighbour(path: Path) -> str:
    """Which file of the same folder was probably meant."""
    try:
        names = sorted(entry.name for entry in path.parent.glob("*.toml"))
    except (OSError, ValueError):
        return ""
    return nearest(path.name, names)


def _toml_problem(path: Path, text: str, error: ValueError) -> str:
    """tomllib's message, with the line in front."""
    message = str(error).replace("\n", " ")
    match = _TOML_LINE.search(message)
    if match is not None:
        message, line = message[: match.start()], int(match[1])
        message = f"{message} (column {match[2]})"
    else:
        line = max(1, len(text.splitlines())) if "end of document" in message else 1
    return f"{path}:{line}: not valid TOML: {message}; expected key = value lines under [table] headers"


def _said(details: ErrorDetails, model: type[BaseModel]) -> str:
    """One of pydantic's errors in our words."""
    loc = tuple(details["loc"])
    keys = [part for part in loc if isinstance(part, str)]
    key = str(keys[-1]) if keys else "the file"
    context = details.get("ctx") or {}
    value = shown(details.get("input"))
    match details["type"]:
        case "extra_forbidden":
            table = _TABLES.get(str(loc[0]), model) if len(loc) > 1 else model
            return unknown_key(key, table_name(loc[:-1]), keys_of(table))
        case "missing":
            return f"{table_name(loc[:-1])} has no key {key!r}; expected {key} = ..."
        case "said":
            return f"{key}: {context['message']}"
        case "list_type" if len(loc) == 1 and key in ("fault", "expect", "role", "link"):
            return f"{key} is {value}; expected tables headed [[{key}]], in double brackets, one for each"
        case "string_pattern_mismatch":
            return f"{key}: {value} is not allowed here; expected {_PATTERN_WORDS[context['pattern']]}"
        case "too_short" | "string_too_short":
            return f"{key} is empty; expected at least one"
        case "greater_than_equal":
            return f"{key}: {value} is too small; expected at least {context['ge']}"
        case "less_than_equal":
            return f"{key}: {value} is too large; expected at most {context['le']}"
        case kind if kind in _TYPE_WORDS:
            return f"{key}: {value} has the wrong type; expected {_TYPE_WORDS[kind]}"
        case _:
            return f"{key}: {value} cannot be used; {details['msg'][:1].lower()}{details['msg'][1:]}"
