"""What plan files may name: kinds of fault and probes, with their settings. The caller of the reader hands
these in.

The plan room imports nothing of ours, so it cannot know which faults exist. `chaoskit.faults` and
`chaoskit.probes` describe theirs with these tables; the reader, the JSON Schema and the reference of the plan
language are all made from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from chaoskit.plan.units import Dimension, UnitError, parse, shown

SettingUnit = Literal["duration", "rate", "share", "size", "count", "choice"]

KEY_SUFFIXES: dict[SettingUnit, str] = {
    "duration": "_s",
    "rate": "_bit_s",
    "share": "_share",
    "size": "_bytes",
    "count": "",
    "choice": "",
}

SettingValue = float | int | str
COUNT_MAX = 2**31


@dataclass(frozen=True)
class Setting:
    """One key that a kind of fault or a probe understands.

    `name` is the key in the file ("restart-after"), `key` the name in code ("restart_after_s"). `default` is
    in seconds, bits per second, of one, or bytes; None means that the setting may be left out and is then
    absent.
    """

    name: str
    unit: SettingUnit
    required: bool = False
    default: SettingValue | None = None
    choices: tuple[str, ...] = ()
    about: str = ""
    zero_ok: bool = False

    def __post_init__(self) -> None:
        assert (self.unit == "choice") == bool(self.choices), f"{self.name}: choices belong to the unit 'choice'"
        assert not (self.required and self.default is not None), f"{self.name}: required, so it has no default"

    @property
    def key(self) -> str:
        """The name in code: snake case, with its unit last."""
        return self.name.replace("-", "_") + KEY_SUFFIXES[self.unit]

    def read(self, value: object) -> SettingValue:
        """The value as code uses it. Raises UnitError."""
        if self.unit == "count":
            return _read_count(value, zero_ok=self.zero_ok)
        if self.unit == "choice":
            return _read_choice(value, self.choices)
        dimension: Dimension = self.unit
        return parse(value, dimension, zero_ok=self.zero_ok)


@dataclass(frozen=True)
class KindSpec:
    """One kind of fault: what it acts on and what a plan says of it."""

    kind: str
    acts_on: Literal["role", "link"]
    settings: tuple[Setting, ...] = ()
    needs_hold: bool = True
    """True if `for` is required; False if the fault ends by itself and `for` is refused."""
    about: str = ""
    downs_role: bool = True
    """Whether a role it acts on counts as down for `down-max`. Without meaning for links."""


@dataclass(frozen=True)
class ProbeSpec:
    """One probe: its name in plans, its number in the oracle, and what its tolerance may be."""

    name: str
    id: str
    tolerances: tuple[Setting, ...] = ()
    about: str = ""


def defaults(settings: tuple[Setting, ...]) -> dict[str, SettingValue]:
    """Key -> default, for the settings that have one."""
    return {setting.key: setting.default for setting in settings if setting.default is not None}


def _read_count(value: object, *, zero_ok: bool) -> int:
    expected = "expected a whole number without a unit, such as 3"
    if isinstance(value, float) and not math.isfinite(value):
        raise UnitError(f"{value} is not a number to count with; {expected}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnitError(f"{shown(value)} is not a whole number; {expected}")
    if value < 0 or (value == 0 and not zero_ok):
        raise UnitError(f"{shown(value)} is {'negative' if value < 0 else 'zero'}; {expected}")
    if value > COUNT_MAX:
        raise UnitError(f"{shown(value)} is too large; expected at most {COUNT_MAX}")
    return value


def _read_choice(value: object, choices: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in choices:
        return value
    raise UnitError(f"{shown(value)} is no choice here; expected one of {', '.join(choices)}")
