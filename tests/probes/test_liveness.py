"""What liveness may demand, and when it may not."""

from __future__ import annotations

from itertools import pairwise

import pytest

from chaoskit.journal import History
from chaoskit.plan import Expect
from chaoskit.probes import ProbeResult, Verdict, judge
from chaoskit.probes.rejoin import rejoins
from chaoskit.probes.touch import merge_patience_s, touches
from tests.probes import defects
from tests.probes.histories import Fault, Run, make_run


def result(run: Run, probe: str, **tolerance: float) -> ProbeResult:
    expects = [Expect(probe, tolerance, line=None)] if tolerance else []
    return next(r for r in judge(run.history(), None, expects) if r.probe == probe)


def cut_at(run: Run, end_s: float) -> None:
    """Training ends by itself at this time."""
    stops = run.of("stop")
    run.drop([line for line in run.lines if line.t > end_s and line not in stops and line.kind != "phase"])
    for stop in stops:
        stop.t = end_s


# --- progress


def test_a_heal_too_short_to_tell_a_stall_from_a_pause_is_unknown() -> None:
    run = defects.correct_run()
    heal = run.of("phase", phase="heal")[0]
    run.drop([merge for merge in run.of("merge", fragment=1) if merge.t > heal.t])
    run.drop(run.of("stop"))
    assert result(run, "progress").verdict is Verdict.UNKNOWN
    assert result(run, "progress", allowance_s=0.1).verdict is Verdict.FAIL


def test_training_that_ends_by_itself_soon_after_the_heal_has_made_its_progress() -> None:
    run = defects.correct_run()
    heal = run.of("phase", phase="heal")[0]
    first = next(merge for merge in run.of("merge") if merge.t > heal.t)
    cut_at(run, first.t + 0.01)
    assert result(run, "progress").verdict is Verdict.PASS


def test_training_that_ends_before_the_heal_proves_no_progress() -> None:
    run = defects.correct_run()
    cut_at(run, run.of("phase", phase="heal")[0].t - 0.01)
    assert result(run, "progress").verdict is Verdict.UNKNOWN


def test_a_run_without_a_heal_is_not_judged_for_progress() -> None:
    run = defects.correct_run()
    run.drop(run.of("phase", phase="heal"))
    assert result(run, "progress").verdict is Verdict.NOT_RUN


@pytest.mark.parametrize("away_s", [15.0, 25.0])
def test_learners_that_come_back_after_the_heal_began_get_their_time(away_s: float) -> None:
    """All are down as the heal begins. Progress is asked for once they are back, at the latest after T_j."""
    run = make_run(faults=[Fault("kill", m, 0, rounds=3) for m in range(4)], rounds=40, quorum=2)
    spawned_s = run.of("spawn", cause="restart")[0].t
    run.of("phase", phase="heal")[0].t = spawned_s - 0.01
    for line in run.lines:
        if line.t > spawned_s:
            line.t += away_s
    assert result(run, "progress").verdict is Verdict.PASS
    assert result(run, "progress", rejoin_s=1.0).verdict is Verdict.FAIL


def test_no_merge_at_all_is_no_progress() -> None:
    run = defects.correct_run()
    run.drop(run.of("merge"))
    assert result(run, "progress", allowance_s=1.0).verdict is Verdict.FAIL


