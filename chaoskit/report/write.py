"""All four forms of a report, written into a run's folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from chaoskit.errors import UsageError
from chaoskit.report.model import Summary


def write_reports(run_dir: Path, summary: Summary) -> dict[str, Path]:
    """Write report.html, report.md, junit.xml and report.json; returns their paths by format.

    Each file is there whole or as it was before. HTML comes last: when it is new, so are the others. Raises
    UsageError if the folder cannot be written to.
    """
    written = {}
    for form, (name, render) in _forms().items():
        path = run_dir / name
        try:
            _replace(path, render(summary))
        except OSError as error:
            raise UsageError(
                f"{path}: the report cannot be written ({error.strerror}); expected a writable folder"
            ) from error
        written[form] = path
    return written


def _forms() -> Mapping[str, tuple[str, Callable[[Summary], str]]]:
    # Imported here: matplotlib takes most of a second, and whoever only asks for a conclusion need not wait for it.
    from chaoskit.report import html, json, junit, markdown

    return {
        "json": ("report.json", json.render),
        "markdown": ("report.md", markdown.render),
        "junit": ("junit.xml", junit.render),
        "html": ("report.html", html.render),
    }


def _replace(path: Path, text: str) -> None:
    """Write beside the file, then move over it, so that a reader never sees half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
