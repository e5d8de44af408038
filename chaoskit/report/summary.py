"""A run's history, its control run and its probe results, put together into one `Summary`.

    history  ──┐
    control  ──┼──▶ summarise ──▶ Summary ──▶ html, markdown, junit, json
    results  ──┘

Pure: the same arguments give the same summary, on any machine and at any time, so a report can be written again from
a run's folder. Every secret-looking text is hidden here, once, before any renderer sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from chaoskit.journal import History, InjectionEntry
from chaoskit.probes import ProbeResult, Verdict
from chaoskit.report.conclusion import conclude, residue_of
from chaoskit.report.model import (
    FORMAT,
    Curve,
    Fidelity,
    Injection,
    KeyFigure,
    Probe,
    ProbeVerdict,
    Rejoin,
    Summary,
)
from chaoskit.report.text import (
    count_text,
    family_of,
    link_name,
    measure_text,
    number_text,
    pairs_text,
    seconds_text,
    shortened,
    without_secrets,
)
from chaoskit.report.timeline import (
    Clock,
    clock_of,
    curve_of,
    fragment_count,
    gap_of,
    integer_of,
    lanes_of,
    links_of,
    marks_of,
    merged_tokens,
    number_of,
    phases_of,
    rejoins_of,
    windows_of,
)

_VERDICTS: Mapping[Verdict, ProbeVerdict] = {
    Verdict.PASS: "pass",
    Verdict.UNKNOWN: "unknown",
    Verdict.FAIL: "fail",
    Verdict.NOT_RUN: "not run",
}

_ORDER: Sequence[ProbeVerdict] = ("fail", "unknown", "pass", "not run")
"""What needs reading comes first."""


def summarise(
    history: History,
    control: History | None,
    results: Sequence[ProbeResult],
    *,
    command: str,
    fidelity: Mapping[str, tuple[str, str]] | None = None,
    versions: Mapping[str, str] | None = None,
    about: str = "",
) -> Summary:
    """Everything a report shows of one run.

    `command` is the line that reproduces it; `fidelity` maps a fault kind to (what it stands for, what it does not
    certify); `versions` names what ran, for instance {"python": "3.12.1"}; `about` is the plan's own description.
    """
    header = history.header
    told = {} if header is None else header.data
    clock = clock_of(history)
    windows = windows_of(history, clock)
    rejoins = rejoins_of(history, clock)
    curve = curve_of(history, str(told.get("run", "")), clock)
    control_curve = None if control is None else _control_curve(control)
    probes = tuple(sorted(map(_probe, results), key=lambda probe: _ORDER.index(probe.verdict)))
    used = dict.fromkeys(entry.fault for entry in history.injections if entry.fault)
    seed = told.get("seed")
    summary = Summary(
        format=FORMAT,
        run=str(told.get("run", "")),
        plan=str(told.get("plan", "")),
        about=about,
        target=str(told.get("target", "")),
        seed=seed if type(seed) is int else None,
        wall_time=_wall_time_text(told.get("wall_time")),
        command=command,
        control_run="" if control_curve is None else control_curve.run,
        versions=_versions(told, versions or {}),
        conclusion=conclude(history, results),
        figures=_figures(history, control, results, curve, control_curve, rejoins),
        start_s=clock.start_s,
        end_s=clock.end_s,
        phases=phases_of(history, clock),
        curve=curve,
        control=control_curve,
        gap=gap_of(curve, control_curve),
        windows=windows,
        marks=marks_of(windows, rejoins, history),
        lanes=lanes_of(history, clock),
        links=links_of(history, clock),
        injections=tuple(_injection(n, entry, clock) for n, entry in enumerate(history.injections, start=1)),
        probes=tuple(probe for probe in probes if probe.verdict != "not run"),
        not_run=tuple(probe for probe in probes if probe.verdict == "not run"),
        rejoins=rejoins,
        fidelity=tuple(Fidelity(kind, *(fidelity or {})[kind]) for kind in used if kind in (fidelity or {})),
        residue=residue_of(history),
        notes=_notes(history),
    )
    return without_secrets(summary)


def _notes(history: History) -> tuple[str, ...]:
    notes = []
    if history.damaged:
        where = ", ".join(history.damaged_at[:3])
        notes.append(f"{history.damaged} damaged lines of event tapes are left out, first at {where}.")
    if history.torn:
        notes.append("The last line of the journal was cut: its writer was killed.")
    return tuple(notes)


def _control_curve(control: History) -> Curve:
    name = "" if control.header is None else str(control.header.get("run", ""))
    return curve_of(control, name, clock_of(control))


def _versions(told: Mapping[str, object], others: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What ran: chaoskit and the journal's own `versions` first, since a report may be written again on another
    machine."""
    named = {name: str(told[name]) for name in ("chaoskit", "python", "platform") if told.get(name)}
    return tuple({**named, **others}.items())


