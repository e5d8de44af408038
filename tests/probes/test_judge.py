"""The rules by which many findings become one verdict, and by which a broken probe hides nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.journal import History
from chaoskit.plan import Expect
from chaoskit.probes import PROBES, Case, Finding, Probe, Verdict, combine, judge
from chaoskit.probes.base import EVIDENCE_COUNT_MAX, Violations
from tests.probes import defects
from tests.probes.histories import make_run

verdicts = st.lists(st.sampled_from(Verdict))


@given(verdicts, verdicts)
def test_verdicts_combine_in_any_order_and_grouping(some: list[Verdict], others: list[Verdict]) -> None:
    whole = combine(some + others)
    assert whole == combine(others + some) == combine([combine(some), combine(others)])


@given(verdicts)
def test_a_probe_not_run_never_changes_the_verdict(some: list[Verdict]) -> None:
    assert combine([*some, Verdict.NOT_RUN]) == combine(some)


@given(verdicts, st.sampled_from(Verdict))
def test_one_more_verdict_never_makes_it_better(some: list[Verdict], more: Verdict) -> None:
    assert combine([*some, more]) >= combine(some)


def test_pass_is_less_than_unknown_is_less_than_fail() -> None:
    assert Verdict.PASS < Verdict.UNKNOWN < Verdict.FAIL
    assert [verdict.word for verdict in sorted(Verdict)] == ["not run", "pass", "unknown", "fail"]
    assert combine([]) is Verdict.NOT_RUN


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Probe]:
    """A registry of the test's own in the place of the real one."""
    probes: dict[str, Probe] = {}
    monkeypatch.setattr("chaoskit.probes.base.PROBES", probes)
    return probes


def made_up(name: str, finding: Finding | Exception, needs: tuple[str, ...] = ()) -> Probe:
    def check(_case: Case) -> Finding:
        if isinstance(finding, Exception):
            raise finding
        return finding

    return Probe("S1", name, "Holds.", needs, (), check)


def test_a_probe_that_raises_is_unknown_and_the_others_still_run(registry: dict[str, Probe]) -> None:
    registry["broken"] = made_up("broken", KeyError("h_in"))
    registry["whole"] = made_up("whole", Finding(Verdict.FAIL, "It does not hold."))
    broken, whole = judge(History(()), None)
    assert (broken.verdict, whole.verdict) == (Verdict.UNKNOWN, Verdict.FAIL)
    assert "KeyError: 'h_in'" in broken.detail


def test_a_keyboard_interrupt_is_not_taken_for_a_finding(registry: dict[str, Probe]) -> None:
    def interrupt(_case: Case) -> Finding:
        raise KeyboardInterrupt

    registry["interrupted"] = replace(made_up("interrupted", ValueError()), check=interrupt)
    with pytest.raises(KeyboardInterrupt):
        judge(History(()), None)


def test_a_probe_whose_kinds_are_missing_is_not_run_and_says_which(registry: dict[str, Probe]) -> None:
    registry["needy"] = made_up("needy", Finding(Verdict.PASS, "."), needs=("merge", "replay"))
    [result] = judge(History(()), None)
    assert result.verdict is Verdict.NOT_RUN
    assert "merge, replay" in result.detail


def test_a_probe_that_the_plan_names_and_that_is_not_run_is_unknown(registry: dict[str, Probe]) -> None:
    registry["needy"] = made_up("needy", Finding(Verdict.PASS, "."), needs=("merge",))
    [named] = judge(History(()), None, [Expect("needy", {}, line=7)])
    [filled_in] = judge(History(()), None, [Expect("needy", {}, line=None)])
    assert (named.verdict, filled_in.verdict) == (Verdict.UNKNOWN, Verdict.NOT_RUN)
    assert "line 7" in named.detail


def test_an_expectation_of_no_probe_is_unknown_and_names_the_nearest() -> None:
    result = judge(History(()), None, [Expect("fencin", {}, line=3)])[-1]
    assert result.verdict is Verdict.UNKNOWN
    assert "'fencing'" in result.detail


def test_damaged_tape_lines_turn_a_pass_into_unknown(registry: dict[str, Probe]) -> None:
    registry["whole"] = made_up("whole", Finding(Verdict.PASS, "It holds."))
    registry["failed"] = made_up("failed", Finding(Verdict.FAIL, "It does not hold."))
    history = History((), damaged=2, damaged_at=("tape/syncer.1.jsonl:4",))
    whole, failed = judge(history, None)
    assert (whole.verdict, failed.verdict) == (Verdict.UNKNOWN, Verdict.FAIL)
    assert "tape/syncer.1.jsonl:4" in whole.detail


