"""JSON by its schema, and the files of a report in a run's folder."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from chaoskit.errors import UsageError
from chaoskit.report import Summary, write_reports
from chaoskit.report.json import SCHEMA_PATH, render, schema


def test_the_schema_that_is_shipped_is_that_of_the_model() -> None:
    assert json.loads(SCHEMA_PATH.read_text()) == schema(), (
        "run `python -m chaoskit.report.json > chaoskit/report/templates/report.schema.json`"
    )


def test_a_report_is_valid_by_its_schema(summary: Summary) -> None:
    told = json.loads(render(summary))
    jsonschema.Draft202012Validator(schema()).validate(told)
    assert told["conclusion"] == {"word": "PASSED", "exit_code": 0, "why": summary.conclusion.why}


def test_a_report_that_lacks_a_field_is_not_valid(summary: Summary) -> None:
    told = json.loads(render(summary))
    del told["conclusion"]["exit_code"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema()).validate(told)


def test_all_four_forms_are_written_and_nothing_else(run_dir: Path, summary: Summary) -> None:
    written = write_reports(run_dir, summary)
    assert {form: path.name for form, path in written.items()} == {
        "html": "report.html",
        "markdown": "report.md",
        "junit": "junit.xml",
        "json": "report.json",
    }
    assert sorted(path.name for path in run_dir.iterdir()) == sorted(path.name for path in written.values())
    again = {path: path.read_bytes() for path in written.values()}
    write_reports(run_dir, summary)
    assert {path: path.read_bytes() for path in written.values()} == again


def test_a_report_that_cannot_be_rendered_leaves_the_old_one_as_it_was(
    run_dir: Path, summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Summary) -> str:
        raise ValueError("no")

    write_reports(run_dir, summary)
    before = {path.name: path.read_bytes() for path in run_dir.iterdir()}
    monkeypatch.setattr("chaoskit.report.html.render", broken)
    with pytest.raises(ValueError, match="no"):
        write_reports(run_dir, summary)
    assert {path.name: path.read_bytes() for path in run_dir.iterdir()} == before


def test_a_write_that_fails_in_the_middle_leaves_no_half_file(
    run_dir: Path, summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_reports(run_dir, summary)
    before = {path.name: path.read_bytes() for path in run_dir.iterdir()}

    def full(self: Path, text: str, encoding: str) -> int:
        with self.open("w", encoding=encoding) as file:
            file.write(text[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    changed = dataclasses.replace(summary, about="another")
    with pytest.raises(UsageError, match=r"report\.json: the report cannot be written \(No space left"):
        write_reports(run_dir, changed)
    assert {path.name: path.read_bytes() for path in run_dir.iterdir()} == before


def test_a_conclusion_needs_no_plotting_library() -> None:
    code = "import sys, chaoskit.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False, timeout=60).returncode == 0
