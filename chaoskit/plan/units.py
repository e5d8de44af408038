"""Quantities as plan files write them: a number, a space, a unit. One table for parsing, errors and
documentation.

    parse("200 ms", "duration")   ->   0.2          seconds
    parse("2 Mbit/s", "rate")     ->   2_000_000.0  bits per second
    parse("5 %", "share")         ->   0.05         of one
    parse("4 MiB", "size")        ->   4_194_304.0  bytes

A number without a unit is refused: "20" has been milliseconds in one tool and seconds in the next.
"""

from __future__ import annotations

import difflib
import math
import re
from typing import Literal

Dimension = Literal["duration", "rate", "share", "size"]

UNITS: dict[Dimension, dict[str, float]] = {
    "duration": {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
    "rate": {
        "bit/s": 1.0,
        "kbit/s": 1e3,
        "Mbit/s": 1e6,
        "Gbit/s": 1e9,
        "B/s": 8.0,
        "kB/s": 8e3,
        "MB/s": 8e6,
        "GB/s": 8e9,
        "KiB/s": 8.0 * 1024,
        "MiB/s": 8.0 * 1024**2,
        "GiB/s": 8.0 * 1024**3,
    },
    "share": {"%": 0.01},
    "size": {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3},
}
"""Dimension -> unit as written -> how many seconds, bits per second, of one, or bytes it is."""

EXAMPLES: dict[Dimension, str] = {"duration": "20 s", "rate": "2 Mbit/s", "share": "5 %", "size": "4 MiB"}

SPELLED_OUT = {
    "sec": "s",
    "secs": "s",
    "second": "s",
    "seconds": "s",
    "m": "min",
    "mins": "min",
    "minute": "min",
    "minutes": "min",
    "hour": "h",
    "hours": "h",
    "hr": "h",
    "millisecond": "ms",
    "milliseconds": "ms",
    "msec": "ms",
    "µs": "us",
    "mbps": "Mbit/s",
    "gbps": "Gbit/s",
    "kbps": "kbit/s",
    "bps": "bit/s",
    "percent": "%",
}
"""What people write instead, and the unit to suggest. Case is ignored."""

_NUMBER = r"-?(?:\d+(?:_\d+)*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_QUANTITY = re.compile(rf"({_NUMBER}) *(.*)", re.ASCII)
NUMBER_CHARACTERS_MAX = 40
"""A longer number is a mistake, and converting a very long one takes long."""

QUANTITY_PATTERNS: dict[Dimension, str] = {
    dimension: rf"^\d+(_\d+)*(\.\d+)?([eE][+-]?\d+)? *({'|'.join(re.escape(unit) for unit in units)})$"
    for dimension, units in UNITS.items()
}
"""For each dimension a regular expression that its texts match, for the JSON Schema of a plan."""


class UnitError(ValueError):
    """A text is not a quantity of the dimension. The message says what was expected, and names the nearest
    unit."""


def parse(text: object, dimension: Dimension, *, zero_ok: bool = False) -> float:
    """The quantity in seconds, bits per second, of one, or bytes. Raises UnitError.

    Negative quantities are refused, and zero unless `zero_ok`; a share is at most 100 %.
    """
    expected = f"expected a {dimension} such as {EXAMPLES[dimension]!r}"
    if not isinstance(text, str):
        if isinstance(text, int | float) and not isinstance(text, bool) and text not in (math.inf, -math.inf):
            raise UnitError(f"{shown(text)} has no unit; {expected}")
        raise UnitError(f"{shown(text)} is not a text with a number and a unit; {expected}")
    match = _QUANTITY.fullmatch(text)
    if match is None or len(match[1]) > NUMBER_CHARACTERS_MAX:
        raise UnitError(f"{shown(text)} does not begin with a plain number; {expected}")
    unit = match[2]
    factor = UNITS[dimension].get(unit)
    if factor is None:
        raise UnitError(_unknown_unit(text, unit, dimension, expected))
    value = float(match[1].replace("_", "")) * factor
    if not math.isfinite(value):
        raise UnitError(f"{shown(text)} is too large; {expected}")
    if value < 0 or match[1].startswith("-"):
        raise UnitError(f"{shown(text)} is negative; {expected}")
    if value == 0 and not zero_ok:
        raise UnitError(f"{shown(text)} is zero; {expected}, or leave the key out")
    if dimension == "share" and value > 1:
        raise UnitError(f"{shown(text)} is more than 100 %; {expected}")
    return value


def shown(value: object, characters_max: int = 60) -> str:
    """A value of a file as an error shows it: on one line, escaped, cut when long."""
    if isinstance(value, str):
        text = repr(value[: characters_max + 1])
    elif isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else "an array"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, int) and abs(value) >= 10**characters_max:
        text = "a very long number"
    else:
        text = str(value)
    return text if len(text) <= characters_max else text[: characters_max - 3] + "..."


def _unknown_unit(text: str, unit: str, dimension: Dimension, expected: str) -> str:
    if not unit:
        return f"{shown(text)} has no unit; {expected}"
    valid = UNITS[dimension]
    suggestion = nearest_unit(unit, dimension)
    hint = f"; did you mean {suggestion!r}?" if suggestion else f"; the units are {', '.join(valid)}"
    return f"{shown(text)} has the unit {shown(unit)}, which no {dimension} has; {expected}{hint}"


def nearest_unit(unit: str, dimension: Dimension) -> str | None:
    """The unit of the dimension that was probably meant, or None."""
    valid = UNITS[dimension]
    spelled_out = SPELLED_OUT.get(unit.lower())
    if spelled_out in valid:
        return spelled_out
    same_letters = [name for name in valid if name.lower() == unit.lower()]
    close = same_letters or difflib.get_close_matches(unit[:NUMBER_CHARACTERS_MAX], valid, n=1, cutoff=0.6)
    return close[0] if close else None
