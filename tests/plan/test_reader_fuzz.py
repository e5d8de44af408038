"""Whatever stands in a plan file: a plan, or refusals with file and line. Never a traceback, and never a
guess."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from chaoskit.errors import PlanError
from chaoskit.plan import Plan, TimeTrigger, plan_schema, read_plan, read_target
from tests.plan.plan_samples import KINDS, PLAN, PROBES, TARGET

SCHEMA = Draft202012Validator(plan_schema(KINDS, PROBES))
PROBLEM = re.compile(r"[^\n]+?:(\d+): [^\n]+")

fuzz = settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "target.toml").write_text(TARGET)
    return folder


def check(folder: Path, content: bytes) -> Plan | None:
    """Read it; whatever comes must be a sound plan or sound refusals."""
    path = folder / "plan.toml"
    path.write_bytes(content)
    try:
        plan = read_plan(path, kinds=KINDS, probes=PROBES)
    except PlanError as error:
        check_problems(error, content)
        return None
    check_plan(plan)
    problems = [problem.message for problem in SCHEMA.iter_errors(tomllib.loads(content.decode()))]
    assert not problems, "the reader accepts what the schema refuses"
    return plan


def check_problems(error: PlanError, content: bytes) -> None:
    assert error.problems
    for problem in error.problems:
        match = PROBLEM.fullmatch(problem)
        assert match is not None, problem
        assert 1 <= int(match[1]) <= max(content.count(b"\n") + 1, TARGET.count("\n") + 1)
        assert "expected" in problem or "see the next lines" in problem, problem
        assert problem.isprintable(), problem


def check_plan(plan: Plan) -> None:
    room_s = plan.run.deadline_s - plan.run.steady_s
    assert len({fault.name for fault in plan.faults}) == len(plan.faults)
    assert {expect.probe for expect in plan.expects} == set(PROBES)
    for fault in plan.faults:
        assert fault.targets
        assert (fault.hold_s is not None) == KINDS[fault.kind].needs_hold
        after_s = fault.at.after_s if isinstance(fault.at, TimeTrigger) else 0.0
        assert 0 <= after_s + (fault.hold_s or 0) < room_s
        if fault.acts_on == "role":
            assert not set(fault.targets) & set(plan.limits.keep)
            assert len(fault.targets) <= plan.limits.down_max


@fuzz
@given(text=st.text() | st.binary())
def test_no_text_breaks_the_reader(folder: Path, text: str | bytes) -> None:
    check(folder, text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))


@fuzz
@given(
    place=st.integers(0, len(PLAN)), length=st.integers(0, 12), text=st.text(alphabet="[]{}=\"'\n .#\\x0é", max_size=6)
)
def test_no_edit_of_a_plan_breaks_the_reader(folder: Path, place: int, length: int, text: str) -> None:
    check(folder, (PLAN[:place] + text + PLAN[place + length :]).encode())


ODD = st.one_of(
    st.none().map(lambda _: {}),
    st.booleans(),
    st.integers() | st.integers(10**400, 10**401),
    st.floats(),
    st.text(max_size=6),
    st.lists(st.text(max_size=3), max_size=2),
    st.just([{}]),
)
DURATIONS = st.builds("{} {}".format, st.integers(-1, 70), st.sampled_from(["s", "ms", "min", "parsecs"]))
TRIGGERS = DURATIONS | st.builds("round {}".format, st.integers(-1, 300))
ROLES = st.sampled_from(["learner-1", "learner-*", "syncer", "learner-9"])
LINKS = st.builds("{}{}{}".format, ROLES, st.sampled_from([" -> ", " <-> ", "->"]), ROLES)


def table(right: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """A table with any of these keys, mostly with values of the right sort, and at times a key that nobody
    knows."""
    values = {key: value | value | value | ODD for key, value in right.items()}
    odd_keys = st.dictionaries(st.text(max_size=5), ODD, max_size=1)
    return st.builds(lambda known, odd: known | odd, st.fixed_dictionaries({}, optional=values), st.just({}) | odd_keys)


FAULTS = table(
    {
        "name": st.sampled_from(["a", "b", "process.kill-1"]),
        "kind": st.sampled_from([*KINDS, "process.kil"]),
        "on": ROLES | LINKS | st.lists(ROLES | LINKS, max_size=2),
        "at": TRIGGERS,
        "for": DURATIONS,
        "restart-after": DURATIONS,
        "rate": st.sampled_from(["2 Mbit/s", "2 Mbps"]),
        "share": st.sampled_from(["5 %", "101 %"]),
        "messages-max": st.integers(0, 3),
        "order": st.sampled_from(["first", "middle"]),
    }
)
PLANS = table(
    {
        "name": st.just("plan"),
        "about": st.text(max_size=5),
        "target": st.sampled_from(["target.toml", "none.toml", ".", "\0"]),
        "run": table({"seed": st.integers(-1, 5), "steady": DURATIONS, "heal": DURATIONS, "deadline": DURATIONS}),
        "limits": table({"down-max": st.integers(-1, 5), "keep": st.lists(ROLES, max_size=2)}),
        "fault": st.lists(FAULTS, max_size=3),
        "expect": st.lists(table({"probe": st.sampled_from([*PROBES, "los"]), "within": DURATIONS}), max_size=2),
    }
)


def toml_of(values: dict[str, Any]) -> str:
    """The values as a TOML text of one line per key; tables inside are inline."""
    return "".join(f"{quoted(key)} = {value_of(value)}\n" for key, value in values.items())


def value_of(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)} = {value_of(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(value_of, value)) + "]"
    return quoted(value) if isinstance(value, str) else str(value).lower()


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@fuzz
@given(values=PLANS)
def test_no_structure_breaks_the_reader(folder: Path, values: dict[str, Any]) -> None:
    check(folder, toml_of(values).encode("utf-8", "replace"))


def right_faults(count: int) -> Iterator[dict[str, Any]]:
    for index in range(count):
        yield {"kind": "link.odd", "on": "learner-1 -> syncer", "at": f"{index} s", "for": "1 s"}


@fuzz
@given(
    faults=st.lists(FAULTS.filter(lambda fault: "kind" in fault), max_size=1),
    rights=st.integers(0, 3),
    limits=st.fixed_dictionaries({}, optional={"down-max": st.integers(0, 4), "keep": st.just(["syncer"])}),
)
def test_nearly_right_plans_are_read_or_refused(
    folder: Path, faults: list[dict[str, Any]], rights: int, limits: dict[str, Any]
) -> None:
    values = {"name": "n", "target": "target.toml", "limits": limits, "fault": [*right_faults(rights), *faults]}
    plan = check(folder, toml_of(values).encode("utf-8", "replace"))
    assert plan is not None or faults, "right faults alone are a right plan"


@fuzz
@given(
    place=st.integers(0, len(TARGET)),
    length=st.integers(0, 12),
    text=st.text(alphabet="[]{}=\"'\n .#\\*0é", max_size=6),
)
def test_no_edit_of_a_target_breaks_the_reader(folder: Path, place: int, length: int, text: str) -> None:
    path = folder / "edited.toml"
    content = (TARGET[:place] + text + TARGET[place + length :]).encode()
    path.write_bytes(content)
    try:
        read_target(path)
    except PlanError as error:
        check_problems(error, content)
