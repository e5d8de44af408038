"""The charts of a report as inline SVG, drawn by matplotlib.

All charts over time have one width and one left margin, so a moment is at the same place in each of them. Colours are drawn as
stand-ins and replaced by the page's CSS variables, so one drawing serves the light theme, the dark theme and paper. The bytes are
deterministic: no date, a fixed hash salt, and a prefix of its own for the ids of each chart.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from chaoskit.report.model import Curve, Family, FaultWindow, Lane, LinkLane, Mark, Segment, State, Summary
from chaoskit.report.palette import PALETTE
from chaoskit.report.text import count_text, number_text, seconds_text

WIDTH_PX = 1080
LEFT_PX = 104
RIGHT_PX = 16
LANE_PX = 34
FONT_PX = 12.5
SMALL_PX = 11

_STATE_WORDS: dict[State, str] = {"up": "up", "joining": "joining", "paused": "paused", "down": "down"}
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "chaoskit",
    "font.size": FONT_PX,
    "axes.linewidth": 1.0,
    "path.simplify": True,
    "text.parse_math": False,  # a role may be named $x$
}
LABEL_ROWS_MAX = 4
"""Rows of fault labels above the loss chart; beyond them a label shows its number only."""
_LETTER_PX = 6.4


def colour(name: str) -> str:
    """The stand-in for a colour of the page: its value in the light theme."""
    return PALETTE[name][0]


def loss_chart(summary: Summary) -> str:
    """The loss of the global model over time: this run, its control run as a ghost, faults shaded, marks on the line."""
    rows = _label_rows(summary.windows, summary)
    top_px = 14 + 19 * (max(rows.values(), default=-1) + 1)
    with mpl.rc_context(_SETTINGS):
        figure, axes = _timed_figure(summary, plot_px=300, top_px=top_px, bottom_px=44)
        _shade(axes, summary.windows)
        _label_windows(axes, summary, rows)
        curves = [summary.curve, *([summary.control] if summary.control else [])]
        losses = [loss for curve in curves for loss in curve.loss]
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
        axes.set_xlabel("seconds since the steady phase began", color=colour("muted"), fontsize=SMALL_PX)
        return _svg(figure, "loss", "Loss of the global model over time", _loss_words(summary))


def lane_chart(summary: Summary) -> str:
    """One lane for each role: its state over time, the rate of its steps, and the faults that hit it."""
    with mpl.rc_context(_SETTINGS):
        figure, axes = _timed_figure(summary, plot_px=LANE_PX * max(1, len(summary.lanes)), top_px=24, bottom_px=28)
        rate_max = max((rate for lane in summary.lanes for _, rate in lane.rate), default=0.0)
        for row, lane in enumerate(summary.lanes):
            _draw_lane(axes, row, lane, rate_max)
        _draw_lane_marks(axes, summary)
        _name_rows(axes, [lane.role for lane in summary.lanes])
        _draw_phases(axes, summary)
        return _svg(figure, "lanes", "Roles over time", _lane_words(summary.lanes))


def link_chart(summary: Summary) -> str:
    """One lane for each link that a fault touched; empty text when there is none."""
    if not summary.links:
        return ""
    with mpl.rc_context(_SETTINGS):
        figure, axes = _timed_figure(summary, plot_px=LANE_PX * len(summary.links), top_px=8, bottom_px=28)
        for row, lane in enumerate(summary.links):
            _draw_link(axes, row, lane, summary.end_s)
        _name_rows(axes, [lane.link.replace(" → ", " →\n") for lane in summary.links])
        words = "; ".join(
            f"{lane.link}: " + ", ".join(f"{span.fault} from {span.start_s:.1f} to {span.end_s:.1f} s" for span in lane.spans)
            for lane in summary.links
        )
        return _svg(figure, "links", "Faults on links over time", words)


def work_charts(summary: Summary) -> tuple[str, str]:
    """Two small charts: loss at equal work (over merges), and tokens merged over time. They are two different claims."""
    curves = [(summary.curve, False), *([(summary.control, True)] if summary.control else [])]
    with mpl.rc_context(_SETTINGS):
        figure, axes = _plain_figure()
        for curve, ghost in reversed(curves):
            axes.plot(curve.merges, curve.loss, **_line_style(ghost))
        axes.set_xlabel("merges", color=colour("muted"), fontsize=SMALL_PX)
        axes.set_ylabel("loss, nats per byte", color=colour("muted"), fontsize=SMALL_PX)
        quality = _svg(figure, "quality", "Loss over merges", _end_words(curves, "loss", "merges"))
        figure, axes = _plain_figure()
        for curve, ghost in reversed(curves):
            axes.plot(curve.work_t_s, curve.work_tokens, **_line_style(ghost))
        axes.set_xlim(0, max(summary.end_s, 1e-3))
        axes.set_ylim(bottom=0)
        _shade(axes, summary.windows)
        axes.yaxis.set_major_formatter(lambda value, _: count_text(value))
        axes.set_xlabel("seconds since the steady phase began", color=colour("muted"), fontsize=SMALL_PX)
        axes.set_ylabel("tokens merged", color=colour("muted"), fontsize=SMALL_PX)
        pace = _svg(figure, "pace", "Tokens merged over time", _end_words(curves, "tokens", "time"))
    return quality, pace


# --- figures and axes ---------------------------------------------------------------------------------------------------


def _timed_figure(summary: Summary, *, plot_px: float, top_px: float, bottom_px: float) -> tuple[Figure, Axes]:
    height_px = plot_px + top_px + bottom_px
    figure = Figure(figsize=(WIDTH_PX / 72, height_px / 72), dpi=72)
    axes = figure.add_axes(
        (LEFT_PX / WIDTH_PX, bottom_px / height_px, (WIDTH_PX - LEFT_PX - RIGHT_PX) / WIDTH_PX, plot_px / height_px)
    )
    axes.set_xlim(summary.start_s, max(summary.end_s, summary.start_s + 1e-3))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, steps=[1, 2, 5, 10], integer=True))
    _quiet(axes)
    return figure, axes


def _plain_figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(520 / 72, 250 / 72), dpi=72)
    axes = figure.add_axes((62 / 520, 44 / 250, (520 - 62 - 14) / 520, (250 - 44 - 12) / 250))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    _quiet(axes)
    return figure, axes


def _quiet(axes: Axes) -> None:
    """Only what carries meaning: no box, a faint grid, muted ticks."""
    axes.patch.set_visible(False)
    axes.figure.patch.set_visible(False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(colour("line"))
    axes.grid(axis="y", color=colour("line"), linewidth=1, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=colour("muted"), labelsize=SMALL_PX, pad=6)


def _line_style(ghost: bool) -> dict[str, object]:
    if ghost:
        return {"color": colour("ghost"), "linewidth": 1.6, "linestyle": (0, (4, 3)), "zorder": 3}
    return {"color": colour("run"), "linewidth": 2.2, "solid_capstyle": "round", "zorder": 4}


def _say_nothing_known(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=colour("muted"))


# --- the loss chart -----------------------------------------------------------------------------------------------------


def _shade(axes: Axes, windows: Sequence[FaultWindow]) -> None:
    for window in windows:
        axes.axvspan(window.start_s, window.end_s, color=colour(window.family), alpha=0.13, linewidth=0, zorder=1)


def _label_width_px(text: str) -> float:
    return len(text) * _LETTER_PX + 16


def _label_rows(windows: Sequence[FaultWindow], summary: Summary) -> dict[int, int]:
    """The row of each window's label, so that no two overlap; windows without a free row are left out."""
    px_per_s = (WIDTH_PX - LEFT_PX - RIGHT_PX) / max(summary.end_s - summary.start_s, 1e-3)
    free_from = [-1e9] * LABEL_ROWS_MAX
    rows: dict[int, int] = {}
    for window in sorted(windows, key=lambda window: window.start_s):
        left, width = _label_left(window, px_per_s)
        row = next((index for index, free in enumerate(free_from) if left >= free), None)
        if row is not None:
            rows[window.number] = row
            free_from[row] = left + width
    return rows