def test_the_patience_counts_in_the_slowest_learner_s_steps() -> None:
    run = make_run(fragments=3, steps=4)
    history = run.history()
    times = [line.t for line in run.of("step", node="learner-0")]
    step_s = sorted(after - before for before, after in pairwise(times))[len(times) // 2]
    assert merge_patience_s(history, 1.0) == pytest.approx(12 * step_s + 0.05 + 1.0, rel=0.05)


# --- availability


def test_nothing_is_promised_while_every_learner_is_touched() -> None:
    run = make_run(faults=[Fault("slow", m, 0, rounds=10) for m in range(4)], rounds=40, quiet_rounds=0)
    chaos = run.of("phase", phase="chaos")[0]
    chaos.t = run.of("intent")[-1].t + 0.0001
    run.of("phase", phase="heal")[0].t = run.of("undone")[0].t - 0.0001
    assert result(run, "availability").verdict is Verdict.NOT_RUN


def test_a_gap_while_fewer_than_k_learners_are_untouched_is_no_failure() -> None:
    run = make_run(faults=[Fault("pause", m, 0, rounds=3) for m in range(3)], rounds=40, quorum=2)
    intents = run.of("intent")
    start_s, end_s = intents[-1].t, run.of("undone")[0].t
    run.warp(start_s + 0.01, end_s - 0.01, 100.0)
    gap_s = max(after.t - before.t for before, after in pairwise(run.of("merge")))
    found = result(run, "availability")
    assert gap_s > 11.0
    assert found.verdict is Verdict.PASS
    assert found.measured is not None
    assert found.measured < 2.0


def test_a_fault_on_the_syncer_excuses_everybody() -> None:
    run = make_run(faults=[Fault("pause", 0, 0, rounds=3)], rounds=40)
    for line in run.of("intent") + run.of("applied"):
        line.data["targets"] = ["syncer"]
    [touch] = touches(run.history())
    assert touch.learners == {f"learner-{m}" for m in range(4)}
    run.warp(touch.start_s + 0.01, touch.end_s - 0.01, 100.0)
    assert result(run, "availability").verdict is Verdict.PASS


@pytest.mark.parametrize("target", ["learner-1 -> syncer", "syncer -> learner-1", "learner-1"])
def test_a_fault_on_a_link_touches_the_learner_at_its_end(target: str) -> None:
    run = make_run(faults=[Fault("pause", 0, 0, rounds=3)])
    run.of("intent")[0].data["targets"] = [target]
    [touch] = touches(run.history())
    assert touch.learners == {"learner-1"}
    assert touch.direct == ({"learner-1"} if target == "learner-1" else set())


def test_an_injection_that_was_skipped_touches_nobody() -> None:
    run = make_run(faults=[Fault("pause", 0, 0), Fault("pause", 0, 1)])
    assert len(run.of("skipped")) == 1
    assert len(touches(run.history())) == 1


# --- rejoin


def rejoin_of(history: History, learner: str) -> tuple[float | None, ...]:
    [one] = [one for one in rejoins(history) if one.learner == learner]
    return one.lost_s, one.noticed_s, one.restarted_s, one.joined_s, one.ready_s, one.merged_s


def test_a_rejoin_is_told_with_the_time_of_every_stage() -> None:
    run = make_run(faults=[Fault("kill", 2, 0)])
    stages = rejoin_of(run.history(), "learner-2")
    known = [time for time in stages if time is not None]
    assert len(known) == len(stages)
    assert known == sorted(known)
    told = result(run, "rejoin").detail
    for stage in ("learner-2", "noticed", "restarted", "joined", "ready", "merged"):
        assert stage in told


def test_a_learner_killed_again_on_its_way_back_is_judged_by_its_last_return() -> None:
    run = make_run(faults=[Fault("kill", 2, 0)])
    spawn = run.of("spawn", cause="restart")[0]
    exit_again = run.insert_after(spawn, "exit", role="learner-2", start=2, signal=9, expected=True)
    run.insert_after(exit_again, "spawn", role="learner-2", start=3, pid=7, cause="restart")
    first, second = rejoins(run.history())
    assert first.hit_again_s is not None
    assert first.ready_s is None
    assert second.ready_s is not None
    assert result(run, "rejoin").verdict is Verdict.PASS


def test_a_partition_that_lasts_longer_than_the_rejoin_deadline_is_not_the_learner_s_fault() -> None:
    run = make_run(faults=[Fault("cut", 2, 0, rounds=4)])
    start_s, end_s = defects.window(run, "cut")
    run.warp(start_s + 0.01, end_s - 0.01, 100.0)
    assert result(run, "rejoin").verdict is Verdict.PASS
    [one] = rejoins(run.history())
    assert one.ready_s is not None
    assert one.ready_s - one.lost_s > 30.0


def test_learners_are_not_late_for_merges_that_nobody_makes() -> None:
    """learner-2 is back, but the quorum is not: it is in the first merge there is."""
    run = make_run(faults=[Fault("kill", 2, 0, rounds=2), Fault("pause", 1, 0, rounds=6)], quorum=4)
    ready_s = run.of("ready", node="learner-2", incarnation=2)[0].t
    end_s = run.of("undone")[-1].t
    run.warp(ready_s + 0.01, end_s, 20.0)
    [one] = rejoins(run.history())
    assert one.merged_s is not None
    assert one.merged_s - ready_s > 15.0
    assert result(run, "rejoin").verdict is Verdict.PASS


# --- isolation


def test_a_neighbour_that_never_steps_again_stalls() -> None:
    run = make_run(faults=[Fault("pause", 0, 0, rounds=30)], rounds=60)
    start_s, _ = defects.window(run, "pause")
    run.drop([line for line in run.of("step", node="learner-3") if line.t > start_s + 1.0])
    found = result(run, "isolation")
    assert found.verdict is Verdict.FAIL
    assert "learner-3" in found.detail
    assert found.measured == 0.0


def test_a_window_of_seconds_without_one_step_is_a_stall_though_a_short_one() -> None:
    run = make_run(faults=[Fault("pause", 0, 0, rounds=12)], rounds=60)
    start_s, end_s = defects.window(run, "pause")
    assert 2.0 < end_s - start_s < 5.0
    run.drop([line for line in run.of("step", node="learner-3") if start_s <= line.t <= end_s])
    assert result(run, "isolation").verdict is Verdict.FAIL


def test_a_learner_that_comes_back_from_an_earlier_fault_is_not_an_untouched_neighbour() -> None:
    run = make_run(faults=[Fault("cut", 0, 0, rounds=1), Fault("pause", 1, 2, rounds=12)], rounds=60)
    rejoined = run.of("ready", node="learner-0", incarnation=2)[0]
    _, end_s = defects.window(run, "pause")
    run.drop([line for line in run.of("step", node="learner-0") if rejoined.t < line.t < end_s])
    assert result(run, "isolation").verdict is Verdict.FAIL
    rejoined.t = end_s
    assert result(run, "isolation").verdict is Verdict.PASS


@pytest.mark.parametrize(("blocked_share", "verdict"), [(0.05, Verdict.PASS), (0.7, Verdict.FAIL)])
def test_a_slow_neighbour_was_slowed_by_its_peers_only_if_it_was_blocked(
    blocked_share: float, verdict: Verdict
) -> None:
    run = make_run(faults=[Fault("pause", 0, 6, rounds=6)])
    defects.neighbours_slowed_by_a_pause(run)
    assert result(run, "isolation").verdict is Verdict.FAIL
    for line in run.of("step"):
        line.data["blocked_s"] = blocked_share * line.data["step_s"]
    found = result(run, "isolation")
    assert found.verdict is verdict
    assert ("the machine was busy" in found.detail) == (verdict is Verdict.PASS)


def test_a_stall_is_a_stall_though_no_step_tells_of_being_blocked() -> None:
    run = make_run(faults=[Fault("pause", 0, 6, rounds=6)])
    defects.neighbours_stall_during_a_pause(run)
    for line in run.of("step"):
        line.data["blocked_s"] = 0.0
    assert result(run, "isolation").verdict is Verdict.FAIL


def test_fault_windows_too_short_to_count_steps_in_are_not_judged() -> None:
    run = make_run(faults=[Fault("pause", 0, 0, rounds=1)], steps=1)
    assert result(run, "isolation").verdict is Verdict.NOT_RUN
