"""The HTML page: complete in itself, safe against what a journal holds, and the same bytes every time."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaoskit.report import Summary
from chaoskit.report.charts import LABEL_ROWS_MAX, label_places
from chaoskit.report.html import ROWS_MAX, render
from chaoskit.report.palette import PALETTE
from chaoskit.report.svg import LEFT_PX, RIGHT_PX, WIDTH_PX

BYTES_MAX = 600_000
VOID = {"meta", "link", "br", "hr", "img", "input", "path", "line", "use", "rect", "circle"}


class Page(HTMLParser):
    """What the tests ask of a page: its tags in order, their attributes, its ids, and whether every tag was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.headings: list[str] = []
        self.open: list[str] = []
        self.crossed: list[str] = []
        self._heading = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        self._heading = tag in ("h1", "h2")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.crossed.append(tag)

    def handle_data(self, data: str) -> None:
        if self._heading and data.strip():
            self.headings.append(data.strip())
        self._heading = False


@pytest.fixture(scope="module")
def text(summary: Summary) -> str:
    return render(summary)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_page_is_complete_in_itself(text: str, page: Page) -> None:
    assert {"script", "link", "iframe", "img", "object"}.isdisjoint(tag for tag, _ in page.tags)
    outside = re.findall(r"https?://[^\s\"'<>]+", text)
    assert set(outside) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "@import" not in text
    assert "@font-face" not in text
    references = re.findall(r"url\(([^)]*)\)", text)
    assert all(reference.startswith("#") for reference in references)


def test_every_tag_is_closed_where_it_was_opened(page: Page) -> None:
    assert (page.open, page.crossed) == ([], [])


def test_no_id_occurs_twice_and_every_reference_has_its_target(text: str, page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    referred = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    assert referred <= set(page.ids)


def test_the_sections_come_in_the_order_of_what_matters(page: Page) -> None:
    assert page.headings == [
        "kill-and-rejoin",
        "Loss of the global model",
        "Roles",
        "Fault ledger",
        "Probes",
        "Rejoins",
        "What the seed reproduces",
        "What this run stands for",
        "Run it again",
        "Versions",
    ]


def test_those_who_do_not_see_the_charts_are_told(text: str, page: Page) -> None:
    charts = [attrs for tag, attrs in page.tags if tag == "svg" and attrs.get("role") == "img"]
    assert len(charts) == 5
    for attrs in charts:
        for name in (attrs["aria-labelledby"] or "").split():
            assert re.search(rf'<(title|desc) id="{name}">[^<]+<', text)
    assert [tag for tag, _ in page.tags].count("caption") == [tag for tag, _ in page.tags].count("table")
    assert all("scope" in attrs for tag, attrs in page.tags if tag == "th")


def test_the_same_summary_gives_the_same_bytes(text: str, summary: Summary) -> None:
    assert render(summary) == text


def test_charts_take_their_colours_from_the_page(text: str) -> None:
    body = text[text.index("<body>") :]
    assert re.findall(r"#[0-9a-f]{6}\b", body) == []
    assert "var(--run)" in body
    assert "font-family" not in body
    for scheme in ("@media (prefers-color-scheme: dark)", "@media print"):
        assert scheme in text


def test_no_two_colours_of_the_light_page_are_equal() -> None:
    light = [values[0] for values in PALETTE.values()]
    assert len(set(light)) == len(light)


def test_what_a_journal_holds_is_shown_and_never_obeyed(summary: Summary) -> None:
    evil = '"><script>alert(1)</script><b a="$x^{$ \\frac'
    hostile = dataclasses.replace(
        summary,
        plan=evil,
        about=evil,
        command=evil,
        target=evil,
        residue=(evil,),
        versions=((evil, evil),),
        conclusion=dataclasses.replace(summary.conclusion, why=evil),
        lanes=tuple(dataclasses.replace(lane, role=evil) for lane in summary.lanes),
        links=tuple(dataclasses.replace(lane, link=evil) for lane in summary.links),
        windows=tuple(dataclasses.replace(window, label=evil, targets=(evil,)) for window in summary.windows),
        injections=tuple(
            dataclasses.replace(row, injection=evil, settings=evil, landed_evidence=(evil,))
            for row in summary.injections
        ),
        probes=tuple(dataclasses.replace(probe, name=evil, detail=evil, unit=evil) for probe in summary.probes),
        rejoins=tuple(dataclasses.replace(rejoin, learner=evil, cause=evil) for rejoin in summary.rejoins),
    )
    text = render(hostile)
    page = Page(text)
    assert "script" not in {tag for tag, _ in page.tags}
    assert (page.open, page.crossed) == ([], [])
    assert "&lt;script&gt;alert(1)" in text


def test_a_run_with_very_many_injections_and_probes_stays_small(summary: Summary) -> None:
    many = dataclasses.replace(
        summary,
        injections=summary.injections * 1000,
        windows=summary.windows * 40,
        probes=summary.probes * 100,
        rejoins=summary.rejoins * 1000,
    )
    text = render(many)
    assert len(text.encode()) < BYTES_MAX
    assert f"{3000 - ROWS_MAX} more rows are in report.json" in text


def test_a_run_that_tells_nothing_still_has_a_page(summary: Summary) -> None:
    bare = dataclasses.replace(
        summary,
        figures=(),
        curve=dataclasses.replace(summary.curve, t_s=(), merges=(), loss=(), work_t_s=(), work_tokens=()),
        control=None,
        gap=(),
        windows=(),
        marks=(),
        lanes=(),
        links=(),
        phases=(),
        injections=(),
        probes=(),
        not_run=(),
        rejoins=(),
        fidelity=(),
        end_s=0.0,
    )
    page = Page(render(bare))
    assert (page.open, page.crossed) == ([], [])
    assert "No fault was injected" in render(bare)


@pytest.mark.parametrize(("code", "tone"), [(0, "pass"), (1, "fail"), (2, "unknown"), (3, "fail"), (130, "neutral")])
def test_the_banner_has_the_tone_of_the_verdict(summary: Summary, code: int, tone: str) -> None:
    conclusion = dataclasses.replace(summary.conclusion, exit_code=code, word="WORD")
    text = render(dataclasses.replace(summary, conclusion=conclusion))
    assert f'<section class="verdict tone-{tone}"' in text
    assert "WORD" in text


LABELLED = st.lists(st.tuples(st.floats(-5, 60), st.text("abcdef ", min_size=1, max_size=60)), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LABELLED)
def test_no_two_labels_of_faults_overlap_and_none_leaves_the_chart(
    summary: Summary, found: list[tuple[float, str]]
) -> None:
    window = summary.windows[0]
    windows = tuple(
        dataclasses.replace(window, number=number, start_s=start_s, label=label)
        for number, (start_s, label) in enumerate(found, start=1)
    )
    crowded = dataclasses.replace(summary, windows=windows)
    width_s = (summary.end_s - summary.start_s) / (WIDTH_PX - LEFT_PX - RIGHT_PX)
    rows: dict[int, list[tuple[float, float]]] = {}
    for number, (start_s, row) in label_places(crowded).items():
        end_s = start_s + width_s * 6.8 * len(f"{number} {windows[number - 1].label}")
        assert summary.start_s <= start_s
        assert end_s <= summary.end_s
        assert start_s <= max(windows[number - 1].start_s, summary.start_s)
        rows.setdefault(row, []).append((start_s, end_s))
    assert len(rows) <= LABEL_ROWS_MAX
    for labels in rows.values():
        labels.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(labels))


def test_a_label_begins_with_its_window_where_there_is_room(summary: Summary) -> None:
    assert [label_places(summary)[window.number] for window in summary.windows] == [
        (window.start_s, 0) for window in summary.windows
    ]
