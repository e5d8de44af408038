"""Toy runs that share one reports folder, so that they share one control run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.toy.runs import ROUNDS, ToyRun, plan_text, start_run

Start = Callable[..., ToyRun]


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Deep on purpose: a unix socket's address may have 108 bytes only."""
    folder = tmp_path_factory.mktemp("reports") / ("deep" * 20)
    folder.mkdir()
    plan = folder.parent / "control.toml"
    plan.write_text(plan_text("", name="control-only"))
    start_run(plan, folder, "control-only", rounds=50).end()
    assert len(list((folder / "control").iterdir())) == 1
    return folder


_numbers = itertools.count()


@pytest.fixture
def start(reports: Path, tmp_path: Path) -> Iterator[Start]:
    """start(faults) -> ToyRun, whose processes are ended after the test whatever it did."""
    runs: list[ToyRun] = []

    def begin(faults: str, *options: str, rounds: int = ROUNDS, **settings: object) -> ToyRun:
        name = f"toy{next(_numbers)}"
        plan = tmp_path / f"{name}.toml"
        plan.write_text(plan_text(faults, name=name, **settings))  # type: ignore[arg-type]
        run = start_run(plan, reports, name, *options, rounds=rounds)
        runs.append(run)
        return run

    yield begin
    for run in runs:
        run.runner.kill()
        run.runner.wait()
