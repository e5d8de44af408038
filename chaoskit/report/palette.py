"""The colours of a report: one name, one value on a light page, one on a dark page.

The charts are drawn in the light values and then refer to the names, so that one drawing follows the theme of its
page. No two light values are equal, or the way back from value to name would be lost. The fault families differ in
lightness as well as in hue, and every coloured thing also carries a number or a word.
"""

from __future__ import annotations

from collections.abc import Mapping

PALETTE: Mapping[str, tuple[str, str]] = {
    "page": ("#f4f6f8", "#10141a"),
    "card": ("#fffffe", "#191f27"),
    "ink": ("#1c2430", "#e7ebf1"),
    "muted": ("#5a6473", "#9ba7b6"),
    "line": ("#dce1e7", "#2e3743"),
    "run": ("#1f5fbf", "#6ea8ff"),
    "ghost": ("#87919f", "#8591a1"),
    "up": ("#bfe3d2", "#1f4a3b"),
    "up-strong": ("#2e8f67", "#4fbf91"),
    "joining": ("#cfe0f7", "#2b4f7c"),
    "down": ("#f6c9c5", "#7d332e"),
    "paused": ("#f7dfa8", "#77591a"),
    "kill": ("#c2362b", "#ff8a80"),
    "pause": ("#9a6500", "#f0bd55"),
    "link": ("#7a45b5", "#c19af0"),
    "other": ("#4b6b85", "#8fb4d1"),
    "rejoin": ("#17785a", "#5fd3a6"),
    "pass": ("#12694d", "#62d2a8"),
    "fail": ("#b3261e", "#ff8b82"),
    "unknown": ("#855400", "#f0bd56"),
    "neutral": ("#4a5564", "#a9b4c2"),
}


def declarations(dark: bool) -> str:
    """The palette as CSS custom properties."""
    return " ".join(f"--{name}: {values[1 if dark else 0]};" for name, values in PALETTE.items())
