"""`python -m trainer` without its roles: what it refuses before it starts any, and when it stops following them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tests.trainer.harness import toy_config
from trainer import launch, replay, shell_syncer
from trainer.__main__ import _options, main
from trainer.config import Config
from trainer.durable import DurableError, Store, read_run
from trainer.fragments import fragments_of
from trainer.options import RoleOptions

POLLS_MAX = 50


class FakeProcess:
    """A process that has ended with `code`, or never ends (None); a follower that polls it for ever is caught."""

    def __init__(self, code: int | None) -> None:
        self.returncode, self._polls = code, 0

    def poll(self) -> int | None:
        self._polls += 1
        assert self._polls < POLLS_MAX, "it would be followed for ever"
        return self.returncode


def a_run(folder: Path, codes: dict[str, int | None], merges: int = 0) -> launch.Run:
    run = launch.Run(folder, toy_config(), seed=1)
    for role in run.roles:
        run.processes[role] = FakeProcess(codes.get(role))  # type: ignore[assignment]
        run.starts[role] = 1
        (folder / "logs" / f"{role}.1.log").write_text(f"last words of {role}")
    line = msgspec.json.encode({"t": 1.0, "kind": "merge"}) + b"\n"
    run.tape("syncer").write_bytes(merges * line)
    return run


def followed(run: launch.Run) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=200)
    code, _ = launch._follow(run, console)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


def test_a_launcher_ends_with_1_when_too_few_learners_are_left_for_a_quorum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "POLL_S", 0.0)
    code, said = followed(a_run(tmp_path, {"learner-0": 1, "learner-1": 2, "learner-3": 1}))
    assert code == 1
    assert "1 learners are left" in said
    assert "last words of learner-1" in said


def test_a_launcher_waits_for_the_syncer_when_learners_have_left_after_the_last_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "POLL_S", 0.0)
    done = a_run(tmp_path, {f"learner-{index}": 0 for index in range(4)}, merges=40)
    with pytest.raises(AssertionError, match="for ever"):
        followed(done)


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a role was started")

    monkeypatch.setattr(launch.Run, "start", refuse)


@pytest.mark.usefixtures("no_process")
def test_too_little_text_is_said_before_any_role_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tiny.txt").write_text("tiny")
    assert main(["--corpus", str(tmp_path / "tiny.txt"), "--out", str(tmp_path / "out")]) == 2
    assert "too few for 4 learners" in capsys.readouterr().err


@pytest.mark.usefixtures("no_process")
def test_a_folder_that_holds_a_run_already_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_text("")
    assert main(["--out", str(tmp_path)]) == 2
    assert "name one that does not exist yet" in capsys.readouterr().err


# ---- options


def test_options_before_a_role_count_like_those_behind_it() -> None:
    role = ["syncer", "--state", "state"]
    before = _options(["--seed", "7", "--config", "a.toml", "--set", "task.batch=2", "--log-level", "info", *role])
    behind = _options([*role, "--seed", "7", "--config", "a.toml", "--set", "task.batch=2", "--log-level", "info"])
    assert before == behind
    both = _options(["--set", "task.batch=2", "--seed", "7", *role, "--set", "task.steps=16", "--seed", "8"])
    assert (both.set, both.seed) == (["task.batch=2", "task.steps=16"], 8)
    assert _options(role).seed == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--seed", "-1"], "'-1' is no seed: expected a whole number"),
        (["--out", "run", "syncer", "--state", "state"], "--out is for a whole run"),
        (["--seed", "3", "replay", "--run", "run"], "--seed: replay takes everything from the run's run.json"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(("learner", "index"), [("learner-0", 1), ("learner-4", 4), ("learner--1", -1), ("anna", 0)])
def test_a_learner_whose_name_and_index_do_not_belong_together_is_wrong_usage(
    learner: str, index: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["learner", f"--learner={learner}", f"--index={index}", "--state", str(tmp_path)]) == 2
    assert "expected learner-N with index N, 0 to 3" in capsys.readouterr().err


# ---- the note of a run


def options(folder: Path, config: Config | None = None, seed: int = 1) -> RoleOptions:
    return RoleOptions(config or toy_config(), folder, None, seed, "run")


def test_a_syncer_goes_on_only_with_the_seed_and_the_configuration_of_its_run(tmp_path: Path) -> None:
    shell_syncer.note_or_check_run(options(tmp_path))
    shell_syncer.note_or_check_run(options(tmp_path))
    assert read_run(tmp_path).config == toy_config()
    with pytest.raises(DurableError, match="began with seed 1, the syncer is started with 2"):
        shell_syncer.note_or_check_run(options(tmp_path, seed=2))
    with pytest.raises(DurableError, match="began with configuration"):
        shell_syncer.note_or_check_run(options(tmp_path, toy_config(K=1)))
    (tmp_path / "run.json").write_bytes(b"")
    with pytest.raises(DurableError, match=r"run\.json: damaged"):
        shell_syncer.note_or_check_run(options(tmp_path))


def test_a_replay_that_ends_in_another_digest_names_the_fragment_and_returns_1(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = toy_config()
    shell_syncer.note_or_check_run(options(tmp_path))
    fragments = fragments_of(config.model, config.protocol.P)
    store = Store(tmp_path, fragments, 0)
    state, _ = store.load(1)
    assert replay.run(tmp_path, out=io.StringIO()) == 0
    store._write_fragment(2, 0, state.theta[2] + 1, state.momentum[2], {}, None)
    assert replay.run(tmp_path, out=io.StringIO()) == 1
    assert "fragment 2, version 0" in caplog.text
