"""The report as JUnit XML: one test case for each probe, and one each for the landing and the undo of every
injection."""

from __future__ import annotations

import re

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from chaoskit.report.model import Injection, Probe, Summary
from chaoskit.report.text import measure_text

# XML 1.0 has no way to write these, not even as a reference.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(summary: Summary) -> str:
    """The XML text. A failed probe is a failure, an unknown one an error, one that was not run is skipped."""
    suites = JUnitXml("chaoskit")
    suites.add_testsuite(_probe_suite(summary))
    if summary.injections:
        suites.add_testsuite(_fault_suite(summary))
    suites.update_statistics()  # type: ignore[no-untyped-call]  # junitparser has no annotations here
    text: str = suites.tostring().decode()  # type: ignore[no-untyped-call]  # nor here
    return text if text.endswith("\n") else text + "\n"


def _probe_suite(summary: Summary) -> TestSuite:
    suite = _suite(summary, "probes")
    for probe in (*summary.probes, *summary.not_run):
        suite.add_testcase(_probe_case(summary, probe))
    # Last, so that a run whose probes all passed but which is not green does not look green.
    case = _case(summary, "run", "conclusion")
    if summary.conclusion.exit_code == 1:
        case.result = [Failure(_xml(summary.conclusion.why), summary.conclusion.word)]
    elif summary.conclusion.exit_code != 0:
        case.result = [Error(_xml(summary.conclusion.why), summary.conclusion.word)]
    suite.add_testcase(case)
    return suite


def _fault_suite(summary: Summary) -> TestSuite:
    suite = _suite(summary, "faults")
    for row in summary.injections:
        suite.add_testcase(_landed_case(summary, row))
        suite.add_testcase(_undone_case(summary, row))
    return suite


def _probe_case(summary: Summary, probe: Probe) -> TestCase:
    case = _case(summary, "probes", probe.name if probe.id == probe.name else f"{probe.id} {probe.name}")
    if probe.verdict == "not run":
        case.result = [Skipped(_xml(probe.detail))]
    elif probe.verdict != "pass":
        kind = Failure if probe.verdict == "fail" else Error
        case.result = [kind(_xml(probe.detail), probe.verdict)]
    lines = [probe.detail, probe.statement]
    if probe.measured is not None:
        lines.append(
            f"measured {measure_text(probe.measured, probe.unit)}, allowed {measure_text(probe.tolerance, probe.unit)}"
        )
    if probe.records:
        lines.append(f"records {', '.join(map(str, probe.records))}")
    case.system_out = _xml("\n".join(lines))
    return case


def _landed_case(summary: Summary, row: Injection) -> TestCase:
    case = _case(summary, "faults", f"{row.injection} landed")
    if row.skipped:
        case.result = [Error(_xml(f"not injected: {row.skipped}"), "not injected")]
    elif row.landed is False:
        case.result = [Failure("the fault was applied, and nothing shows that it took effect", "not landed")]
    elif row.landed is None:
        case.result = [Error("the journal does not say whether it landed", "unknown")]
    case.system_out = _xml("\n".join((f"{row.fault} on {', '.join(row.targets)}, {row.trigger}", *row.landed_evidence)))
    return case


def _undone_case(summary: Summary, row: Injection) -> TestCase:
    case = _case(summary, "faults", f"{row.injection} undone")
    if row.skipped:
        case.result = [Skipped("not injected")]
    elif row.undone is False:
        case.result = [Failure("the undo could not be verified", "residue")]
    elif row.undone is None:
        case.result = [Error("the journal holds no undo of it", "residue")]
    if row.duration_s is not None:
        case.time = row.duration_s
    case.system_out = _xml("\n".join(row.undone_evidence))
    return case


def _suite(summary: Summary, name: str) -> TestSuite:
    suite = TestSuite(_xml(f"{summary.plan or summary.run} {name}"))
    facts = [
        ("run", summary.run),
        ("seed", "" if summary.seed is None else str(summary.seed)),
        ("command", summary.command),
    ]
    for key, value in (*facts, *summary.versions):
        suite.add_property(_xml(key), _xml(value))
    return suite


def _case(summary: Summary, room: str, name: str) -> TestCase:
    return TestCase(_xml(name), classname=_xml(f"chaoskit.{summary.plan or summary.run}.{room}"), time=0.0)


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
