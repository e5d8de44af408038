"""From history and probe results to a verdict and an exit code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.errors import ExitCode
from chaoskit.probes import Verdict
from chaoskit.report.conclusion import WORDS, conclude, residue_of
from tests.report.histories import END, HEADER, Told, injected, made_of
from tests.report.sample_run import result

GOOD = [result("no-fork", "S2", "one digest each.")]


def ended(outcome: str, why: str = "", residue: tuple[str, ...] = ()) -> Told:
    return (99.0, "daemon", "end", {"outcome": outcome, "why": why, "residue": list(residue)})


def test_a_run_passes_when_every_fault_landed_and_was_undone_and_every_probe_passed() -> None:
    found = conclude(made_of(HEADER, *injected(1, 5, 7), *injected(2, 8, 9), END), GOOD)
    assert (found.word, found.exit_code) == ("PASSED", 0)
    assert "all 2 faults landed" in found.why


def test_a_pass_says_how_many_probes_could_not_run() -> None:
    few = [GOOD[0], result("loss", "loss", "no eval", Verdict.NOT_RUN), result("S1", "x", "no merge", Verdict.NOT_RUN)]
    found = conclude(made_of(HEADER, END), few)
    assert found.word == "PASSED"
    assert "1 of 3 probes ran" in found.why


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ("internal", ExitCode.INTERNAL),
        ("target-died", ExitCode.TARGET_DIED),
        ("aborted", ExitCode.ABORTED),
        ("interrupted", ExitCode.INTERRUPTED),
        ("inconclusive", ExitCode.INCONCLUSIVE),
        ("some-new-word", ExitCode.INCONCLUSIVE),
    ],
)
def test_an_end_that_was_not_the_plans_own_decides(outcome: str, code: ExitCode) -> None:
    found = conclude(made_of(HEADER, ended(outcome, "because of that")), GOOD)
    assert (found.exit_code, found.word) == (code, WORDS[code])
    assert "because of that" in found.why


def test_a_failed_probe_is_named_in_the_sentence() -> None:
    results = [
        *GOOD,
        result("fencing", "S4", "a zombie was merged", Verdict.FAIL),
        result("loss", "loss", "", Verdict.FAIL),
    ]
    found = conclude(made_of(HEADER, *injected(1, 5, 7), END), results)
    assert found.exit_code == ExitCode.PROBE_FAILED
    assert found.why == "S4 fencing failed: a zombie was merged. Also failed: loss."


def test_a_failed_probe_outweighs_an_unknown_one_and_a_fault_that_did_not_land() -> None:
    results = [result("a", "a", "", Verdict.UNKNOWN), result("b", "b", "", Verdict.FAIL)]
    assert conclude(made_of(HEADER, *injected(1, 5, 7, landed=False), END), results).exit_code == ExitCode.PROBE_FAILED


@pytest.mark.parametrize("landed", [False, None])
def test_a_fault_without_proof_that_it_landed_is_inconclusive(landed: bool | None) -> None:
    found = conclude(made_of(HEADER, *injected(1, 5, 7, landed=landed), END), GOOD)
    assert found.exit_code == ExitCode.INCONCLUSIVE
    assert "f1#1" in found.why


def test_a_fault_that_was_never_injected_is_inconclusive() -> None:
    skipped = (5.0, "daemon", "skipped", {"injection": "f1#1", "why": "round 900 never came"})
    assert conclude(made_of(HEADER, skipped, END), GOOD).exit_code == ExitCode.INCONCLUSIVE


def test_an_unknown_probe_is_inconclusive_and_no_probe_at_all_is_too() -> None:
    unknown = [*GOOD, result("loss", "loss", "no control", Verdict.UNKNOWN)]
    assert conclude(made_of(HEADER, END), unknown).exit_code == ExitCode.INCONCLUSIVE
    not_run = [result("loss", "loss", "no eval", Verdict.NOT_RUN)]
    assert conclude(made_of(HEADER, END), not_run).exit_code == ExitCode.INCONCLUSIVE
    assert conclude(made_of(HEADER, END), []).exit_code == ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(
    "injection",
    [
        injected(1, 5, None),
        injected(1, 5, 7, clean=False),
        [record for record in injected(1, 5, None) if record[2] == "intent"],
    ],
    ids=["never undone", "not clean", "only intended"],
)
def test_what_was_not_proved_undone_is_residue_whatever_else_happened(injection: list[Told]) -> None:
    failed = [result("fencing", "S4", "a zombie was merged", Verdict.FAIL)]
    for end in (ended("finished"), ended("interrupted"), ended("internal")):
        found = conclude(made_of(HEADER, *injection, end), failed)
        assert found.exit_code == ExitCode.RESIDUE
        assert "f1#1" in found.why


def test_residue_that_the_daemon_told_is_not_told_twice() -> None:
    told = ended("finished", residue=("f1#1: learner-0 is still stopped",))
    assert residue_of(made_of(HEADER, *injected(1, 5, 7, clean=False), told)) == ("f1#1: learner-0 is still stopped",)


def test_an_injection_skipped_after_its_intent_but_never_undone_is_residue() -> None:
    intent = injected(1, 5, None)[:1]
    skipped = (6.0, "daemon", "skipped", {"injection": "f1#1", "why": "no such process"})
    assert residue_of(made_of(HEADER, *intent, skipped, END)) != ()


def test_a_journal_without_an_end_proves_nothing() -> None:
    assert conclude(made_of(HEADER), GOOD).exit_code == ExitCode.INTERNAL


@given(
    outcome=st.sampled_from(["finished", "inconclusive", "aborted", "interrupted", "target-died", "internal", ""]),
    landed=st.lists(st.sampled_from([True, False, None]), max_size=3),
    clean=st.booleans(),
    verdicts=st.lists(st.sampled_from(Verdict), max_size=4),
    has_end=st.booleans(),
)
def test_only_a_run_without_any_blemish_passes(
    outcome: str, landed: list[bool | None], clean: bool, verdicts: list[Verdict], has_end: bool
) -> None:
    told = [record for n, state in enumerate(landed) for record in injected(n, 5, 7, landed=state, clean=clean)]
    results = [result(f"p{n}", f"p{n}", "so it was", verdict) for n, verdict in enumerate(verdicts)]
    found = conclude(made_of(HEADER, *told, *([ended(outcome)] if has_end else [])), results)
    judged = [verdict for verdict in verdicts if verdict is not Verdict.NOT_RUN]
    spotless = (
        has_end
        and outcome == "finished"
        and all(state is True for state in landed)
        and (clean or not landed)
        and judged != []
        and all(verdict is Verdict.PASS for verdict in judged)
    )
    assert (found.exit_code == ExitCode.PASSED) == spotless
    assert found.why
    assert found.word == WORDS[ExitCode(found.exit_code)]
