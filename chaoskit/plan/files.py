"""The shape of plan and target files: which tables and keys there are, of which type, with which default.

Only what can be said of one key alone is checked here, so that every such mistake of a file is reported at
once. What needs the catalogue of faults and probes, or the target, is checked by the reader. The JSON Schema
is made from the same models.
"""

from __future__ import annotations

import re
import signal
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from chaoskit.plan.model import At, RoundTrigger, TimeTrigger
from chaoskit.plan.units import QUANTITY_PATTERNS, UnitError, parse, shown

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
ROLE_COUNT_MAX = 256
SEED_MAX = 2**63 - 1
ROUND_MAX = 10**9

_ROUND = re.compile(r"round +(\d{1,18})", re.ASCII)
TRIGGER_PATTERN = rf"^(round +0*[1-9]\d*|{QUANTITY_PATTERNS['duration'].strip('^$')})$"
TRIGGER_EXPECTED = "expected a time after chaos begins such as '12 s', or a round such as 'round 120'"


def _said(message: str) -> PydanticCustomError:
    """An error whose message is used as it is; pydantic would take braces in it for fields."""
    return PydanticCustomError("said", "{message}", {"message": message})


def read_duration(value: object) -> float:
    """Seconds. A PydanticCustomError says what was expected."""
    try:
        return parse(value, "duration")
    except UnitError as error:
        raise _said(str(error)) from None


def read_trigger(value: object) -> At:
    """The trigger that `at` says. A PydanticCustomError says what was expected."""
    if not isinstance(value, str):
        raise _said(f"{shown(value)} is not a trigger; {TRIGGER_EXPECTED}")
    text = " ".join(value.split())
    match = _ROUND.fullmatch(value)
    if match is not None:
        number = int(match[1])
        if not 1 <= number <= ROUND_MAX:
            raise _said(f"{shown(text)} never comes: rounds count from 1; {TRIGGER_EXPECTED}")
        return RoundTrigger(number, text)
    if not text[:1].isdigit() and not text.startswith(("-", "+", ".")):
        words = text.split(" ")
        number_text = words[-1] if words[-1].isdecimal() and words[-1].isascii() else "120"
        hint = f"; did you mean 'round {number_text[:10]}'?" if text[:1] in ("r", "R") else ""
        raise _said(f"{shown(value)} is not a trigger; {TRIGGER_EXPECTED}{hint}")
    try:
        return TimeTrigger(parse(value, "duration", zero_ok=True), text)
    except UnitError as error:
        raise _said(f"{error}; or a round such as 'round 120'") from None


def read_signal(value: object) -> str:
    """The name of a signal that can ask a process to stop. A PydanticCustomError says what was expected."""
    names = [member.name for member in signal.Signals if member not in (signal.SIGKILL, signal.SIGSTOP)]
    if isinstance(value, str) and value in names:
        return value
    raise _said(f"{shown(value)} is no signal that asks a process to stop; expected for instance 'SIGTERM'")


Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Text = Annotated[str, Field(min_length=1)]
Duration = Annotated[
    float,
    BeforeValidator(read_duration),
    WithJsonSchema({"type": "string", "pattern": QUANTITY_PATTERNS["duration"], "examples": ["20 s", "200 ms"]}),
]
Trigger = Annotated[
    Any,
    BeforeValidator(read_trigger),
    WithJsonSchema({"type": "string", "pattern": TRIGGER_PATTERN, "examples": ["12 s", "round 120"]}),
]
StopSignal = Annotated[str, BeforeValidator(read_signal)]
Selectors = Annotated[
    list[Text],
    Field(min_length=1),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
            ]
        }
    ),
]


class Table(BaseModel):
    """A table of a file: strict types, unknown keys refused, keys in kebab case."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        alias_generator=lambda name: name.rstrip("_").replace("_", "-"),
        hide_input_in_errors=True,
    )


class RunTable(Table):
    """[run] of a plan."""

    seed: Annotated[int, Field(ge=0, le=SEED_MAX, description="decides everything that is drawn at random")] = 0
    steady: Annotated[Duration, Field(description="how long the gate must hold before chaos begins")] = 2.0
    heal: Annotated[Duration, Field(description="deadline of the heal phase")] = 60.0
    deadline: Annotated[Duration, Field(description="deadline of the whole run")] = 600.0


class LimitsTable(Table):
    """[limits] of a plan."""

    down_max: Annotated[int, Field(ge=0, le=ROLE_COUNT_MAX, description="most roles down or paused at once")] = 1
    keep: Annotated[list[Text], Field(description="roles that no fault on roles may touch")] = []


class FaultTable(Table):
    """[[fault]] of a plan: the keys that every kind has. The settings of the kind stand beside them."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[Name | None, Field(description="by default the kind and a number")] = None
    kind: Annotated[str, Field(description="the kind of fault")]
    on: Annotated[Selectors, Field(description="roles or links, by name or glob")]
    at: Annotated[Trigger, Field(description="when it begins: a time after chaos begins, or a round")]
    for_: Annotated[Duration | None, Field(description="how long it lasts")] = None


class ExpectTable(Table):
    """[[expect]] of a plan: a probe. Its tolerances stand beside it."""

    model_config = ConfigDict(extra="ignore")

    probe: Annotated[str, Field(description="the name of the probe")]


class PlanFile(Table):
    """A chaoskit fault plan."""

    name: Annotated[Name, Field(description="names the run folder and the report")]
    about: Annotated[str, Field(description="what the plan asks, in a sentence or more")] = ""
    target: Annotated[Text, Field(description="path of the target file, relative to the plan file")]
    run: RunTable = RunTable()
    limits: LimitsTable = LimitsTable()
    fault: list[FaultTable] = []
    expect: list[ExpectTable] = []


class RoleTable(Table):
    """[[role]] of a target."""

    name: Name
    count: Annotated[int, Field(ge=1, le=ROLE_COUNT_MAX)] | None = None
    command: Annotated[list[Text], Field(min_length=1)]
    env: dict[Annotated[str, Field(pattern=VARIABLE_PATTERN)], str] = {}
    ready: Text = "start"
    stop_signal: StopSignal = "SIGTERM"


class LinkTable(Table):
    """[[link]] of a target."""

    from_: Text
    to: Text
    address: Text
    env: Annotated[str, Field(pattern=VARIABLE_PATTERN)]


class TargetFile(Table):
    """A chaoskit target file: the system under test and how to start it."""

    name: Name
    about: str = ""
    done: Text
    replay: Annotated[list[Text], Field(min_length=1)] | None = None
    role: Annotated[list[RoleTable], Field(min_length=1)]
    link: list[LinkTable] = []
