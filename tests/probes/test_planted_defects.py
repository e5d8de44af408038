"""Every probe is silent on a correct run, and each planted defect is found by exactly the probes it breaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from chaoskit.journal import History
from chaoskit.probes import PROBES, ProbeResult, Verdict, judge
from tests.probes import defects
from tests.probes.histories import Run

CAUGHT_BY: list[tuple[Callable[[Run], None], set[str]]] = [
    (defects.merge_starts_from_another_digest, {"version-chain"}),
    (defects.merge_left_out, {"version-chain", "replay", "monotone-adoption"}),
    (defects.last_merge_misnumbered, {"version-chain", "replay", "monotone-adoption"}),
    (defects.syncer_comes_back_older, {"version-chain"}),
    (defects.version_published_twice_with_other_content, {"no-fork"}),
    (defects.broadcast_corrupted, {"no-fork", "monotone-adoption"}),
    (defects.merge_below_quorum, {"distinct-quorum"}),
    (defects.quorum_counted_by_messages, {"distinct-quorum", "tokens-once", "token-ledger", "idempotence"}),
    (defects.learner_twice_in_a_full_merge, {"distinct-quorum", "tokens-once", "token-ledger", "idempotence"}),
    (defects.zombie_merged, {"fencing"}),
    (defects.zombie_accepted, {"fencing"}),
    (defects.incarnation_handed_out_again, {"incarnations", "fencing"}),
    (defects.two_live_copies, {"incarnations"}),
    (defects.welcomed_twice, {"incarnations"}),
    (defects.counters_not_reset, {"tokens-once", "token-ledger"}),
    (defects.tokens_claimed_before_they_are_processed, {"tokens-once", "token-ledger"}),
    (defects.tokens_lost_at_adoption, {"token-ledger"}),
    (defects.tokens_counted_backwards, {"token-ledger"}),
    (defects.corrupt_update_merged, {"integrity"}),
    (defects.corrupt_update_accepted, {"integrity"}),
    (defects.update_from_nowhere, {"integrity"}),
    (defects.update_too_stale, {"staleness"}),
    (defects.update_from_the_future, {"staleness"}),
    (defects.replay_differs, {"replay"}),
    (defects.old_broadcast_adopted, {"monotone-adoption"}),
    (defects.update_before_ready, {"silence-before-ready"}),
    (defects.update_merged_again, {"idempotence", "tokens-once", "token-ledger"}),
    (defects.stall_after_the_heal, {"progress"}),
    (defects.stall_in_a_quiet_stretch_of_chaos, {"availability"}),
    (defects.neighbours_slowed_by_a_pause, {"isolation"}),
    (defects.neighbours_stall_during_a_pause, {"isolation"}),
    (defects.rejoiner_slow_to_be_ready, {"rejoin", "availability", "isolation"}),
    (defects.rejoiner_ignored, {"rejoin"}),
    (defects.learner_never_merged, {"goodput"}),
    (defects.loss_of(1.10), {"loss"}),
    (defects.loss_not_a_number, {"loss"}),
]


def judged(plant: Callable[[Run], None] | None = None) -> dict[str, ProbeResult]:
    run = defects.correct_run()
    if plant is not None:
        plant(run)
    return {result.probe: result for result in judge(run.history(), control())}


@cache
def control() -> History:
    return defects.correct_control().history()


def failed(results: dict[str, ProbeResult]) -> set[str]:
    return {name for name, result in results.items() if result.verdict is Verdict.FAIL}


def test_a_correct_run_with_a_kill_a_pause_a_slow_and_a_cut_link_passes_every_probe() -> None:
    assert {(result.probe, result.verdict.word) for result in judged().values()} == {(name, "pass") for name in PROBES}


@pytest.mark.parametrize(("plant", "probes"), CAUGHT_BY, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_defect_is_found_by_exactly_the_probes_it_breaks(
    plant: Callable[[Run], None], probes: set[str]
) -> None:
    results = judged(plant)
    assert failed(results) == probes
    for name in probes - {"goodput"}:
        assert results[name].evidence, f"{name} shows no records"
    for name in probes:
        assert "expected" in results[name].detail, f"{name} does not say what was expected"


def test_every_probe_has_a_planted_defect() -> None:
    assert set().union(*(probes for _, probes in CAUGHT_BY)) == set(PROBES)


def test_the_detail_names_learner_fragment_version_and_values() -> None:
    detail = judged(defects.update_too_stale)["staleness"].detail
    for told in ("learner-0.1.1.", "learner-0", "fragment 1", "version 8", "based on version 3", "expected 4 to 7"):
        assert told in detail


def test_the_evidence_is_the_records_that_tell_of_the_defect() -> None:
    run = defects.correct_run()
    defects.zombie_merged(run)
    history = run.history()
    [number] = next(r for r in judge(history, None) if r.probe == "fencing").evidence
    assert history.records[number].kind == "merge"
    assert ("learner-2", 1) in {(u["learner"], u["incarnation"]) for u in history.records[number]["contributions"]}


def test_a_loss_suspiciously_better_than_the_control_run_is_unknown() -> None:
    result = judged(defects.loss_of(0.9))["loss"]
    assert result.verdict is Verdict.UNKNOWN
    assert "suspiciously better" in result.detail


def test_a_rejoiner_that_is_not_ready_when_training_ends_is_unknown() -> None:
    result = judged(defects.rejoiner_never_ready)["rejoin"]
    assert result.verdict is Verdict.UNKNOWN
    assert "learner-2" in result.detail