def _label_left(window: FaultWindow, px_per_s: float) -> tuple[float, float]:
    """Left edge (px from the axis) and width of a window's label; a label never leaves the chart on the right."""
    width = _label_width_px(f"{window.number} {window.label}")
    return max(0.0, min(window.start_s * px_per_s, WIDTH_PX - LEFT_PX - RIGHT_PX - width)), width


def _label_windows(axes: Axes, summary: Summary, rows: dict[int, int]) -> None:
    px_per_s = (WIDTH_PX - LEFT_PX - RIGHT_PX) / max(summary.end_s - summary.start_s, 1e-3)
    for window in summary.windows:
        if window.number not in rows:
            continue
        left, _ = _label_left(window, px_per_s)
        axes.annotate(
            f"{window.number} {window.label}",
            xy=(left / px_per_s + summary.start_s, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 7 + 19 * rows[window.number]),
            textcoords="offset points",
            color=colour(window.family),
            fontsize=SMALL_PX,
            fontweight="bold",
            annotation_clip=False,
        )


def _draw_curve(axes: Axes, curve: Curve, *, ghost: bool) -> None:
    axes.plot(curve.t_s, curve.loss, **_line_style(ghost))


def _draw_marks(axes: Axes, summary: Summary) -> None:
    for index, mark in enumerate(summary.marks):
        y = _loss_at(summary.curve, mark.t_s)
        if y is None:
            continue
        tint = colour("rejoin" if mark.kind == "rejoin" else mark.family)
        shape = {"inject": "v", "undo": "^", "rejoin": "D"}[mark.kind]
        (sign,) = axes.plot(
            [mark.t_s], [y], marker=shape, markersize=9 if mark.kind != "rejoin" else 7.5, markeredgewidth=1.6,
            markeredgecolor=tint, markerfacecolor=colour("card") if mark.kind == "undo" else tint, zorder=6, linestyle="none",
        )  # fmt: skip
        words = {"inject": "injected", "undo": "undone", "rejoin": f"{mark.role} trains again"}[mark.kind]
        _tip(sign, f"mark-{index}", f"{mark.t_s:.1f} s: {mark.label} {words}" if mark.kind != "rejoin" else f"{mark.t_s:.1f} s: {words}")


