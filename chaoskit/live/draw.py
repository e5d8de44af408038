"""The picture of a run's state: one rich Text, whose lines never wrap.

One Text and no table: laying out a table of this size takes several times as long, and the view shares its cores with
the training it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from chaoskit.live.state import ActiveFault, RoleState, RunState
from chaoskit.report.text import link_name, number_text, role_order

EVENTS_SHOWN_MAX = 6
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_COLUMNS = 32
BAR_COLUMNS = 24
NAME_COLUMNS_MAX = 18
_STYLES = {"waiting": "dim", "joining": "cyan", "up": "green", "paused": "yellow", "down": "red", "ended": "dim"}
_SIGNS = {"waiting": "○", "joining": "◐", "up": "●", "paused": "‖", "down": "✕", "ended": "■"}


def draw(state: RunState, now: float, width: int, control: Mapping[int, float] | None = None) -> Text:
    """The whole picture at monotonic time `now`, for a terminal of `width` columns. `control` maps merges to loss."""
    picture = Text(no_wrap=True, overflow="ellipsis", end="")
    lines = [
        *_head(state, now),
        Text(""),
        *_lanes(state, now),
        *_faults(state, now),
        _loss(state, control or {}),
        Text(""),
        *_events(state),
    ]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        picture.append_text(line)
        picture.append("\n")
    picture.right_crop(1)
    return picture


def _head(state: RunState, now: float) -> list[Text]:
    kind = "chaos run" if state.chaos else "control run, no faults"
    seed = f"  seed {state.seed}" if state.seed is not None else ""
    elapsed_s = 0.0 if state.start_t is None else max(0.0, (state.now_t if state.outcome else now) - state.start_t)
    title = Text.assemble(
        (state.plan or state.run or "chaoskit", "bold"),
        (f"  {kind}{seed}", "dim"),
        "  ",
        (f" {state.phase} ", "reverse bold"),
        f"  {clock_text(elapsed_s)}",
    )
    progress = Text.assemble(("round ", "dim"), str(state.round))
    if state.total_rounds:
        share = min(1.0, state.round / state.total_rounds)
        filled = round(share * BAR_COLUMNS)
        progress.append(f" of {state.total_rounds}  ")
        progress.append("━" * filled, "blue")
        progress.append("━" * (BAR_COLUMNS - filled), "dim")
        progress.append(f"  {share:.0%}")
    progress.append("   merges ", "dim")
    progress.append(str(state.merges))
    if state.below_quorum:
        progress.append("   below quorum", "bold yellow")
    return [title, progress]


def _lanes(state: RunState, now: float) -> list[Text]:
    names = sorted(state.roles, key=role_order)
    columns = min(NAME_COLUMNS_MAX, max((len(name) for name in names), default=0))
    return [_lane(name, columns, state, state.roles[name], now) for name in names]


def _lane(name: str, columns: int, state: RunState, role: RoleState, now: float) -> Text:
    shown = role.shown()
    lane = Text.assemble(
        (f"{_SIGNS[shown]} ", _STYLES[shown]),
        _printable(name)[:columns].ljust(columns),
        "  ",
        (shown.ljust(8), _STYLES[shown]),
        (f"#{role.incarnation}".ljust(4) if role.incarnation else " " * 4, "dim"),
    )
    if not role.learner:
        return lane
    rate = role.rate(now) if role.state == "up" else None
    lag = state.lag(role)
    lane.append(f" step {role.steps:>6}")
    lane.append(f"  {rate:5.1f}/s" if rate is not None else "      –/s", "" if rate else "dim")
    lane.append("   behind " + (str(lag) if lag is not None else "–").ljust(3), "yellow" if lag and lag > 1 else "dim")
    lane.append(f"  loss {number_text(role.loss)}" if role.loss is not None else "", "dim")
    return lane


def _faults(state: RunState, now: float) -> list[Text]:
    active = [fault for fault in state.faults.values() if fault.start_t is not None]
    if not active:
        return [Text(""), Text.assemble(("faults ", "dim"), ("none active", "dim"))]
    return [Text(""), *(_fault(fault, now) for fault in active)]


def _fault(fault: ActiveFault, now: float) -> Text:
    where = ", ".join(map(link_name, fault.targets))
    line = Text.assemble(("fault  ", "dim"), (f"{fault.fault} ", "magenta"), _printable(f"on {where}"))
    if fault.settings:
        line.append(f"  {_printable(fault.settings)}", "dim")
    begun_s = now - (fault.start_t or now)
    if fault.hold_s is not None:
        left_s = fault.hold_s - begun_s
        line.append(f"  {left_s:.1f} s left" if left_s > 0 else "  being undone", "bold")
    else:
        line.append(f"  for {begun_s:.1f} s", "bold")
    return line


def _loss(state: RunState, control: Mapping[int, float]) -> Text:
    line = Text.assemble(("loss   ", "dim"))
    if not state.evals:
        line.append("not evaluated yet", "dim")
        return line
    merges, loss = state.evals[-1]
    line.append(f"{loss:.4f}", "bold")
    line.append(f"  {sparkline([loss for _, loss in state.evals])}", "blue")
    line.append(f"  after {merges} merges", "dim")
    there = nearest_before(control, merges)
    if there:
        line.append(f"   control run {there:.4f} ({100 * (loss / there - 1):+.1f} %)")
    return line


def _events(state: RunState) -> list[Text]:
    loud = [event for event in state.events if event.loud][-EVENTS_SHOWN_MAX:]
    start_t = state.start_t or 0.0
    return [Text.assemble((f"{event.t - start_t:7.1f} s  ", "dim"), (event.text, event.style)) for event in loud]


def sparkline(values: Sequence[float], columns: int = SPARK_COLUMNS) -> str:
    """The values as blocks of eight heights, thinned to `columns`; the last value is always the last block."""
    if len(values) > columns:
        values = [values[round(index * (len(values) - 1) / (columns - 1))] for index in range(columns)]
    low, high = min(values), max(values)
    if high <= low:
        return SPARKS[0] * len(values)
    return "".join(SPARKS[min(7, int(8 * (value - low) / (high - low)))] for value in values)


def nearest_before(control: Mapping[int, float], merges: int) -> float | None:
    """The control run's loss after as many merges, or after the most of those that are fewer."""
    known = [count for count in control if count <= merges]
    return control[max(known)] if known else None


def clock_text(seconds: float) -> str:
    """`01:05`, or `1:01:05` from an hour on."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "�" for letter in text)
