"""The report as Markdown, for the summary page of a CI job."""

from __future__ import annotations

import re
from collections.abc import Sequence

from chaoskit.report.model import Injection, Probe, Summary
from chaoskit.report.text import measure_text, seconds_text

BYTES_MAX = 900_000
"""Job summaries of a megabyte or more are refused whole by the common CI hosts, so the text is cut before that."""
CUT_NOTE = "\n\n*Cut here: longer than a CI job page may be. The whole of it is in report.html and report.json.*\n"
_SIGNS = {"pass": "✅ pass", "fail": "❌ fail", "unknown": "❔ unknown", "not run": "➖ not run"}
_WORD_SIGNS = {0: "✅", 2: "❔", 130: "➖"}


def render(summary: Summary) -> str:
    """The whole text, at most `BYTES_MAX` bytes of UTF-8. Texts of a journal cannot break out of their cell."""
    conclusion = summary.conclusion
    parts = [
        f"## {_WORD_SIGNS.get(conclusion.exit_code, '❌')} {conclusion.word}: {_safe(summary.plan or summary.run)}",
        f"{_safe(conclusion.why)} Exit code {conclusion.exit_code}.",
        _figures(summary),
        _residue(summary.residue),
        *map(_safe, summary.notes),
        _probes(summary.probes, summary.not_run),
        _injections(summary.injections),
        _rejoins(summary),
        _fence("Run it again:", summary.command),
        _facts(summary),
    ]
    return _cut("\n\n".join(part for part in parts if part) + "\n")


def _figures(summary: Summary) -> str:
    return _table(["Figure", "Value", ""], [[f.name, f"**{_safe(f.value)}**", _safe(f.note)] for f in summary.figures])


def _residue(residue: Sequence[str]) -> str:
    return "### Not proved undone\n\n" + "\n".join(f"- {_safe(item)}" for item in residue) if residue else ""


def _probes(probes: Sequence[Probe], not_run: Sequence[Probe]) -> str:
    rows = [
        [
            _SIGNS[probe.verdict],
            _safe(probe.name if probe.id == probe.name else f"{probe.id} {probe.name}"),
            measure_text(probe.measured, probe.unit),
            measure_text(probe.tolerance, probe.unit),
            _safe(probe.detail),
        ]
        for probe in (*probes, *not_run)
    ]
    return "### Probes\n\n" + _table(["", "Probe", "Measured", "Allowed", "Detail"], rows) if rows else ""


def _injections(injections: Sequence[Injection]) -> str:
    rows = []
    for row in injections:
        proof = [_proof(row.landed, "landed"), _proof(row.undone, "undone")]
        if row.skipped:
            proof = [f"❔ not injected: {_safe(row.skipped)}", ""]
        else:
            proof[0] += _evidence(row.landed_evidence)
            proof[1] += _evidence(row.undone_evidence)
        where = _safe(", ".join(row.targets)) or "–"
        rows.append(
            [
                _safe(row.injection),
                f"{_safe(row.fault)} on {where}",
                _safe(row.trigger),
                seconds_text(row.duration_s),
                *proof,
            ]
        )
    return (
        "### Faults\n\n" + _table(["Injection", "Fault", "Trigger", "Lasted", "Landed", "Undone"], rows) if rows else ""
    )


def _proof(state: bool | None, word: str) -> str:
    return {True: f"✅ {word}", False: f"❌ not {word}", None: "❔ no record"}[state]


def _evidence(items: Sequence[str]) -> str:
    return f" ({_safe(', '.join(items))})" if items else ""


def _rejoins(summary: Summary) -> str:
    rows = [
        [
            f"{_safe(row.learner)} #{row.incarnation}",
            _safe(row.cause),
            *map(seconds_text, (row.join_after_s, row.ready_after_s, row.merge_after_s)),
        ]
        for row in summary.rejoins
    ]
    return (
        "### Rejoins\n\n" + _table(["Learner", "Cause", "Joined after", "Training after", "In a merge after"], rows)
        if rows
        else ""
    )


def _facts(summary: Summary) -> str:
    facts = [f"run {summary.run}", *([f"seed {summary.seed}"] if summary.seed is not None else [])]
    facts += [f"control run {summary.control_run}"] if summary.control_run else ["no control run"]
    facts += [f"{name} {version}" for name, version in summary.versions]
    return "<sub>" + _safe(" · ".join(facts)) + "</sub>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _safe(text: str) -> str:
    """`text` as plain words inside a table cell: no markup, no HTML, no mention of a user, one line."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_{}\[\]|~#!])", r"\\\1", text)
    return re.sub(r"@(?=\w)", "@\u200b", text)


def _fence(title: str, code: str) -> str:
    longest = max((len(found) for found in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{title}\n\n{fence}sh\n{code}\n{fence}"


def _cut(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= BYTES_MAX:
        return text
    kept = encoded[: BYTES_MAX - len(CUT_NOTE.encode())].decode(errors="ignore")
    return kept[: kept.rfind("\n")] + CUT_NOTE