def test_the_plan_s_tolerance_is_used_and_shown() -> None:
    run = defects.correct_run()
    defects.loss_of(1.10)(run)
    history, control = run.history(), defects.correct_control().history()
    [strict] = [r for r in judge(history, control) if r.probe == "loss"]
    expects = [Expect("loss", {"within_share": 0.2}, line=30)]
    [lenient] = [r for r in judge(history, control, expects) if r.probe == "loss"]
    assert (strict.verdict, strict.tolerance) == (Verdict.FAIL, 6.0)
    assert (lenient.verdict, lenient.tolerance) == (Verdict.PASS, 20.0)


def test_without_a_control_run_only_the_probes_that_need_one_are_unknown() -> None:
    results = judge(defects.correct_run().history(), None)
    assert {r.probe for r in results if r.verdict is Verdict.UNKNOWN} == {"loss", "goodput"}
    assert {r.verdict for r in results} == {Verdict.PASS, Verdict.UNKNOWN}


def test_an_empty_history_runs_no_probe() -> None:
    assert {result.verdict for result in judge(History(()), None)} == {Verdict.NOT_RUN}


@pytest.mark.parametrize("kind", ["merge", "step", "send", "adopt", "config", "join", "ready", "phase", "eval"])
def test_a_target_that_tells_less_gets_the_probes_its_tape_allows(kind: str) -> None:
    run = defects.correct_run()
    run.drop(run.of(kind))
    results = judge(run.history(), None)
    not_run = {r.probe for r in results if r.verdict is Verdict.NOT_RUN}
    needing = {name for name, probe in PROBES.items() if kind in probe.needs}
    assert needing
    assert needing <= not_run
    assert not [r.detail for r in results if "raised" in r.detail]


def test_a_target_without_a_replay_command_is_not_judged_by_replay() -> None:
    run = defects.correct_run()
    run.drop(run.of("replay"))
    [result] = [r for r in judge(run.history(), None) if r.probe == "replay"]
    assert result.verdict is Verdict.NOT_RUN


def test_a_replay_command_that_failed_leaves_the_replay_unknown() -> None:
    run = defects.correct_run()
    run.drop(run.of("replay"))
    run.insert_after(run.lines[-1], "replay-failed", why="exit code 3")
    [result] = [r for r in judge(run.history(), None) if r.probe == "replay"]
    assert result.verdict is Verdict.UNKNOWN
    assert "exit code 3" in result.detail


def test_a_replay_that_ends_early_is_unknown_and_says_how_far_it_came() -> None:
    run = defects.correct_run()
    run.drop(run.of("replay", fragment=1)[10:])
    [result] = [r for r in judge(run.history(), None) if r.probe == "replay"]
    assert result.verdict is Verdict.UNKNOWN
    assert "1: 10 of 20" in result.detail


def test_a_run_without_faults_has_no_rejoin_and_no_isolation_to_judge() -> None:
    run = make_run()
    results = judge(run.history(), run.history())
    assert {r.probe for r in results if r.verdict is Verdict.NOT_RUN} == {"rejoin", "isolation", "availability"}
    assert not {r.probe for r in results if r.verdict in (Verdict.FAIL, Verdict.UNKNOWN)}


def test_a_run_that_was_cut_short_has_no_final_loss_to_judge() -> None:
    run, control = make_run(), make_run().history()
    assert {r.probe: r.verdict for r in judge(run.history(), control)}["loss"] is Verdict.PASS
    run.of("end")[0].data["outcome"] = "interrupted"
    [loss] = [r for r in judge(run.history(), control) if r.probe == "loss"]
    assert loss.verdict is Verdict.NOT_RUN
    assert "interrupted" in loss.detail


def test_a_rule_broken_a_thousand_times_keeps_few_records_and_the_count() -> None:
    violations = Violations()
    for number in range(1000):
        violations.add(f"Number {number} is wrong; expected another.", number)
    finding = violations.finding("All right.")
    assert finding.verdict is Verdict.FAIL
    assert finding.detail == "Number 0 is wrong; expected another. (999 more)"
    assert finding.measured == 1000
    assert finding.evidence == tuple(range(EVIDENCE_COUNT_MAX))
