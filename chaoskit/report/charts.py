"""The charts of a report as inline SVG, drawn by matplotlib.

All charts over time have one width and one left margin, so a moment is at the same place in each of them. Colours are
drawn as stand-ins and replaced by the page's CSS variables, so one drawing serves the light theme, the dark theme and
paper. The bytes are deterministic: no date, a fixed hash salt, and a prefix of its own for the ids of each chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from chaoskit.report.model import Curve, FaultWindow, Lane, LinkLane, Segment, State, Summary
from chaoskit.report.svg import (
    FONT_PX,
    LANE_PX,
    LEFT_PX,
    RIGHT_PX,
    SMALL_PX,
    WIDTH_PX,
    colour,
    drawing,
    label,
    line_style,
    plain_figure,
    svg,
    timed_figure,
    tip,
)
from chaoskit.report.text import count_text, number_text, seconds_text
from chaoskit.report.timeline import interpolated

_STATE_WORDS: dict[State, str] = {"up": "up", "joining": "joining", "paused": "paused", "down": "down"}
TIME_LABEL = "seconds on the plan's clock, which begins when all roles are up and steady"
LABEL_ROWS_MAX = 4
"""Rows of fault labels above the loss chart; beyond them a label shows its number only."""
_LETTER_PX = 6.8
"""Width of a letter, generously: the font is that of the reader's system."""
_LABEL_GAP_PX = 14


def loss_chart(summary: Summary) -> str:
    """The loss of the global model over time: this run, its control run as a ghost, faults shaded, marks on the
    line."""
    places = label_places(summary)
    top_px = 14 + 19 * (max((row for _, row in places.values()), default=-1) + 1)
    with drawing():
        figure, axes = timed_figure(summary, plot_px=300, top_px=top_px, bottom_px=44)
        _shade(axes, summary.windows)
        _label_windows(axes, summary, places)
        curves = [summary.curve, *([summary.control] if summary.control else [])]
        losses = [
            loss for curve in curves for t_s, loss in zip(curve.t_s, curve.loss, strict=True) if t_s >= summary.start_s
        ]
        if summary.control is not None:
            _draw_curve(axes, summary.control, ghost=True)
        _draw_curve(axes, summary.curve, ghost=False)
        if losses:
            spread = max(max(losses) - min(losses), 1e-3)
            axes.set_ylim(min(losses) - 0.08 * spread, max(losses) + 0.08 * spread)
        else:
            axes.set_yticks([])
            _say_nothing_known(axes, "The tape holds no evaluation of the global model.")
        _draw_marks(axes, summary)
        axes.set_ylabel("loss, nats per byte", color=colour("muted"), fontsize=SMALL_PX)
        axes.set_xlabel(TIME_LABEL, color=colour("muted"), fontsize=SMALL_PX)
        return svg(figure, "loss", "Loss of the global model over time", _loss_words(summary))


def lane_chart(summary: Summary) -> str:
    """One lane for each role: its state over time, the rate of its steps, and the faults that hit it."""
    with drawing():
        figure, axes = timed_figure(summary, plot_px=LANE_PX * max(1, len(summary.lanes)), top_px=24, bottom_px=28)
        rate_max = max((rate for lane in summary.lanes for _, rate in lane.rate), default=0.0)
        for row, lane in enumerate(summary.lanes):
            _draw_lane(axes, row, lane, rate_max)
        _draw_lane_marks(axes, summary)
        _name_rows(axes, [lane.role for lane in summary.lanes])
        _draw_phases(axes, summary)
        return svg(figure, "lanes", "Roles over time", _lane_words(summary))


def link_chart(summary: Summary) -> str:
    """One lane for each link that a fault touched; empty text when there is none."""
    if not summary.links:
        return ""
    with drawing():
        figure, axes = timed_figure(summary, plot_px=LANE_PX * len(summary.links), top_px=8, bottom_px=28)
        for row, lane in enumerate(summary.links):
            _draw_link(axes, row, lane, summary)
        _name_rows(axes, [lane.link.replace(" → ", " →\n") for lane in summary.links])
        words = "; ".join(
            f"{lane.link}: "
            + ", ".join(f"{span.fault} from {span.start_s:.1f} to {span.end_s:.1f} s" for span in lane.spans)
            for lane in summary.links
        )
        return svg(figure, "links", "Faults on links over time", words)


