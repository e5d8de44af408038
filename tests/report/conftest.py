"""The sample run and its summary, made once for all tests of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaoskit.journal import History, history
from chaoskit.report import Summary, summarise
from tests.report.sample_run import FIDELITY, sample_results, write_sample_run


@pytest.fixture(scope="session")
def sample_history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return history(write_sample_run(tmp_path_factory.mktemp("sample") / "run"))


@pytest.fixture(scope="session")
def control_history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return history(write_sample_run(tmp_path_factory.mktemp("sample") / "control", chaos=False))


@pytest.fixture(scope="session")
def summary(sample_history: History, control_history: History) -> Summary:
    return summarise(
        sample_history,
        control_history,
        sample_results(),
        command="chaoskit run faults/kill-and-rejoin.toml --seed 7",
        fidelity=FIDELITY,
        versions={"python": "3.11.9"},
        about="One learner is killed and comes back.",
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder
