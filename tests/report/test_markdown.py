"""The summary of a CI job: never too long, and nothing in a journal breaks out of its cell."""

from __future__ import annotations

import dataclasses
import re

from hypothesis import given
from hypothesis import strategies as st

from chaoskit.report import Summary
from chaoskit.report.markdown import BYTES_MAX, _safe, render


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def cells(row: str) -> int:
    return len(re.findall(r"(?<!\\)\|", row)) - 1


def test_it_tells_verdict_figures_probes_faults_and_how_to_run_it_again(summary: Summary) -> None:
    text = render(summary)
    assert text.startswith("## ✅ PASSED: kill-and-rejoin\n")
    assert "| Rejoin | **5.6 s** |" in text
    assert "✅ pass | S4 fencing" in text
    assert "➖ not run | S16 restored" in text
    assert "✅ landed (pid 4103, signal 9, gone 0.34 ms)" in text
    assert "```sh\nchaoskit run faults/kill-and-rejoin.toml --seed 7\n```" in text


def test_every_row_of_a_table_has_as_many_cells_as_its_head(summary: Summary) -> None:
    evil = "a | b\n| c | <b>x</b> @someone `code` [l](http://x) **bold** ~~no~~"
    hostile = dataclasses.replace(
        summary,
        probes=tuple(dataclasses.replace(probe, detail=evil, name=evil) for probe in summary.probes),
        injections=tuple(dataclasses.replace(row, injection=evil, skipped=evil) for row in summary.injections),
    )
    text = render(hostile)
    table: list[int] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            table = []
            continue
        table.append(cells(line))
        assert table[-1] == table[0], line
    assert "<b>" not in text
    assert "@someone" not in text


@given(st.text())
def test_a_safe_text_is_one_line_without_live_markup(text: str) -> None:
    safe = _safe(text)
    assert "\n" not in safe
    assert "<" not in safe
    assert re.search(r"(?<!\\)(?:\\\\)*[|`*\[\]]", safe) is None


def test_a_long_summary_is_cut_at_a_line_with_a_note(summary: Summary) -> None:
    text = render(dataclasses.replace(summary, injections=summary.injections * 4000))
    assert len(text.encode()) <= BYTES_MAX
    assert "Cut here" in text.splitlines()[-1]
    assert all(row.endswith("|") for row in rows_of(text))


def test_a_command_with_backticks_stays_inside_its_fence(summary: Summary) -> None:
    text = render(dataclasses.replace(summary, command="echo ```\n## not a heading"))
    fence = re.search(r"^(`{4,})sh$", text, re.MULTILINE)
    assert fence is not None
    assert text.count(fence.group(1)) == 2
