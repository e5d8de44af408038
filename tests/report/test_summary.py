"""The summary: every figure once, from whatever a history tells."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.journal import History
from chaoskit.probes import Verdict
from chaoskit.report import Summary, junit, markdown, summarise
from chaoskit.report import json as json_report
from chaoskit.report.text import HIDDEN
from tests.report.histories import END, HEADER, injected, made_of
from tests.report.sample_run import FIDELITY, result, sample_results


def figure(summary: Summary, name: str) -> Any:
    return next(figure for figure in summary.figures if figure.name == name)


def test_the_figures_of_the_sample_run_are_those_it_was_made_with(summary: Summary) -> None:
    assert [figure.name for figure in summary.figures] == [
        "Final loss",
        "Goodput",
        "Rejoin",
        "Longest gap",
        "Tokens merged",
        "Faults",
    ]
    assert figure(summary, "Rejoin").measured == 5.589
    assert figure(summary, "Goodput").value == "92.1 %"
    assert figure(summary, "Faults").value == "3 of 3"
    assert 0.9 < figure(summary, "Tokens merged").measured / summary.curve.work_tokens[-1] < 1.1


def test_the_final_loss_is_shown_beside_that_of_the_control_run(summary: Summary) -> None:
    assert summary.control is not None
    shown = figure(summary, "Final loss")
    assert shown.measured == summary.curve.loss[-1]
    assert f"control run {summary.control.loss[-1]:.4g}" in shown.note
    assert "allowed 6 %" in shown.note


def test_without_a_control_run_nothing_is_compared(sample_history: History) -> None:
    alone = summarise(sample_history, None, sample_results(), command="chaoskit run p.toml")
    assert (alone.control, alone.gap, alone.control_run) == (None, (), "")
    assert "control" not in figure(alone, "Longest gap").note


def test_what_needs_reading_comes_first_and_what_was_not_run_stands_apart() -> None:
    results = [
        result("a", "S1", "fine."),
        result("b", "S2", "who knows.", Verdict.UNKNOWN),
        result("c", "S3", "broken.", Verdict.FAIL),
        result("d", "S4", "no records.", Verdict.NOT_RUN),
    ]
    found = summarise(made_of(HEADER, END), None, results, command="c")
    assert [probe.name for probe in found.probes] == ["c", "b", "a"]
    assert [probe.name for probe in found.not_run] == ["d"]


def test_the_same_arguments_give_the_same_summary(
    summary: Summary, sample_history: History, control_history: History
) -> None:
    again = summarise(
        sample_history,
        control_history,
        sample_results(),
        command=summary.command,
        fidelity=FIDELITY,
        versions={"python": "3.11.9"},
        about=summary.about,
    )
    assert again == summary


def test_fidelity_is_told_of_the_faults_that_were_used_and_no_others(sample_history: History) -> None:
    fidelity = {**FIDELITY, "disk.full": ("a full disk", "a slow one")}
    found = summarise(sample_history, None, [], command="c", fidelity=fidelity)
    assert {row.fault for row in found.fidelity} == {"process.kill", "process.pause", "link.bandwidth"}


def test_a_secret_anywhere_in_the_journal_does_not_reach_any_report() -> None:
    secret = "hunter2hunter2hunter2"
    intent = {
        "injection": "f#1",
        "fault": "x",
        "name": "f",
        "targets": [f"TOKEN={secret}"],
        "settings": {"api_key": secret},
    }
    history = made_of(
        (0.0, "daemon", "journal", {"run": f"r PASSWORD={secret}", "plan": "p"}),
        (1.0, "daemon", "intent", intent),
        (1.0, "daemon", "applied", {"injection": "f#1", "targets": [], "evidence": {"env": f"HF_TOKEN={secret}"}}),
        (
            2.0,
            "daemon",
            "undone",
            {"injection": "f#1", "clean": True, "evidence": {"url": f"http://me:{secret}@host/"}},
        ),
        (3.0, "daemon", "end", {"outcome": "aborted", "why": f"--password {secret}", "residue": []}),
    )
    probes = [result("loss", "loss", f"SECRET='{secret}'", Verdict.UNKNOWN)]
    found = summarise(
        history, None, probes, command=f"HF_TOKEN={secret} chaoskit run p.toml", versions={"x": f"KEY={secret}"}
    )
    for render in (json_report.render, markdown.render, junit.render):
        assert secret not in render(found)
    assert found.command == f"HF_TOKEN={HIDDEN} chaoskit run p.toml"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats() | st.text(max_size=6) | st.just("learner-0"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KINDS = [
    "start",
    "welcome",
    "adopt",
    "ready",
    "step",
    "send",
    "disconnect",
    "config",
    "join",
    "admit",
    "leave",
    "round",
]
KINDS += ["accept", "merge", "publish", "eval", "something-new"]
FIELDS = [
    "role",
    "learner",
    "incarnation",
    "versions",
    "fragment",
    "version",
    "step",
    "tokens",
    "loss",
    "merges",
    "contributions",
    "why",
]
RECORD = st.tuples(
    st.floats(0, 98, allow_nan=False),
    st.sampled_from(["learner-0", "syncer", "evaluator"]),
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6),
)


@settings(max_examples=60)
@given(st.lists(RECORD, max_size=12))
def test_a_tape_of_another_trainer_never_breaks_the_report(told: list[tuple[float, str, str, dict[str, Any]]]) -> None:
    history = made_of(HEADER, *told, *injected(1, 5, 7), END)
    found = summarise(history, history, [result("loss", "loss", "fine.", measured=float("nan"))], command="c")
    for render in (json_report.render, markdown.render, junit.render):
        assert render(found)


def test_damaged_records_are_told_and_a_whole_history_has_no_notes(summary: Summary) -> None:
    assert summary.notes == ()
    damaged = dataclasses.replace(made_of(HEADER, END), damaged=4, damaged_at=("tape/syncer.1.jsonl:7",), torn=True)
    found = summarise(damaged, None, [], command="c")
    assert [note.split()[0] for note in found.notes] == ["4", "The"]
    assert "tape/syncer.1.jsonl:7" in markdown.render(found)


def test_an_empty_history_still_has_a_report() -> None:
    found = summarise(made_of(), None, [], command="c")
    assert found.conclusion.word == "INTERNAL ERROR"
    assert markdown.render(found)
