"""No alarm on a correct run, whatever befalls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaoskit.probes import Verdict, judge
from chaoskit.probes.ledger import ledger
from tests.probes import defects
from tests.probes.histories import Fault, Run, make_run

faults = st.builds(
    Fault,
    kind=st.sampled_from(["kill", "pause", "cut", "slow"]),
    learner=st.integers(0, 4),
    round=st.integers(0, 12),
    rounds=st.integers(1, 5),
)


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    """Keyword arguments of `make_run`; the quorum is clipped to the number of learners."""
    learners = draw(st.integers(1, 5))
    return {
        "learners": learners,
        "quorum": min(draw(st.integers(1, 3)), learners),
        "fragments": draw(st.integers(1, 5)),
        "steps": draw(st.integers(1, 4)),
        "rounds": draw(st.integers(50, 60)),
    }


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(sizes(), st.lists(faults, max_size=6))
def test_no_probe_alarms_on_a_correct_run(size: dict[str, Any], plan: list[Fault]) -> None:
    """Kills, pauses, cut and slow links in any number, also all at once. Goodput is only asked to know its own
    mind: these runs are so short that a few faults take most of them."""
    history = make_run(faults=plan, **size).history()
    results = judge(history, make_run(**size).history())
    alarms = [
        (r.probe, r.verdict.word, r.detail)
        for r in results
        if r.verdict in (Verdict.FAIL, Verdict.UNKNOWN) and r.probe not in ("goodput", "loss")
    ]
    assert not alarms
    assert next(r for r in results if r.probe == "goodput").verdict in (Verdict.PASS, Verdict.FAIL)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 4), st.integers(1, 4), st.lists(faults, max_size=3))
def test_loss_and_goodput_do_not_alarm_in_a_run_of_some_length(
    learners: int, fragments: int, plan: list[Fault]
) -> None:
    size: dict[str, Any] = {"learners": learners, "fragments": fragments, "steps": 4, "rounds": 120}
    results = judge(make_run(faults=plan, **size).history(), make_run(**size).history())
    [goodput] = [r for r in results if r.probe == "goodput"]
    assert goodput.verdict is Verdict.PASS, goodput.detail
    [loss] = [r for r in results if r.probe == "loss"]
    assert loss.verdict is Verdict.PASS, loss.detail


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(sizes(), st.lists(faults, max_size=6))
def test_the_books_of_a_correct_run_close_without_a_word(size: dict[str, Any], plan: list[Fault]) -> None:
    run = make_run(faults=plan, **size)
    found: list[str] = []
    books = ledger(run.history(), lambda told, *_numbers: found.append(told))
    assert not found
    assert all(entry.closes and min(entry.processed, entry.merged, entry.open) >= 0 for entry in books.entries)
    assert books.processed == books.merged + sum(books.discarded.values()) + books.open
    merged = sum(u["hi"] - u["lo"] for merge in run.of("merge") for u in merge.data["contributions"])
    assert books.merged == merged


SAFETY_DEFECTS: list[Callable[[Run], None]] = [
    defects.merge_starts_from_another_digest,
    defects.counters_not_reset,
    defects.update_from_the_future,
    defects.corrupt_update_merged,
    defects.old_broadcast_adopted,
]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.permutations(SAFETY_DEFECTS), st.integers(1, 5))
def test_defects_together_are_all_found(plants: list[Callable[[Run], None]], count: int) -> None:
    """No defect hides another: what is found alone is found in company."""
    run = defects.correct_run()
    for plant in plants[:count]:
        plant(run)
    failed = {r.probe for r in judge(run.history(), None) if r.verdict is Verdict.FAIL}
    alone: dict[Callable[[Run], None], str] = {
        defects.merge_starts_from_another_digest: "version-chain",
        defects.counters_not_reset: "tokens-once",
        defects.update_from_the_future: "staleness",
        defects.corrupt_update_merged: "integrity",
        defects.old_broadcast_adopted: "monotone-adoption",
    }
    assert {alone[plant] for plant in plants[:count]} <= failed