def work_charts(summary: Summary) -> tuple[str, str]:
    """Two small charts: quality at equal work (over merges), and tokens merged over time. They are two different
    claims."""
    curves = [(summary.curve, False), *([(summary.control, True)] if summary.control else [])]
    with drawing():
        quality = _quality_chart(summary)
        figure, axes = plain_figure()
        for curve, ghost in reversed(curves):
            axes.plot(curve.work_t_s, curve.work_tokens, **line_style(ghost))
        axes.set_xlim(summary.start_s, max(summary.end_s, summary.start_s + 1e-3))
        axes.set_ylim(bottom=0)
        _shade(axes, summary.windows)
        axes.yaxis.set_major_formatter(lambda value, _: count_text(value))
        axes.set_xlabel(TIME_LABEL, color=colour("muted"), fontsize=SMALL_PX)
        axes.set_ylabel("tokens merged", color=colour("muted"), fontsize=SMALL_PX)
        pace = svg(figure, "pace", "Tokens merged over time", _end_words(curves, "tokens", "time"))
    return quality, pace


def _quality_chart(summary: Summary) -> str:
    figure, axes = plain_figure()
    axes.set_xlabel("merges", color=colour("muted"), fontsize=SMALL_PX)
    if not summary.gap:
        axes.plot(summary.curve.merges, summary.curve.loss, **line_style(ghost=False))
        axes.set_ylabel("loss, nats per byte", color=colour("muted"), fontsize=SMALL_PX)
        return svg(figure, "quality", "Loss over merges", _end_words([(summary.curve, False)], "loss", "merges"))
    axes.axhline(0, color=colour("ghost"), linewidth=7, alpha=0.4, zorder=2)
    axes.plot([merges for merges, _ in summary.gap], [100 * gap for _, gap in summary.gap], **line_style(ghost=False))
    widest = max(abs(gap) for _, gap in summary.gap)
    axes.set_ylim(-100 * max(1.2 * widest, 0.02), 100 * max(1.2 * widest, 0.02))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.3g} %" if value else "0 %")
    axes.set_ylabel("loss against control run", color=colour("muted"), fontsize=SMALL_PX)
    words = f"The loss ends {summary.gap[-1][1]:+.1%} against the control run; the widest gap was {widest:.1%}."
    return svg(figure, "quality", "Loss against the control run over merges", words)


def _say_nothing_known(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=colour("muted"))


def _shade(axes: Axes, windows: Sequence[FaultWindow]) -> None:
    for window in windows:
        axes.axvspan(window.start_s, window.end_s, color=colour(window.family), alpha=0.13, linewidth=0, zorder=1)


def label_places(summary: Summary) -> dict[int, tuple[float, int]]:
    """Number of a window -> (time at which its label begins, row above the chart), so that no two labels overlap.

    A label begins with its window, or earlier where it would leave the chart. One without a free row is left out.
    """
    free_from_s = [float("-inf")] * LABEL_ROWS_MAX
    places: dict[int, tuple[float, int]] = {}
    for window in sorted(summary.windows, key=lambda window: window.start_s):
        words = f"{window.number} {window.label}"
        start_s = _label_start(words, window.start_s, summary)
        row = next((index for index, free_s in enumerate(free_from_s) if start_s >= free_s), None)
        if row is not None:
            places[window.number] = (start_s, row)
            free_from_s[row] = start_s + _label_length_s(words, summary)
    return places


def _label_length_s(words: str, summary: Summary) -> float:
    px_per_s = (WIDTH_PX - LEFT_PX - RIGHT_PX) / max(summary.end_s - summary.start_s, 1e-3)
    return (len(words) * _LETTER_PX + _LABEL_GAP_PX) / px_per_s


def _label_start(words: str, wanted_s: float, summary: Summary) -> float:
    return max(summary.start_s, min(wanted_s, summary.end_s - _label_length_s(words, summary)))


def _label_windows(axes: Axes, summary: Summary, places: dict[int, tuple[float, int]]) -> None:
    for window in summary.windows:
        if window.number in places:
            start_s, row = places[window.number]
            words = f"{window.number} {window.label}"
            label(axes, words, (start_s, 1.0), offset=(0, 7 + 19 * row), tint=window.family, bold=True, above=True)


def _draw_curve(axes: Axes, curve: Curve, *, ghost: bool) -> None:
    axes.plot(curve.t_s, curve.loss, **line_style(ghost))


def _draw_marks(axes: Axes, summary: Summary) -> None:
    for index, mark in enumerate(summary.marks):
        y = _loss_at(summary.curve, mark.t_s)
        if y is None:
            continue
        tint = colour("rejoin" if mark.kind == "rejoin" else mark.family)
        shape = {"inject": "v", "undo": "^", "rejoin": "D"}[mark.kind]
        style: Any = {
            "marker": shape,
            "markersize": 9 if mark.kind != "rejoin" else 7.5,
            "markeredgewidth": 1.6,
            "color": tint,
        }
        fill = colour("card") if mark.kind == "undo" else tint
        (sign,) = axes.plot([mark.t_s], [y], markeredgecolor=tint, markerfacecolor=fill, zorder=6, **style)
        words = {"inject": "injected", "undo": "undone", "rejoin": f"{mark.role} trains again"}[mark.kind]
        tip(
            sign,
            f"mark-{index}",
            f"{mark.t_s:.1f} s: {mark.label} {words}" if mark.kind != "rejoin" else f"{mark.t_s:.1f} s: {words}",
        )


def _loss_at(curve: Curve, t_s: float) -> float | None:
    """The loss at a moment; before the first and after the last evaluation, theirs."""
    if not curve.loss:
        return None
    return interpolated(curve.t_s, curve.loss, min(max(t_s, curve.t_s[0]), curve.t_s[-1]))


def _draw_lane(axes: Axes, row: int, lane: Lane, rate_max: float) -> None:
    named: set[int] = set()
    for index, segment in enumerate(lane.segments):
        start_s = max(segment.start_s, axes.get_xlim()[0])
        if segment.end_s <= start_s:
            continue
        (bar,) = axes.barh(
            row, segment.end_s - start_s, left=start_s, height=0.66, color=colour(segment.state), linewidth=0, zorder=2
        )
        tip(bar, f"lane-{row}-{index}", _segment_words(lane.role, segment))
        if segment.state == "up" and segment.incarnation not in named:
            named.add(segment.incarnation)
    if lane.rate and rate_max > 0:
        times = [t for t, _ in lane.rate]
        tops = [row + 0.33 - 0.58 * rate / rate_max for _, rate in lane.rate]
        axes.fill_between(
            times, tops, row + 0.33, step="mid", color=colour("up-strong"), alpha=0.45, linewidth=0, zorder=3
        )
    for incarnation in sorted(named):
        first = next(s for s in lane.segments if s.incarnation == incarnation and s.state == "up")
        at = (max(first.start_s, axes.get_xlim()[0]), float(row))
        label(axes, f"#{incarnation}", at, offset=(5, 0), tint="ink", bold=True)


def _segment_words(role: str, segment: Segment) -> str:
    length = seconds_text(segment.end_s - segment.start_s)
    number = f" (#{segment.incarnation})" if segment.incarnation else ""
    return f"{role}{number} {_STATE_WORDS[segment.state]} for {length}, {segment.start_s:.1f} to {segment.end_s:.1f} s"