def _loss_at(curve: Curve, t_s: float) -> float | None:
    """The loss at a moment, on the straight line between the evaluations around it."""
    if not curve.loss:
        return None
    if t_s <= curve.t_s[0]:
        return curve.loss[0]
    for index in range(1, len(curve.t_s)):
        before, after = curve.t_s[index - 1], curve.t_s[index]
        if t_s <= after:
            share = (t_s - before) / (after - before) if after > before else 1.0
            return curve.loss[index - 1] + share * (curve.loss[index] - curve.loss[index - 1])
    return curve.loss[-1]


# --- lanes --------------------------------------------------------------------------------------------------------------


def _draw_lane(axes: Axes, row: int, lane: Lane, rate_max: float) -> None:
    named: set[int] = set()
    for index, segment in enumerate(lane.segments):
        start_s = max(segment.start_s, axes.get_xlim()[0])
        if segment.end_s <= start_s:
            continue
        (bar,) = axes.barh(row, segment.end_s - start_s, left=start_s, height=0.66, color=colour(segment.state), linewidth=0, zorder=2)
        _tip(bar, f"lane-{row}-{index}", _segment_words(lane.role, segment))
        if segment.state == "up" and segment.incarnation not in named:
            named.add(segment.incarnation)
    if lane.rate and rate_max > 0:
        times = [t for t, _ in lane.rate]
        tops = [row + 0.33 - 0.58 * rate / rate_max for _, rate in lane.rate]
        axes.fill_between(times, tops, row + 0.33, step="mid", color=colour("up-strong"), alpha=0.45, linewidth=0, zorder=3)
    for incarnation in sorted(named):
        first = next(s for s in lane.segments if s.incarnation == incarnation and s.state == "up")
        axes.annotate(
            f"#{incarnation}", xy=(max(first.start_s, axes.get_xlim()[0]), row), xytext=(5, 0), textcoords="offset points",
            va="center", fontsize=SMALL_PX, fontweight="bold", color=colour("ink"), zorder=6,
        )  # fmt: skip


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
                axes.plot([window.start_s] * 2, [row - 0.44, row + 0.33], color=colour(window.family), linewidth=2, zorder=5)
                axes.plot([window.start_s], [row - 0.40], marker="v", markersize=8, color=colour(window.family), zorder=6)
                axes.annotate(
                    str(window.number), xy=(window.start_s, row - 0.36), xytext=(7, -1), textcoords="offset points", va="center",
                    fontsize=SMALL_PX, fontweight="bold", color=colour(window.family), zorder=6,
                )  # fmt: skip
    for mark in summary.marks:
        if mark.kind == "rejoin" and mark.role in rows:
            axes.plot([mark.t_s], [rows[mark.role] - 0.33], marker="D", markersize=6.5, color=colour("rejoin"), zorder=6)


