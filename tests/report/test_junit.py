"""JUnit XML: what a CI host makes of a run."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

import pytest

from chaoskit.report import Summary
from chaoskit.report.junit import render
from chaoskit.report.model import Conclusion, ProbeVerdict


def case(text: str, name: str) -> ElementTree.Element:
    return next(found for found in ElementTree.fromstring(text).iter("testcase") if found.get("name") == name)


def outcome(text: str, name: str) -> str:
    return next((child.tag for child in case(text, name) if child.tag in ("failure", "error", "skipped")), "passed")


def test_each_probe_and_each_injection_has_its_case(summary: Summary) -> None:
    names = [found.get("name") for found in ElementTree.fromstring(render(summary)).iter("testcase")]
    assert len(names) == 12 + 1 + 2 * 3
    assert {"S4 fencing", "loss", "crash#1 landed", "crash#1 undone", "conclusion"} <= set(names)
    assert outcome(render(summary), "S4 fencing") == "passed"
    assert outcome(render(summary), "S16 restored") == "skipped"


@pytest.mark.parametrize(("verdict", "tag"), [("pass", "passed"), ("fail", "failure"), ("unknown", "error")])
def test_a_verdict_becomes_the_outcome_of_its_case(summary: Summary, verdict: ProbeVerdict, tag: str) -> None:
    probes = tuple(dataclasses.replace(probe, verdict=verdict, detail="so it is") for probe in summary.probes)
    text = render(dataclasses.replace(summary, probes=probes))
    assert outcome(text, "S4 fencing") == tag
    assert "so it is" in ElementTree.tostring(case(text, "S4 fencing"), encoding="unicode")


@pytest.mark.parametrize(
    ("change", "landed", "undone"),
    [
        ({"landed": False}, "failure", "passed"),
        ({"landed": None}, "error", "passed"),
        ({"undone": False}, "passed", "failure"),
        ({"undone": None}, "passed", "error"),
        ({"skipped": "round 900 never came"}, "error", "skipped"),
    ],
)
def test_a_fault_without_its_proof_is_not_green(
    summary: Summary, change: dict[str, object], landed: str, undone: str
) -> None:
    rows = tuple(dataclasses.replace(row, **change) for row in summary.injections)  # type: ignore[arg-type]  # fields of one row
    text = render(dataclasses.replace(summary, injections=rows))
    assert (outcome(text, "crash#1 landed"), outcome(text, "crash#1 undone")) == (landed, undone)


def test_a_run_that_is_not_green_has_a_case_that_is_not(summary: Summary) -> None:
    aborted = dataclasses.replace(summary, conclusion=Conclusion("ABORTED", 4, "too many were down"))
    assert outcome(render(aborted), "conclusion") == "error"
    root = ElementTree.fromstring(render(aborted))
    assert (root.get("errors"), root.get("failures")) == ("1", "0")


def test_characters_that_xml_cannot_say_do_not_break_it(summary: Summary) -> None:
    probes = tuple(
        dataclasses.replace(probe, detail="a\x00b\x1b[31m<&>\ud800", verdict="fail") for probe in summary.probes
    )
    assert outcome(render(dataclasses.replace(summary, probes=probes)), "S4 fencing") == "failure"
