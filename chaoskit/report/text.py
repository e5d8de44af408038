"""How values of a journal become words: units, evidence, and secrets that must not be shown."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from chaoskit.report.model import Family

HIDDEN = "[hidden]"
"""Stands where a value looked like a secret."""

TEXT_LENGTH_MAX = 600
"""Longest text of a journal that is shown; a trace back in an evidence value must not fill the page."""

_UNITS = {
    "s": "s",
    "ms": "ms",
    "us": "µs",
    "bytes": "bytes",
    "mib": "MiB",
    "percent": "%",
    "bit_s": "bit/s",
    "kbit_s": "kbit/s",
    "mbit_s": "Mbit/s",
    "gbit_s": "Gbit/s",
    "bytes_s": "bytes/s",
    "mbit": "Mbit",
}

# A name that ends in one of these words, as in MY_API_KEY or db-password. "tokens" is none: it is what is trained on.
_SECRET_NAME = (
    r"(?:[A-Za-z0-9]+[_-])*"
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|API[_-]KEY|ACCESS[_-]KEY|PRIVATE[_-]KEY|SECRET[_-]KEY|KEY)"
)
_SECRET_NAME_ONLY = re.compile(rf"^{_SECRET_NAME}$", re.IGNORECASE)
_SECRET_PATTERNS = (
    # NAME=value, NAME: value, --name value; the value may be quoted.
    (
        re.compile(
            rf"(?<![A-Za-z0-9])((?:--)?{_SECRET_NAME}[\"']?\s*[=:]\s*|--{_SECRET_NAME}\s+)(\"[^\"]*\"|'[^']*'|[^\s\"',;]+)",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"(://[^\s/:@]+):[^\s/@]+@"), rf"\1:{HIDDEN}@"),
    (re.compile(r"\b(?:gh[pousr]_|glpat-|sk-|hf_|xox[bap]-|AKIA)[A-Za-z0-9_-]{12,}"), HIDDEN),
)

_T = TypeVar("_T")


def hide_secrets(text: str) -> str:
    """`text` with every value that looks like a password, key or access token replaced by `[hidden]`."""
    for pattern, replacement in _SECRET_PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def without_secrets(value: _T) -> _T:
    """`value` (a dataclass, tuple or text, nested at will) with `hide_secrets` applied to each text in it.

    It runs once over the finished summary, so no field can be forgotten.
    """
    result: Any = value
    if isinstance(value, str):
        result = hide_secrets(value)
    elif isinstance(value, tuple):
        result = tuple(without_secrets(item) for item in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: without_secrets(getattr(value, field.name)) for field in dataclasses.fields(value)}
        result = dataclasses.replace(value, **fields)
    return result  # type: ignore[no-any-return]  # same type as `value` by construction


def shortened(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    """`text` cut to `length_max` characters, with a sign that something is missing."""
    return text if len(text) <= length_max else text[: length_max - 2] + " …"


def family_of(fault: str) -> Family:
    """The kind of harm a fault name such as `process.kill` belongs to; it decides the colour."""
    if fault.startswith("link."):
        return "link"
    if fault == "process.kill":
        return "kill"
    if fault == "process.pause":
        return "pause"
    return "other"


def value_text(value: Any) -> str:
    """A JSON value as a reader would write it: yes, 0.314, 4096, a, b."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(value_text(item) for item in value) if value else "none"
    if isinstance(value, Mapping):
        return ", ".join(pairs_text(value)) if value else "none"
    return shortened(str(value))


def number_text(value: float) -> str:
    """Four significant digits, never an exponent for the sizes a run has, no trailing zeros."""
    if value != value or value in (float("inf"), float("-inf")):
        return "not finite"
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    if abs(value) >= 1000:
        return f"{value:.0f}"
    if abs(value) < 1e-4:
        return f"{value:.2g}"
    return f"{value:.4g}"


def pairs_text(values: Mapping[str, Any]) -> tuple[str, ...]:
    """`{"gone_ms": 0.31}` as `("gone 0.31 ms",)`: the unit moves from the end of the key behind the value."""
    return tuple(_pair_text(str(key), value) for key, value in values.items())


def without_hold(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A fault's settings without how long it acts, for where that is drawn or counted down anyway."""
    return {key: value for key, value in settings.items() if key != "hold_s"}


def _pair_text(key: str, value: Any) -> str:
    if _SECRET_NAME_ONLY.match(key):
        return f"{key} {HIDDEN}"
    name, unit = key, ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for suffix in sorted(_UNITS, key=len, reverse=True):
            if key.endswith("_" + suffix):
                name, unit = key[: -len(suffix) - 1], " " + _UNITS[suffix]
                if suffix == "bit_s" and abs(value) >= 1e6:
                    value, unit = value / 1e6, " Mbit/s"
                break
    return f"{link_name(name.replace('_', ' '))} {value_text(value)}{unit}"


def seconds_text(value_s: float | None) -> str:
    """`3.2 s`, `310 ms`, `2 min 5 s`; a dash for None."""
    if value_s is None:
        return "–"
    if abs(value_s) < 1:
        return f"{value_s * 1000:.0f} ms"
    if abs(value_s) < 100:
        return f"{value_s:.1f} s"
    minutes, seconds = divmod(round(value_s), 60)
    return f"{minutes} min {seconds} s"


def count_text(value: float) -> str:
    """`1.23 M`, `456 k`, `12`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g} {letter}"
    return f"{value:.0f}"


def versions_text(versions: tuple[int, ...]) -> str:
    """The versions of all fragments in brief: `98 merges (12 to 13 a fragment)`."""
    if not versions:
        return "–"
    low, high = min(versions), max(versions)
    span = f"{low}" if low == high else f"{low} to {high}"
    return f"{sum(versions)} merges ({span} a fragment)"


def measure_text(value: float | None, unit: str) -> str:
    """A measured value with its unit; a dash for None. Counts of violations and plain ratios stand alone."""
    if value is None:
        return "–"
    if unit in ("share", "ratio", "violations"):
        return number_text(value)
    if unit == "%":
        return f"{value:.3g} %"
    return f"{number_text(value)} {unit}".strip()


def link_name(target: str) -> str:
    """`learner-3->syncer` with a proper arrow; a role's name as it is."""
    return target.replace("->", " → ").replace("  ", " ")


def role_order(role: str) -> tuple[bool, str, int]:
    """Sort key of roles: learners first, each by its number, then the others."""
    name, _, number = role.rpartition("-")
    if name and number.isdecimal():
        return (not name.startswith("learner"), name, int(number))
    return (True, role, 0)