def _draw_link(axes: Axes, row: int, lane: LinkLane, end_s: float) -> None:
    axes.plot([0, end_s], [row, row], color=colour("line"), linewidth=3, solid_capstyle="butt", zorder=1)
    for index, span in enumerate(lane.spans):
        family: Family = "link"
        (bar,) = axes.barh(row, span.end_s - span.start_s, left=span.start_s, height=0.6, color=colour(family), alpha=0.3, linewidth=0, zorder=2)
        _tip(bar, f"link-{row}-{index}", f"{span.fault} {span.text}, {span.start_s:.1f} to {span.end_s:.1f} s")
        axes.annotate(
            f"{span.number}  {span.fault.rpartition('.')[2]} {span.text}", xy=(span.start_s, row), xytext=(6, 0), textcoords="offset points",
            va="center", fontsize=SMALL_PX, color=colour("ink"), zorder=4, annotation_clip=False,
        )  # fmt: skip


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", labelsize=FONT_PX if all("\n" not in name for name in names) else SMALL_PX, labelcolor=colour("ink"))
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
            axes.annotate(
                phase.name, xy=(start_s, 1.0), xycoords=("data", "axes fraction"), xytext=(3, 6), textcoords="offset points",
                fontsize=SMALL_PX, color=colour("muted"), annotation_clip=False,
            )  # fmt: skip


# --- words for those who do not see the chart -----------------------------------------------------------------------------


def _loss_words(summary: Summary) -> str:
    if not summary.curve.loss:
        return "The tape holds no evaluation of the global model."
    text = f"The loss falls from {number_text(summary.curve.loss[0])} to {number_text(summary.curve.loss[-1])} in {seconds_text(summary.curve.t_s[-1])}."
    if summary.control is not None and summary.control.loss:
        text += f" The control run ends at {number_text(summary.control.loss[-1])}."
    for window in summary.windows:
        text += f" Fault {window.number}, {window.label}, from {window.start_s:.1f} to {window.end_s:.1f} s."
    return text


def _lane_words(lanes: Sequence[Lane]) -> str:
    parts = []
    for lane in lanes:
        away = [_segment_words(lane.role, segment) for segment in lane.segments if segment.state != "up" and segment.end_s > 0]
        parts.append("; ".join(away) if away else f"{lane.role} up throughout")
    return ". ".join(parts) + "." if parts else "No role is known."


def _end_words(curves: Sequence[tuple[Curve, bool]], what: str, over: str) -> str:
    parts = []
    for curve, ghost in curves:
        values = curve.loss if what == "loss" else curve.work_tokens
        if values:
            parts.append(f"the {'control run' if ghost else 'run'} ends at {number_text(values[-1])} {'nats per byte' if what == 'loss' else 'tokens'}")
    return f"{what} over {over}: {', '.join(parts)}." if parts else "Nothing is known."


# --- from matplotlib's SVG to the page's ----------------------------------------------------------------------------------


def _tip(artist: object, name: str, words: str) -> None:
    """Give a drawn thing a title that shows when the pointer rests on it; `_svg` turns the marker into one."""
    artist.set_gid(f"tip:{name}:{words}")  # type: ignore[attr-defined]  # every matplotlib artist has it


def _svg(figure: Figure, name: str, title: str, description: str) -> str:
    FigureCanvasSVG(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="tip:([^:"]*):([^"]*)">', r'<g id="\1"><title>\2</title>', text)
    text = re.sub(r"font-family: [^;\"]*?sans-serif;? ?", "", text)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, flags=re.DOTALL)
    for variable, (stand_in, _) in PALETTE.items():
        text = text.replace(stand_in, f"var(--{variable})")
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(xlink:href="#|href="#|url\(#)', rf"\1{name}-", text).replace(f"{name}-{name}-", f"{name}-")
    view = re.search(r'viewBox="[^"]+"', text)
    assert view is not None, "matplotlib writes a viewBox"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {view.group()} class="chart" role="img" '
        f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-desc">{html.escape(description)}</desc>'
    )
    return head + text[text.index(">") + 1 :]