def _wall_time_text(wall_time: object) -> str:
    """`2026-04-11 10:15:00 UTC`; a wall time of another form as it is."""
    if isinstance(wall_time, (int, float)) and not isinstance(wall_time, bool):
        return f"{datetime.fromtimestamp(wall_time, UTC):%Y-%m-%d %H:%M:%S} UTC"
    text = str(wall_time or "")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    if moment.tzinfo is None:
        return f"{moment:%Y-%m-%d %H:%M:%S}"
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _probe(result: ProbeResult) -> Probe:
    return Probe(
        id=result.id,
        name=result.probe,
        verdict=_VERDICTS[result.verdict],
        statement=result.statement,
        detail=shortened(result.detail),
        measured=_finite(result.measured),
        tolerance=_finite(result.tolerance),
        unit=result.unit,
        records=tuple(result.evidence),
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or value != value or value in (float("inf"), float("-inf")) else float(value)


def _injection(number: int, entry: InjectionEntry, clock: Clock) -> Injection:
    start_t = entry.t_applied if entry.t_applied is not None else entry.t_intent
    ended = start_t is not None and entry.t_undone is not None
    return Injection(
        number=number,
        injection=entry.id,
        fault=entry.fault or "–",
        family=family_of(entry.fault),
        targets=tuple(link_name(target) for target in entry.targets),
        trigger=entry.trigger,
        settings=", ".join(pairs_text(entry.settings)),
        applied_s=clock.maybe(start_t),
        ended_s=clock.maybe(entry.t_undone),
        duration_s=round(entry.t_undone - start_t, 3) if ended else None,  # type: ignore[operator]  # `ended` says so
        landed=entry.landed,
        landed_evidence=pairs_text(entry.landed_evidence or entry.applied_evidence),
        undone=entry.clean,
        undone_evidence=pairs_text(entry.undone_evidence),
        skipped=entry.skipped or "",
        records=entry.records,
    )


def _figures(
    history: History,
    control: History | None,
    results: Sequence[ProbeResult],
    curve: Curve,
    control_curve: Curve | None,
    rejoins: Sequence[Rejoin],
) -> tuple[KeyFigure, ...]:
    found = [
        _loss_figure(curve, control_curve, results),
        _goodput_figure(results),
        _rejoin_figure(rejoins),
        _gap_figure(history, control),
        _tokens_figure(history, curve),
        _faults_figure(history),
    ]
    return tuple(figure for figure in found if figure is not None)


def _loss_figure(curve: Curve, control: Curve | None, results: Sequence[ProbeResult]) -> KeyFigure | None:
    if not curve.loss:
        return None
    note = f"after {curve.merges[-1]} merges"
    if control is not None and control.loss:
        ratio = curve.loss[-1] / control.loss[-1] - 1 if control.loss[-1] else 0.0
        note = f"control run {number_text(control.loss[-1])}: {_percent(ratio)}"
    judged = next((result for result in results if result.probe == "loss" and result.tolerance is not None), None)
    if judged is not None and judged.tolerance is not None:
        note += f"; allowed {measure_text(judged.tolerance, judged.unit)}"
    return KeyFigure("Final loss", number_text(curve.loss[-1]), note, curve.loss[-1], "nats per byte")


def _percent(share: float) -> str:
    return f"{100 * share:+.1f}\u00a0%"


def _goodput_figure(results: Sequence[ProbeResult]) -> KeyFigure | None:
    """The goodput probe's own figure: what the report shows is what was judged."""
    judged = next((result for result in results if result.probe == "goodput" and result.measured is not None), None)
    if judged is None or judged.measured is None:
        return None
    note = "of the tokens processed were merged"
    if judged.tolerance is not None:
        note = f"of the control run's; at least {measure_text(judged.tolerance, judged.unit)} was asked for"
    value = measure_text(judged.measured, judged.unit)
    return KeyFigure("Goodput", value, note, _finite(judged.measured), judged.unit)


def _rejoin_figure(rejoins: Sequence[Rejoin]) -> KeyFigure | None:
    times = [rejoin.ready_after_s for rejoin in rejoins if rejoin.ready_after_s is not None]
    if not times:
        return None
    merged = [rejoin.merge_after_s for rejoin in rejoins if rejoin.merge_after_s is not None]
    note = "from lost to training again"
    if merged:
        note += f"; back in a merge after {seconds_text(max(merged))}"
    if len(times) > 1:
        note = f"the longest of {len(times)}, {note}"
    return KeyFigure("Rejoin", seconds_text(max(times)), note, max(times), "s")


def _gap_figure(history: History, control: History | None) -> KeyFigure | None:
    gap_s = _longest_gap_s(history)
    if gap_s is None:
        return None
    control_s = None if control is None else _longest_gap_s(control)
    note = "the longest time without a merge"
    if control_s is not None:
        note += f"; control run {seconds_text(control_s)}"
    return KeyFigure("Longest gap", seconds_text(gap_s), note, round(gap_s, 3), "s")


def _longest_gap_s(history: History) -> float | None:
    times = [record.t for record in history.of("merge")]
    return max((after - before for before, after in pairwise(times)), default=None)


def _tokens_figure(history: History, curve: Curve) -> KeyFigure | None:
    """Tokens merged, and their share of all tokens processed. An incarnation's last step tells how many it
    processed."""
    processed: dict[tuple[str, int], float] = {}
    for record in history.of("step"):
        count = number_of(record, "tokens")
        if count is not None:
            key = (record.node, integer_of(record, "incarnation"))
            processed[key] = max(count, processed.get(key, 0.0))
    fragments = fragment_count(history)
    total = sum(processed.values())
    if not total or not fragments or not curve.work_tokens:
        return None
    merged = sum(merged_tokens(record) for record in history.of("merge")) / fragments
    note = f"{100 * merged / total:.0f} % of the {count_text(total)} processed, in {len(history.of('merge'))} merges"
    return KeyFigure("Tokens merged", count_text(merged), note, round(merged), "tokens")


def _faults_figure(history: History) -> KeyFigure:
    entries = history.injections
    landed = sum(entry.landed is True for entry in entries)
    undone = sum(entry.clean is True for entry in entries)
    value = f"{landed} of {len(entries)}" if entries else "none"
    note = f"landed; {undone} undone, with proof" if entries else "no fault was injected"
    return KeyFigure("Faults", value, note, float(landed), "injections")
