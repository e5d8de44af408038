"""Where every token went, and what a restarted syncer may and may not forget."""

from __future__ import annotations

import pytest

from chaoskit.probes import Verdict, judge
from chaoskit.probes.ledger import DISCONNECTED, KILLED, OVERLAP, UNANSWERED, ledger
from tests.probes import defects
from tests.probes.histories import STEP_TOKENS, Fault, Line, Run, digest, make_run


def verdicts(run: Run, *probes: str) -> list[Verdict]:
    results = {result.probe: result.verdict for result in judge(run.history(), None)}
    return [results[probe] for probe in probes]


def versions_at(run: Run, at: Line) -> list[int]:
    """The version of each fragment once this merge was made."""
    merges = [merge for merge in run.of("merge") if merge.t <= at.t]
    return [sum(merge.data["fragment"] == fragment for merge in merges) for fragment in range(3)]


def test_what_was_done_between_an_update_and_its_broadcast_is_lost_to_overlap() -> None:
    """One step a merge for each learner: the step taken while the round was under way."""
    run = make_run(learners=2, rounds=12)
    books = ledger(run.history())
    assert books.discarded == {OVERLAP: 12 * 2 * STEP_TOKENS}


@pytest.mark.parametrize(
    ("kind", "reasons"), [("kill", {KILLED}), ("cut", {DISCONNECTED}), ("slow", {"late"}), ("pause", set())]
)
def test_a_fault_is_charged_with_the_tokens_it_cost(kind: str, reasons: set[str]) -> None:
    """An interval that a paused learner had open when others merged is not pulled, and so lost, when it wakes up."""
    books = ledger(make_run(faults=[Fault(kind, 1, 0, rounds=3)]).history())
    assert reasons <= set(books.discarded)
    others = {KILLED, DISCONNECTED, "late"} - reasons
    assert not others & set(books.discarded)


def test_an_update_that_nobody_answers_is_named_so() -> None:
    run = make_run()
    lost = run.of("merge", fragment=1, version=4)[0].data["contributions"].pop()
    run.drop(run.of("accept", id=lost["id"]))
    books = ledger(run.history())
    assert books.discarded[UNANSWERED] == lost["hi"] - lost["lo"] + STEP_TOKENS


def test_a_syncer_killed_between_the_durable_merge_and_its_record_is_one_merge_ahead() -> None:
    """The merge is on the disk and on no tape; the restarted syncer tells of it in `restore`."""
    run = defects.correct_run()
    lost = run.of("merge", fragment=1, version=4)[0]
    now = versions_at(run, lost)
    run.insert_after(lost, "restore", versions=now, digests=[digest(p, now[p]) for p in range(3)])
    run.drop([lost])
    assert verdicts(run, "version-chain", "replay", "monotone-adoption", "token-ledger") == [Verdict.PASS] * 4


@pytest.mark.parametrize("off", [(-1, 0, 0), (2, 0, 0), (1, 0, 1)])
def test_a_syncer_that_comes_back_with_other_versions_breaks_the_chain(off: tuple[int, ...]) -> None:
    """Fewer than were merged, two more in one fragment, or one more in two. After the last merge, so that nothing
    but the restore itself tells of it."""
    run = defects.correct_run()
    merge = run.of("merge")[-1]
    now = [version + more for version, more in zip(versions_at(run, merge), off, strict=True)]
    run.insert_after(merge, "restore", versions=now, digests=[digest(p, now[p]) for p in range(3)])
    assert verdicts(run, "version-chain") == [Verdict.FAIL]


def test_a_gap_between_two_adoptions_is_told_with_the_interval_expected() -> None:
    run = defects.correct_run()
    defects.tokens_lost_at_adoption(run)
    [result] = [result for result in judge(run.history(), None) if result.probe == "token-ledger"]
    assert "expected (1024, 1408], from the last adoption to the last step" in result.detail


def test_after_a_reject_the_version_held_may_be_adopted_again_and_no_other_way() -> None:
    run = make_run()
    adopted = run.of("adopt", node="learner-0", fragment=1, version=4)[0]
    again = run.insert_after(adopted, "adopt", **adopted.data | {"lo": adopted.data["at"], "cause": "reject"})
    assert verdicts(run, "monotone-adoption", "token-ledger") == [Verdict.PASS] * 2
    again.data["cause"] = "broadcast"
    assert verdicts(run, "monotone-adoption") == [Verdict.FAIL]