def _draw_lane_marks(axes: Axes, summary: Summary) -> None:
    rows = {lane.role: row for row, lane in enumerate(summary.lanes)}
    for window in summary.windows:
        for target in window.targets:
            if target in rows:
                row = rows[target]
                axes.plot(
                    [window.start_s] * 2, [row - 0.44, row + 0.33], color=colour(window.family), linewidth=2, zorder=5
                )
                axes.plot(
                    [window.start_s], [row - 0.40], marker="v", markersize=8, color=colour(window.family), zorder=6
                )
                at = (window.start_s, row - 0.36)
                label(axes, str(window.number), at, offset=(7, -1), tint=window.family, bold=True)
    for mark in summary.marks:
        if mark.kind == "rejoin" and mark.role in rows:
            axes.plot(
                [mark.t_s], [rows[mark.role] - 0.33], marker="D", markersize=6.5, color=colour("rejoin"), zorder=6
            )


def _draw_link(axes: Axes, row: int, lane: LinkLane, summary: Summary) -> None:
    axes.plot(axes.get_xlim(), [row, row], color=colour("line"), linewidth=3, solid_capstyle="butt", zorder=1)
    for index, span in enumerate(lane.spans):
        place: Any = {"width": span.end_s - span.start_s, "left": span.start_s, "height": 0.6, "linewidth": 0}
        axes.barh(row, **place, color=colour("card"), zorder=2)
        (bar,) = axes.barh(row, **place, color=colour("link"), alpha=0.25, zorder=3)
        tip(bar, f"link-{row}-{index}", f"{span.fault} {span.text}, {span.start_s:.1f} to {span.end_s:.1f} s")
        words = f"{span.number}  {span.fault.rpartition('.')[2]} {span.text}"
        fits = _label_length_s(words, summary) <= span.end_s - span.start_s
        start_s = _label_start(words, span.start_s if fits else span.end_s, summary)
        label(axes, words, (start_s, float(row)), offset=(6, 0), tint="ink")


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.tick_params(
        axis="y", labelsize=FONT_PX if all("\n" not in name for name in names) else SMALL_PX, labelcolor=colour("ink")
    )
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=colour("line"), linewidth=1, zorder=0)


def _draw_phases(axes: Axes, summary: Summary) -> None:
    for phase in summary.phases:
        start_s = max(phase.start_s, summary.start_s)
        if phase.end_s <= start_s:
            continue
        if start_s > summary.start_s:
            axes.axvline(start_s, color=colour("muted"), linewidth=1, linestyle=(0, (1, 3)), zorder=4)
        if phase.end_s - start_s >= 0.05 * (summary.end_s - summary.start_s):
            label(axes, phase.name, (start_s, 1.0), offset=(3, 6), tint="muted", above=True)


def _loss_words(summary: Summary) -> str:
    if not summary.curve.loss:
        return "The tape holds no evaluation of the global model."
    first, last = number_text(summary.curve.loss[0]), number_text(summary.curve.loss[-1])
    text = f"The loss goes from {first} to {last} in {seconds_text(summary.curve.t_s[-1])}."
    if summary.control is not None and summary.control.loss:
        text += f" The control run ends at {number_text(summary.control.loss[-1])}."
    for window in summary.windows:
        text += f" Fault {window.number}, {window.label}, from {window.start_s:.1f} to {window.end_s:.1f} s."
    return text


def _lane_words(summary: Summary) -> str:
    lanes, start_s = summary.lanes, summary.start_s
    parts = []
    for lane in lanes:
        away = [
            _segment_words(lane.role, segment)
            for segment in lane.segments
            if segment.state != "up" and segment.end_s > start_s
        ]
        parts.append("; ".join(away) if away else f"{lane.role} up throughout")
    return ". ".join(parts) + "." if parts else "No role is known."


def _end_words(curves: Sequence[tuple[Curve, bool]], what: str, over: str) -> str:
    parts = []
    unit = "nats per byte" if what == "loss" else "tokens"
    for curve, ghost in curves:
        values = curve.loss if what == "loss" else curve.work_tokens
        if values:
            parts.append(f"the {'control run' if ghost else 'run'} ends at {number_text(values[-1])} {unit}")
    return f"{what} over {over}: {', '.join(parts)}." if parts else "Nothing is known."
