"""The report as one HTML file that needs nothing else: no network, no script, no font."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from chaoskit.errors import ExitCode
from chaoskit.report.charts import lane_chart, link_chart, loss_chart, work_charts
from chaoskit.report.model import Summary
from chaoskit.report.palette import declarations
from chaoskit.report.text import measure_text, seconds_text, versions_text

TEMPLATES = Path(__file__).parent / "templates"
ROWS_MAX = 150
"""Rows of a table before it is cut, so that a run with thousands of injections still gives a page under 600 KB."""
EVIDENCE_MAX = 6

SEED_TEXT = (
    "The decisions of a run are reproduced exactly by its seed: what is injected, where, on which trigger and with"
    " which settings; a second run with the same seed decides the same. On real processes a seed does not reproduce the"
    " order in which messages arrive, nor how the operating system schedules processes, so the moments differ by"
    " milliseconds, a merge may take in other work, and the losses of two runs differ in their last digits."
)


def render(summary: Summary) -> str:
    """The whole page. Every text that comes from a journal is escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["seconds"] = seconds_text
    environment.filters["moment"] = lambda t_s: "–" if t_s is None else f"{t_s:.1f} s"
    environment.filters["measure"] = measure_text
    environment.filters["versions"] = versions_text
    quality, pace = work_charts(summary)
    return environment.get_template("report.html.j2").render(
        s=summary,
        tone=tone(summary.conclusion.exit_code),
        light=Markup(declarations(dark=False)),
        dark=Markup(declarations(dark=True)),
        style=Markup((TEMPLATES / "style.css").read_text()),
        loss_chart=Markup(loss_chart(summary)),
        lane_chart=Markup(lane_chart(summary)),
        link_chart=Markup(link_chart(summary)),
        quality_chart=Markup(quality),
        pace_chart=Markup(pace),
        seed_text=SEED_TEXT,
        rows_max=ROWS_MAX,
        evidence_max=EVIDENCE_MAX,
    )


def tone(exit_code: int) -> str:
    """The colour in which an exit code is shown."""
    if exit_code == ExitCode.PASSED:
        return "pass"
    if exit_code == ExitCode.INCONCLUSIVE:
        return "unknown"
    return "neutral" if exit_code == ExitCode.INTERRUPTED else "fail"
