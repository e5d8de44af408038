"""Drawing with matplotlib for a page: figures of one width, quiet axes, and SVG that takes its colours from the
page."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from chaoskit.report.model import Summary
from chaoskit.report.palette import PALETTE

WIDTH_PX = 1080
LEFT_PX = 104
RIGHT_PX = 16
LANE_PX = 34
FONT_PX = 12.5
SMALL_PX = 11
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "chaoskit",
    "font.size": FONT_PX,
    "axes.linewidth": 1.0,
    "path.simplify": True,
    "text.parse_math": False,  # a role may be named $x$
}


@contextmanager
def drawing() -> Iterator[None]:
    """The settings under which everything is drawn; matplotlib's own are put back at the end."""
    with mpl.rc_context(_SETTINGS):
        yield


def colour(name: str) -> str:
    """The stand-in for a colour of the page: its value in the light theme."""
    return PALETTE[name][0]


def timed_figure(summary: Summary, *, plot_px: float, top_px: float, bottom_px: float) -> tuple[Figure, Axes]:
    height_px = plot_px + top_px + bottom_px
    figure = Figure(figsize=(WIDTH_PX / 72, height_px / 72), dpi=72)
    axes = figure.add_axes(
        (LEFT_PX / WIDTH_PX, bottom_px / height_px, (WIDTH_PX - LEFT_PX - RIGHT_PX) / WIDTH_PX, plot_px / height_px)
    )
    axes.set_xlim(summary.start_s, max(summary.end_s, summary.start_s + 1e-3))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, steps=[1, 2, 5, 10], integer=True))
    _quiet(axes)
    return figure, axes


def plain_figure() -> tuple[Figure, Axes]:
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


def line_style(ghost: bool) -> Any:
    if ghost:
        # Broad and pale, so that it still shows where both runs agree, which is where they should.
        return {"color": colour("ghost"), "linewidth": 7, "alpha": 0.4, "solid_capstyle": "round", "zorder": 3}
    return {"color": colour("run"), "linewidth": 2.2, "solid_capstyle": "round", "zorder": 4}


def label(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    *,
    offset: tuple[float, float],
    tint: str,
    bold: bool = False,
    above: bool = False,
) -> None:
    """Small text at a place in data coordinates, moved by `offset` pixels; `above`: the y of `at` is a share of the
    height."""
    axes.annotate(
        text,
        xy=at,
        xycoords=("data", "axes fraction") if above else "data",
        xytext=offset,
        textcoords="offset points",
        va="baseline" if above else "center",
        color=colour(tint),
        fontsize=SMALL_PX,
        fontweight="bold" if bold else "normal",
        annotation_clip=False,
        zorder=7,
    )


def tip(artist: Artist, name: str, words: str) -> None:
    """Give a drawn thing a title that shows when the pointer rests on it; `svg` turns the marker into one."""
    artist.set_gid(f"tip:{name}:{words}")


def svg(figure: Figure, name: str, title: str, description: str) -> str:
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
    text = re.sub(r'(xlink:href="#|href="#|url\(#)', rf"\1{name}-", text)
    view = re.search(r'viewBox="[^"]+"', text)
    assert view is not None, "matplotlib writes a viewBox"
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" class="chart" role="img" '
        f'{view.group()} aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-desc">{html.escape(description)}</desc>'
    )
    return head + text[text.index(">") + 1 :]
