"""The view over the files of a run: what a terminal shows, and what a log shows."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from chaoskit.daemon.spec import SPEC, RunSpec
from chaoskit.live import LiveView
from chaoskit.live.view import DRAW_INTERVAL_S, control_losses
from tests.report.sample_run import STEADY_T, TRAIN_S, write_sample_run


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def console(*, terminal: bool) -> Console:
    return Console(
        file=io.StringIO(), width=100, height=40, force_terminal=terminal, color_system="standard" if terminal else None
    )


def output(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample_run(tmp_path_factory.mktemp("live") / "run")


def test_without_a_terminal_every_event_is_a_plain_line_in_order(sample: Path) -> None:
    shown = console(terminal=False)
    with LiveView(sample, shown, clock=Clock(STEADY_T + TRAIN_S)):
        pass
    text = output(shown)
    assert "\x1b" not in text
    lines = text.splitlines()
    times = [float(line.split(" s ")[0]) for line in lines]
    assert times == sorted(times)
    expected = [
        "phase: steady",
        "crash#1: process.kill on learner-1 (restart 2 s)",
        "learner-1: ended, signal 9, by crash#1",
        "learner-1: trains again, as incarnation 2",
        "freeze#1: undone, state running, resumed after 0.8 ms",
        "phase: heal",
        "end: finished, all rounds done",
    ]
    assert [line for line in lines if any(line.endswith(wanted) for wanted in expected)] == [
        line for wanted in expected for line in lines if line.endswith(wanted)
    ]
    assert len([line for line in lines if "loss" in line]) < 10


def test_nothing_is_printed_twice(sample: Path) -> None:
    shown, clock = console(terminal=False), Clock(STEADY_T)
    with LiveView(sample, shown, clock=clock) as view:
        view.refresh()
        before = output(shown)
        clock.now += 10
        view.refresh()
    assert output(shown) == before


def test_in_a_terminal_the_last_picture_stays(sample: Path) -> None:
    shown = console(terminal=True)
    with LiveView(sample, shown, 413, clock=Clock(STEADY_T + TRAIN_S)) as view:
        view.refresh()
    text = output(shown)
    assert "\x1b[" in text
    last = Text.from_ansi(text.rsplit("\x1b[2K", 1)[-1]).plain
    assert last.startswith("kill-and-rejoin  chaos run  seed 7")
    assert "round 413 of 413" in last
    assert text.rstrip().endswith("\x1b[?25h")
    assert view.state.round == 413


def test_refresh_does_nothing_before_its_time(tmp_path: Path) -> None:
    shown, clock = console(terminal=True), Clock(100.0)
    with LiveView(tmp_path, shown, clock=clock) as view:
        view.refresh()
        drawn = len(output(shown))
        clock.now += DRAW_INTERVAL_S * 0.9
        view.refresh()
        assert len(output(shown)) == drawn
        clock.now += DRAW_INTERVAL_S * 0.2
        view.refresh()
        assert len(output(shown)) > drawn


def test_a_folder_that_is_still_empty_and_files_that_come_later_are_followed(tmp_path: Path) -> None:
    shown, clock = console(terminal=False), Clock(0.0)
    with LiveView(tmp_path, shown, clock=clock) as view:
        view.refresh()
        (tmp_path / "tape").mkdir()
        tape = tmp_path / "tape" / "learner-0.2.jsonl"
        tape.write_text(json.dumps({"t": 5.0, "kind": "ready", "incarnation": 2}) + "\n" + '{"t": 6.0, "kind": "dis')
        clock.now += 1
        view.refresh()
        assert output(shown).endswith("learner-0: trains again, as incarnation 2\n")
        with tape.open("a") as file:
            file.write('connect", "why": "idle"}\n')
        clock.now += 1
        view.refresh()
    assert output(shown).splitlines()[-1].endswith("learner-0: connection lost, idle")


def test_the_terminal_is_given_back_when_the_run_fails(sample: Path) -> None:
    shown = console(terminal=True)
    with pytest.raises(RuntimeError, match="boom"), LiveView(sample, shown, clock=Clock(STEADY_T)):
        raise RuntimeError("boom")
    assert output(shown).rstrip().endswith("\x1b[?25h")


def test_the_control_runs_loss_is_found_through_the_run_folder(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    assert control_losses(run_dir) == {}
    write_sample_run(tmp_path / "control", chaos=False)
    spec = RunSpec(
        plan="p", plan_sha="", about="", seed=7, with_faults=True, control="../control", command="c", expects=[]
    )
    spec.write(run_dir)
    assert (run_dir / SPEC).exists()
    losses = control_losses(run_dir)
    assert max(losses) > 400
    assert losses[max(losses)] < losses[min(losses)]
