"""The JSON Schema of plans: made from the tables of the reader, so what it says must be what the reader
does."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chaoskit.plan import plan_schema
from chaoskit.plans import catalogue, load
from tests.plan.plan_samples import KINDS, PLAN, PROBES

SCHEMA = plan_schema(KINDS, PROBES)


def problems(text: str) -> list[str]:
    errors = sorted(Draft202012Validator(SCHEMA).iter_errors(tomllib.loads(text)), key=str)
    return [f"{error.json_path}: {error.message}" for error in errors]


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_the_short_plan_fits() -> None:
    assert problems(PLAN) == []


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ('name = "first"', "", "$: 'name' is a required property"),
        ("keep", "kep", "$.limits: Additional properties are not allowed ('kep' was unexpected)"),
        ("process.kill", "process.kil", "$.fault[0].kind: 'process.kil' is not one of"),
        ('"round 20"', '"round 0"', "$.fault[0].at: 'round 0' does not match"),
        ('at = "round 20"', 'at = "1 s"\nrestart = "1 s"', "$.fault[0]: Additional properties are not allowed"),
        ('at = "round 20"', 'at = "1 s"\nrestart-after = 1', "$.fault[0]['restart-after']: 1 is not of type 'string'"),
        ("process.kill", "process.pause", "$.fault[0]: 'for' is a required property"),
    ],
)
def test_what_the_reader_refuses_of_one_key_the_schema_refuses(old: str, new: str, place: str) -> None:
    (problem,) = problems(PLAN.replace(old, new))
    assert problem.startswith(place)


def test_every_key_of_the_catalogue_is_described() -> None:
    fault: dict[str, Any] = SCHEMA["$defs"]["link.odd"]["properties"]
    assert {"share", "messages-max", "order", "burst", "name", "kind", "on", "at", "for"} == set(fault)
    assert fault["order"]["enum"] == ["first", "last"]


def test_every_plan_of_the_house_fits_the_schema_and_is_read() -> None:
    kinds, probes = catalogue()
    validator = Draft202012Validator(plan_schema(kinds, probes))
    paths = sorted(Path(__file__).parents[2].glob("faults/*.toml"))
    assert paths
    for path in paths:
        assert [error.message for error in validator.iter_errors(tomllib.loads(path.read_text()))] == []
        plan, target = load(path)
        assert plan.faults
        assert target.roles
