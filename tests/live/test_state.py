"""What the live view knows of a run, record by record and without a terminal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.live.draw import clock_text, draw, nearest_before, sparkline
from chaoskit.live.state import EVENTS_KEPT_MAX, RunState


def told(state: RunState, t: float, kind: str, role: str = "", **fields: Any) -> RunState:
    state.apply({"t": t, "kind": kind, **fields}, role)
    return state


@pytest.fixture
def state() -> RunState:
    """A run whose learner-0 trains as incarnation 1."""
    begun = RunState()
    told(begun, 0.0, "journal", run="r", plan="kill-and-rejoin", seed=7, with_faults=True)
    begun.apply({"t": 1.0, "kind": "spawn", "role": "learner-0", "start": 1, "cause": "start"})
    begun.apply({"t": 10.0, "kind": "phase", "phase": "steady"})
    begun.apply({"t": 9.0, "kind": "welcome", "incarnation": 1, "versions": [0]}, "learner-0")
    begun.apply({"t": 9.5, "kind": "ready", "incarnation": 1, "versions": [0]}, "learner-0")
    return begun


def intent(injection: str, fault: str, target: str, **settings: Any) -> dict[str, Any]:
    return {"injection": injection, "fault": fault, "targets": [target], "settings": settings}


def texts(state: RunState) -> list[str]:
    return [event.text for event in state.events]


def picture(state: RunState, now: float = 30.0, width: int = 100, **rest: Any) -> str:
    return draw(state, now, width, **rest).plain


def test_a_learner_is_up_only_when_it_is_ready(state: RunState) -> None:
    state.apply({"t": 11.0, "kind": "spawn", "role": "learner-1", "start": 1, "cause": "start"})
    assert state.roles["learner-1"].shown() == "joining"
    state.apply({"t": 12.0, "kind": "welcome", "incarnation": 1}, "learner-1")
    state.apply({"t": 12.0, "kind": "up", "role": "learner-1", "start": 1})
    assert state.roles["learner-1"].shown() == "joining"
    state.apply({"t": 13.0, "kind": "ready", "incarnation": 1}, "learner-1")
    assert state.roles["learner-1"].shown() == "up"


def test_another_role_is_up_when_the_daemon_says_so(state: RunState) -> None:
    state.apply({"t": 11.0, "kind": "spawn", "role": "syncer", "start": 1, "cause": "start"})
    state.apply({"t": 12.0, "kind": "up", "role": "syncer", "start": 1})
    assert (state.roles["syncer"].shown(), state.roles["syncer"].incarnation) == ("up", 1)


def test_a_killed_learner_goes_down_and_comes_back_as_a_new_incarnation(state: RunState) -> None:
    killed = {"role": "learner-0", "signal": 9, "code": None, "expected": True, "injection": "crash#1"}
    state.apply({"t": 20.0, "kind": "exit", **killed})
    assert state.roles["learner-0"].shown() == "down"
    state.apply({"t": 22.0, "kind": "spawn", "role": "learner-0", "start": 2, "cause": "restart", "pid": 77})
    state.apply({"t": 25.0, "kind": "welcome", "incarnation": 2}, "learner-0")
    state.apply({"t": 26.0, "kind": "ready", "incarnation": 2}, "learner-0")
    assert (state.roles["learner-0"].shown(), state.roles["learner-0"].incarnation) == ("up", 2)
    assert texts(state)[-3:] == [
        "learner-0: ended, signal 9, by crash#1",
        "learner-0: started again, process 77",
        "learner-0: trains again, as incarnation 2",
    ]


def test_a_role_that_dies_outside_any_fault_is_said_loudly(state: RunState) -> None:
    state.apply({"t": 20.0, "kind": "exit", "role": "learner-0", "code": 1, "signal": None, "expected": False})
    assert texts(state)[-1] == "learner-0: ended, exit code 1, outside any fault"
    assert state.events[-1].style == "bold red"


def test_a_role_that_was_done_is_no_news(state: RunState) -> None:
    before = state.event_count
    state.apply({"t": 20.0, "kind": "exit", "role": "learner-0", "code": 0, "signal": None, "expected": True})
    assert state.roles["learner-0"].shown() == "ended"
    assert state.event_count == before


def test_a_pause_lies_over_the_state_until_it_is_undone(state: RunState) -> None:
    state.apply({"t": 20.0, "kind": "intent", **intent("freeze#1", "process.pause", "learner-0", hold_s=6.0)})
    assert state.roles["learner-0"].shown() == "up"
    state.apply({"t": 20.1, "kind": "applied", "injection": "freeze#1"})
    assert state.roles["learner-0"].shown() == "paused"
    state.apply({"t": 26.0, "kind": "undone", "injection": "freeze#1", "clean": True})
    assert state.roles["learner-0"].shown() == "up"


def test_an_active_fault_shows_its_target_and_the_time_that_is_left(state: RunState) -> None:
    state.apply(
        {
            "t": 20.0,
            "kind": "intent",
            **intent("slow#1", "link.bandwidth", "learner-0->syncer", rate_mbit_s=2.0, hold_s=10),
        }
    )
    assert "none active" in picture(state)
    state.apply({"t": 21.0, "kind": "applied", "injection": "slow#1"})
    assert "link.bandwidth on learner-0 → syncer  rate 2 Mbit/s  6.0 s left" in picture(state, now=25.0)
    assert "being undone" in picture(state, now=31.5)
    state.apply({"t": 32.0, "kind": "undone", "injection": "slow#1", "clean": True})
    assert "none active" in picture(state)


def test_a_fault_without_proof_and_an_undo_without_proof_are_said_in_capitals(state: RunState) -> None:
    state.apply({"t": 20.0, "kind": "landed", "injection": "f#1", "landed": False, "evidence": {"gone_ms": 0.4}})
    state.apply({"t": 21.0, "kind": "undone", "injection": "f#1", "clean": False})
    state.apply({"t": 22.0, "kind": "skipped", "injection": "g#1", "why": "round 900 never came"})
    assert texts(state)[-3:] == [
        "f#1: DID NOT LAND, gone 0.4 ms",
        "f#1: UNDO NOT VERIFIED",
        "g#1: not injected, round 900 never came",
    ]


def test_the_step_rate_is_that_of_the_last_steps_and_falls_when_none_comes(state: RunState) -> None:
    for number in range(21):
        state.apply({"t": 10 + number / 10, "kind": "step", "step": number, "loss": 2.5}, "learner-0")
    lane = state.roles["learner-0"]
    assert lane.rate(12.0) == pytest.approx(10.0)
    assert lane.rate(20.0) == pytest.approx(2.0)
    assert "step     20   10.0/s" in picture(state, now=12.0)
    assert "loss 2.5" in picture(state)


def test_a_learner_is_behind_by_its_oldest_fragment(state: RunState) -> None:
    assert state.lag(state.roles["learner-0"]) is None
    for fragment in (0, 1):
        state.apply({"t": 11.0, "kind": "adopt", "fragment": fragment, "version": 4}, "learner-0")
    state.apply({"t": 12.0, "kind": "merge", "fragment": 1, "version": 7}, "syncer")
    assert state.lag(state.roles["learner-0"]) == 3
    assert "behind 3" in picture(state)


def test_the_head_tells_plan_phase_time_and_progress(state: RunState) -> None:
    told(state, 11.0, "round", "syncer", round=25, fragment=0, attempt=1)
    state.total_rounds = 100
    first, second, *_ = picture(state, now=75.0).splitlines()
    assert first == "kill-and-rejoin  chaos run  seed 7   steady   01:15"
    assert second.startswith("round 25 of 100  ")
    assert "25%" in second


def test_a_control_run_is_called_so() -> None:
    state = told(RunState(), 0.0, "journal", run="c", plan="p", seed=1, with_faults=False)
    assert "control run, no faults" in picture(state)


def test_the_loss_is_shown_beside_that_of_the_control_run(state: RunState) -> None:
    assert "not evaluated yet" in picture(state)
    told(state, 12.0, "eval", "evaluator", merges=8, loss=3.0)
    told(state, 13.0, "eval", "evaluator", merges=16, loss=2.02)
    shown = picture(state, control={8: 3.0, 14: 2.0, 99: 1.0})
    assert "2.0200  █▁  after 16 merges   control run 2.0000 (+1.0 %)" in shown


def test_below_quorum_is_shown_until_the_next_merge(state: RunState) -> None:
    told(state, 12.0, "below-quorum", "syncer", ready=1, quorum=2)
    assert "below quorum" in picture(state).splitlines()[1]
    told(state, 13.0, "merge", "syncer", fragment=0, version=1)
    assert "below quorum" not in picture(state).splitlines()[1]


def test_a_control_code_in_a_name_never_reaches_the_terminal(state: RunState) -> None:
    state.apply({"t": 12.0, "kind": "spawn", "role": "a\x1b[31m\nb", "start": 1, "cause": "restart", "pid": 1})
    state.apply({"t": 12.0, "kind": "intent", **intent("x#1", "link.x", "a\x1b]0;t\x07", why="\x1b[2J")})
    state.apply({"t": 12.0, "kind": "applied", "injection": "x#1"})
    assert all(letter.isprintable() or letter == "\n" for letter in picture(state))


JSON = (
    st.none()
    | st.booleans()
    | st.integers(-5, 2**40)
    | st.floats()
    | st.text(max_size=8)
    | st.lists(st.integers(), max_size=2)
)
FIELDS = ["incarnation", "step", "loss", "fragment", "version", "merges", "round", "rounds", "why", "ready", "quorum"]
RECORDS = st.lists(
    st.tuples(
        st.floats(0, 1e6, allow_nan=False),
        st.sampled_from(
            [
                "welcome",
                "ready",
                "step",
                "adopt",
                "disconnect",
                "merge",
                "eval",
                "round",
                "config",
                "new",
                "below-quorum",
            ]
        ),
        st.sampled_from(["learner-0", "syncer", ""]),
        st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5),
    ),
    max_size=40,
)


@given(RECORDS, st.integers(20, 160))
def test_whatever_a_tape_holds_the_picture_fits_the_terminal(
    records: list[tuple[float, str, str, dict[str, Any]]], width: int
) -> None:
    state = RunState()
    for t, kind, role, fields in records:
        state.apply({"t": t, "kind": kind, **fields}, role)
    assert all(len(line) <= width for line in picture(state, 1e6, width, control={1: 1.0}).splitlines())
    assert len(state.events) <= EVENTS_KEPT_MAX


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=700))
def test_a_sparkline_has_a_bounded_width_and_ends_with_the_newest(values: list[float]) -> None:
    line = sparkline(values)
    assert len(line) == min(len(values), 32)
    if values[-1] == max(values) > min(values):
        assert line[-1] == "█"


def test_small_words() -> None:
    assert [clock_text(value) for value in (5.9, 65, 3661)] == ["00:05", "01:05", "1:01:01"]
    assert nearest_before({8: 1.0, 16: 2.0}, 4) is None
