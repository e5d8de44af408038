"""docs/plans.md says what the reader does: its plan is read, its tables are the catalogue's, its errors are
real."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from chaoskit.errors import PlanError
from chaoskit.faults import FAULTS
from chaoskit.plan import read_target
from chaoskit.plan.units import UNITS
from chaoskit.plans import load

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(?:toml)?\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def faults_folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "faults" / "targets", tmp_path / "targets")
    return tmp_path


def test_the_first_plan_is_read_and_has_ten_lines(faults_folder: Path) -> None:
    path = faults_folder / "first.toml"
    path.write_text(BLOCKS[0])
    plan, _ = load(path)
    assert plan.faults[0].targets == ("learner-2",)
    assert BLOCKS[0].count("\n") <= 10


def test_the_expectation_is_read(faults_folder: Path) -> None:
    path = faults_folder / "first.toml"
    path.write_text(BLOCKS[0] + BLOCKS[1])
    assert load(path)[0].expects[0].tolerance["within_share"] == pytest.approx(0.06)


def test_the_errors_are_those_of_the_reader(faults_folder: Path) -> None:
    path = faults_folder / "first.toml"
    path.write_text(BLOCKS[0].replace("learner-2", "learner-9").replace("round 20", "20"))
    with pytest.raises(PlanError) as refused:
        load(path)
    assert [problem.replace(f"{faults_folder}/", "faults/") for problem in refused.value.problems] == BLOCKS[
        2
    ].splitlines()


def test_the_target_is_read(tmp_path: Path) -> None:
    path = tmp_path / "target.toml"
    path.write_text(BLOCKS[3] + '[[role]]\nname = "syncer"\ncommand = ["x"]\n')
    assert read_target(path).link_names()[0] == "learner-0 -> syncer"


def test_every_kind_and_every_unit_is_on_the_page() -> None:
    for kind, fault in FAULTS.items():
        (row,) = re.findall(rf"^\| `{re.escape(kind)}` \| {fault.acts_on}s \|(.*)\|$", PAGE, re.MULTILINE)
        assert re.findall(r"`([a-z-]+)` \(", row) == [setting.name for setting in fault.settings]
    for dimension, units in UNITS.items():
        (row,) = re.findall(rf"^\| {dimension} \|(.*)\|$", PAGE, re.MULTILINE)
        assert re.findall(r"`([^`]+)`", row) == list(units)
