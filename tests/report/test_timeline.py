"""Lanes, windows, curves and rejoins as functions of a history."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.journal import History
from chaoskit.report.model import Curve
from chaoskit.report.timeline import (
    CURVE_POINTS_MAX,
    RATE_BINS_MAX,
    clock_of,
    curve_of,
    gap_of,
    interpolated,
    lanes_of,
    links_of,
    marks_of,
    rejoins_of,
    thinned,
    windows_of,
)
from tests.report.histories import END, HEADER, Told, injected, made_of


def curve(merges: list[int], loss: list[float]) -> Curve:
    return Curve("r", tuple(float(count) for count in merges), tuple(merges), tuple(loss), 0, (), ())


def states(history: History, role: str) -> list[tuple[str, int]]:
    lane = next(lane for lane in lanes_of(history, clock_of(history)) if lane.role == role)
    return [(segment.state, segment.incarnation) for segment in lane.segments]


def test_the_clock_begins_with_the_chaos_phase_and_ends_with_the_stop(sample_history: History) -> None:
    clock = clock_of(sample_history)
    assert clock.at(clock.zero_t) == 0.0
    assert next(start for phase, start, _ in sample_history.phases if phase == "chaos") == clock.zero_t
    assert clock.end_s == 62.0
    assert -1.0 < clock.start_s < 0.0


def test_a_killed_learner_is_down_then_joining_then_up_as_a_new_incarnation(sample_history: History) -> None:
    assert states(sample_history, "learner-1")[-5:] == [
        ("up", 1),
        ("down", 1),
        ("joining", 1),
        ("joining", 2),
        ("up", 2),
    ]


def test_a_paused_learner_is_paused_and_keeps_its_incarnation(sample_history: History) -> None:
    assert states(sample_history, "learner-2")[-3:] == [("up", 1), ("paused", 1), ("up", 1)]


def test_a_learner_that_died_in_its_pause_is_down_and_not_paused() -> None:
    told: list[Told] = [
        (1.0, "learner-0", "start", {"role": "learner-0"}),
        (2.0, "learner-0", "ready", {"incarnation": 1}),
        (10.0, "daemon", "exit", {"role": "learner-0", "signal": 9, "expected": False}),
    ]
    history = made_of(HEADER, *told, *injected(1, 5, 20, fault="process.pause"), END)
    assert states(history, "learner-0") == [("up", 1), ("paused", 1), ("down", 1)]


def test_learners_come_first_and_each_has_its_step_rate(sample_history: History) -> None:
    lanes = lanes_of(sample_history, clock_of(sample_history))
    assert [lane.role for lane in lanes] == [*(f"learner-{n}" for n in range(4)), "evaluator", "syncer"]
    assert all(0 < len(lane.rate) <= RATE_BINS_MAX for lane in lanes[:4])
    during_pause = [rate for t, rate in lanes[2].rate if 32 < t < 36.5]
    assert during_pause != []
    assert max(during_pause) == 0.0


def test_a_role_that_was_told_to_stop_is_not_shown_as_down() -> None:
    spawn = (1.0, "daemon", "spawn", {"role": "syncer", "start": 1})
    up = (2.0, "daemon", "up", {"role": "syncer", "start": 1})
    done = (50.0, "daemon", "exit", {"role": "syncer", "start": 1, "code": 0, "expected": True})
    assert states(made_of(HEADER, spawn, up, done, END), "syncer") == [("joining", 1), ("up", 1)]
    died = (50.0, "daemon", "exit", {"role": "syncer", "start": 1, "code": 1, "expected": False})
    assert states(made_of(HEADER, spawn, up, died, END), "syncer")[-1] == ("down", 1)


def test_a_lost_connection_shows_as_joining_until_ready() -> None:
    told: list[Told] = [
        (1.0, "learner-0", "start", {"role": "learner-0"}),
        (2.0, "learner-0", "welcome", {"incarnation": 1}),
        (3.0, "learner-0", "ready", {"incarnation": 1}),
        (10.0, "learner-0", "disconnect", {"incarnation": 1, "why": "idle"}),
        (11.0, "learner-0", "welcome", {"incarnation": 2}),
        (12.0, "learner-0", "ready", {"incarnation": 2}),
    ]
    assert states(made_of(HEADER, *told, END), "learner-0")[1:] == [
        ("up", 1),
        ("joining", 1),
        ("joining", 2),
        ("up", 2),
    ]


def test_a_window_that_was_never_closed_lasts_to_the_end() -> None:
    history = made_of(HEADER, *injected(1, 5, None), END)
    (window,) = windows_of(history, clock_of(history))
    assert (window.start_s, window.end_s) == (5.0, 99.0)
    assert [mark.kind for mark in marks_of([window], [], history)] == ["inject"]


def test_an_injection_that_was_skipped_has_no_window() -> None:
    history = made_of(HEADER, (5.0, "daemon", "skipped", {"injection": "f1#1", "why": "too late"}), END)
    assert windows_of(history, clock_of(history)) == ()


def test_a_link_fault_has_a_lane_with_its_settings(sample_history: History) -> None:
    (lane,) = links_of(sample_history, clock_of(sample_history))
    assert lane.link == "learner-3 → syncer"
    assert [(span.fault, span.text) for span in lane.spans] == [("link.bandwidth", "rate 2 Mbit/s")]


def test_a_rejoin_is_told_from_the_loss_to_the_first_merge(sample_history: History) -> None:
    (rejoin,) = rejoins_of(sample_history, clock_of(sample_history))
    assert (rejoin.learner, rejoin.incarnation, rejoin.cause) == ("learner-1", 2, "crash#1 (process.kill)")
    steps = [rejoin.restart_after_s, rejoin.join_after_s, rejoin.ready_after_s, rejoin.merge_after_s]
    assert all(step is not None for step in steps)
    assert steps == sorted(steps, key=lambda step: step or 0.0)
    assert sum(rejoin.versions_ready) > sum(rejoin.versions_join) > 0


def test_a_reconnect_without_a_restart_is_a_rejoin_too() -> None:
    told: list[Told] = [
        (2.0, "syncer", "join", {"learner": "learner-0", "incarnation": 1, "versions": [0]}),
        (10.0, "syncer", "leave", {"learner": "learner-0", "incarnation": 1, "why": "idle"}),
        (11.0, "syncer", "join", {"learner": "learner-0", "incarnation": 2, "versions": [4]}),
    ]
    history = made_of(HEADER, *told, END)
    (rejoin,) = rejoins_of(history, clock_of(history))
    assert rejoin.cause == "connection lost: idle"
    assert (rejoin.restart_after_s, rejoin.join_after_s, rejoin.ready_after_s) == (None, 1.0, None)


def test_an_evaluation_that_is_not_finite_is_counted_and_left_out() -> None:
    told: list[Told] = [
        (1.0, "evaluator", "eval", {"merges": 1, "loss": 3.0}),
        (2.0, "evaluator", "eval", {"merges": 2, "loss": None}),
        (3.0, "evaluator", "eval", {"merges": 3, "loss": float("nan")}),
    ]
    history = made_of(HEADER, *told, END)
    found = curve_of(history, "r", clock_of(history))
    assert (found.loss, found.not_finite) == ((3.0,), 2)


def test_the_gap_compares_at_equal_work_and_only_where_both_were_evaluated() -> None:
    found = gap_of(curve([5, 10, 15, 30], [4.0, 3.0, 2.2, 1.0]), curve([10, 20], [3.0, 2.0]))
    assert found == ((10, 0.0), (15, pytest.approx(2.2 / 2.5 - 1, abs=1e-6)))
    assert gap_of(curve([5], [4.0]), None) == ()


@given(st.lists(st.integers(), max_size=900))
def test_thinning_keeps_the_ends_and_the_order(items: list[int]) -> None:
    kept = thinned(items, CURVE_POINTS_MAX)
    assert len(kept) == min(len(items), CURVE_POINTS_MAX)
    assert kept[:1] == items[:1]
    assert kept[-1:] == items[-1:]


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(-5, 5)), min_size=1, max_size=10), st.floats(-5, 55))
def test_interpolation_stays_between_its_neighbours(points: list[tuple[int, float]], x: float) -> None:
    points.sort()
    value = interpolated([x for x, _ in points], [y for _, y in points], x)
    if value is None:
        assert not points[0][0] <= x <= points[-1][0]
    else:
        assert min(y for _, y in points) - 1e-9 <= value <= max(y for _, y in points) + 1e-9


LIFE = st.lists(
    st.tuples(
        st.floats(0, 98, allow_nan=False),
        st.sampled_from(["spawn", "exit", "up", "welcome", "ready", "disconnect"]),
        st.integers(1, 4),
        st.booleans(),
    ),
    max_size=14,
)


@given(LIFE, st.lists(st.tuples(st.floats(0, 90), st.floats(0, 20)), max_size=3))
def test_the_segments_of_a_lane_never_overlap(
    life: list[tuple[float, str, int, bool]], pauses: list[tuple[float, float]]
) -> None:
    told: list[Told] = [(0.0, "learner-0", "start", {"role": "learner-0"})]
    for t, kind, number, expected in life:
        node = "daemon" if kind in ("spawn", "exit", "up") else "learner-0"
        told.append(
            (t, node, kind, {"role": "learner-0", "start": number, "incarnation": number, "expected": expected})
        )
    for n, (start_t, length_s) in enumerate(pauses):
        told += injected(n, start_t, start_t + length_s, fault="process.pause")
    history = made_of(HEADER, *told, END)
    (lane,) = lanes_of(history, clock_of(history))
    assert all(segment.start_s < segment.end_s <= 99.0 for segment in lane.segments)
    assert all(before.end_s <= after.start_s for before, after in pairwise(lane.segments))
