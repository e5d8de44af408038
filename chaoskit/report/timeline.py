"""What happened when: lanes, fault windows, curves and rejoins of a run, as functions of its history.

Nothing here trusts a record to be complete: another trainer may write only part of the tape, and a killed one stops
in the middle. What is missing becomes None or an empty tuple, never a guess.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from chaoskit.journal import History, InjectionEntry, Record
from chaoskit.report.model import (
    Curve,
    FaultWindow,
    Lane,
    LinkLane,
    LinkSpan,
    Mark,
    Phase,
    Rejoin,
    Segment,
    State,
)
from chaoskit.report.text import family_of, link_name, pairs_text, role_order, without_hold

_Item = TypeVar("_Item")

RATE_BINS_MAX = 180
"""Bins of a lane's step rate: a bin is then about five pixels wide, and no tape can make the page large."""
CURVE_POINTS_MAX = 400
"""Points of a curve, for the same reason. The first and the last are always kept."""


@dataclass(frozen=True)
class Clock:
    """The clock of a run. Its zero is the plan's: the begin of the chaos phase, when all roles were up and steady."""

    zero_t: float
    start_s: float
    """Where the picture begins, never after zero: with the training, which begins before the plan's clock does."""
    end_s: float

    def at(self, t: float) -> float:
        """Seconds on this clock of a monotonic time `t`, rounded to a millisecond."""
        return round(t - self.zero_t, 3)

    def maybe(self, t: float | None) -> float | None:
        """`at`, and None for None."""
        return None if t is None else self.at(t)


def clock_of(history: History) -> Clock:
    """The clock of the run behind `history`. A run that never came to chaos counts from what it came to."""
    if not history.records:
        return Clock(0.0, 0.0, 0.0)
    starts = {phase: start for phase, start, _ in reversed(history.phases)}
    zero = starts.get("chaos", starts.get("steady", history.records[0].t))
    trained = next((record.t for record in history.of("step", "merge")), zero)
    end = history.end.t if history.end is not None else max(record.t for record in history.records)
    if "stop" in starts:
        # What the roles do once they are told to stop is no part of the picture; an undo that came late is.
        end = max([starts["stop"], *(record.t for record in history.of("undone"))])
    return Clock(zero, round(min(trained - zero, 0.0), 3), round(max(end - zero, 0.0), 3))


def number_of(record: Record, field: str) -> float | None:
    """The field as a finite number, or None."""
    value = record.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def integer_of(record: Record, field: str, default: int = 0) -> int:
    """The field as an integer, or `default`."""
    value = number_of(record, field)
    return default if value is None else int(value)


def integers_of(record: Record, field: str) -> tuple[int, ...]:
    """The field as a tuple of integers, empty where it is not a list of them."""
    value = record.get(field)
    if not isinstance(value, (list, tuple)) or not all(type(item) is int for item in value):
        return ()
    return tuple(value)


def contributions_of(merge: Record) -> list[dict[str, object]]:
    """The contributions of a merge record that are objects."""
    value = merge.get("contributions")
    return [item for item in value if isinstance(item, dict)] if isinstance(value, (list, tuple)) else []


def phases_of(history: History, clock: Clock) -> tuple[Phase, ...]:
    """The phases in order."""
    return tuple(Phase(name, clock.at(start), clock.at(end)) for name, start, end in history.phases)


def curve_of(history: History, run: str, clock: Clock) -> Curve:
    """The loss of the global parameters over time and merges, and the tokens merged by then."""
    evaluations = history.of("eval")
    good = [record for record in evaluations if number_of(record, "loss") is not None]
    kept = thinned(good, CURVE_POINTS_MAX)
    fragments = max(1, fragment_count(history))
    work: list[tuple[float, float]] = []
    tokens = 0.0
    for record in history.of("merge"):
        tokens += merged_tokens(record) / fragments
        work.append((clock.at(record.t), tokens))
    work_kept = thinned(work, CURVE_POINTS_MAX)
    return Curve(
        run=run,
        t_s=tuple(clock.at(record.t) for record in kept),
        merges=tuple(integer_of(record, "merges") for record in kept),
        loss=tuple(number_of(record, "loss") or 0.0 for record in kept),
        not_finite=len(evaluations) - len(good),
        work_t_s=tuple(t for t, _ in work_kept),
        work_tokens=tuple(round(count, 1) for _, count in work_kept),
    )


def fragment_count(history: History) -> int:
    """How many fragments were merged at least once."""
    return len({integer_of(record, "fragment") for record in history.of("merge")})


def merged_tokens(merge: Record) -> float:
    """Tokens that one merge took in, over all its contributions."""
    counts = [item.get("tokens") for item in contributions_of(merge)]
    return float(sum(count for count in counts if type(count) is int))


def gap_of(curve: Curve, control: Curve | None) -> tuple[tuple[int, float], ...]:
    """(merges, loss / control loss - 1) at each evaluation of the run that lies within those of the control run."""
    if control is None:
        return ()
    found = []
    for merges, loss in zip(curve.merges, curve.loss, strict=True):
        other = interpolated(control.merges, control.loss, merges)
        if other is not None and other > 0:
            found.append((merges, round(loss / other - 1, 6)))
    return tuple(found)


def interpolated(xs: Sequence[float], ys: Sequence[float], x: float) -> float | None:
    """The value at `x` on the straight lines between the points (`xs` ascending); None outside of them."""
    if not xs or not xs[0] <= x <= xs[-1]:
        return None
    after = bisect.bisect_left(xs, x)
    if xs[after] == x:
        return ys[after]
    share = (x - xs[after - 1]) / (xs[after] - xs[after - 1])
    return ys[after - 1] + share * (ys[after] - ys[after - 1])


def thinned(items: Sequence[_Item], points_max: int) -> list[_Item]:
    """At most `points_max` of the items, evenly spaced, first and last included."""
    if len(items) <= points_max:
        return list(items)
    return [items[round(index * (len(items) - 1) / (points_max - 1))] for index in range(points_max)]


def windows_of(history: History, clock: Clock) -> tuple[FaultWindow, ...]:
    """The windows in which injections were in effect. One that was never undone lasts to the end of the run."""
    windows = []
    for number, entry in enumerate(history.injections, start=1):
        start_t = entry.t_applied if entry.t_applied is not None else entry.t_intent
        if start_t is None or entry.skipped is not None:
            continue
        end_s = clock.end_s if entry.t_undone is None else clock.at(entry.t_undone)
        windows.append(
            FaultWindow(
                number=number,
                injection=entry.id,
                fault=entry.fault,
                family=family_of(entry.fault),
                label=f"{entry.fault.rpartition('.')[2]} {', '.join(map(link_name, entry.targets))}".strip(),
                targets=entry.targets,
                start_s=clock.at(start_t),
                end_s=max(end_s, clock.at(start_t)),
            )
        )
    return tuple(windows)


def marks_of(windows: Iterable[FaultWindow], rejoins: Iterable[Rejoin], history: History) -> tuple[Mark, ...]:
    """Injections, undos and rejoins as signs, in order of time."""
    undone = {entry.id for entry in history.injections if entry.t_undone is not None}
    marks = []
    for window in windows:
        role = window.targets[0] if window.targets else ""
        marks.append(Mark("inject", window.start_s, role, window.label, window.number, window.family))
        if window.injection in undone:
            marks.append(Mark("undo", window.end_s, role, window.label, window.number, window.family))
    for rejoin in rejoins:
        if rejoin.lost_s is not None and rejoin.ready_after_s is not None:
            ready_s = round(rejoin.lost_s + rejoin.ready_after_s, 3)
            marks.append(Mark("rejoin", ready_s, rejoin.learner, f"incarnation {rejoin.incarnation}"))
    return tuple(sorted(marks, key=lambda mark: (mark.t_s, mark.kind)))


def links_of(history: History, clock: Clock) -> tuple[LinkLane, ...]:
    """One lane for each link that a fault touched."""
    settings = {entry.id: ", ".join(pairs_text(without_hold(entry.settings))) for entry in history.injections}
    spans: dict[str, list[LinkSpan]] = defaultdict(list)
    for window in windows_of(history, clock):
        if window.family != "link":
            continue
        for target in window.targets:
            span = LinkSpan(window.start_s, window.end_s, window.number, window.fault, settings[window.injection])
            spans[link_name(target)].append(span)
    return tuple(LinkLane(link, tuple(spans[link])) for link in sorted(spans))


def lanes_of(history: History, clock: Clock) -> tuple[Lane, ...]:
    """One lane for each role: learners first, each by its number, then the others."""
    roles = {str(record.get("role")) for record in history.of("spawn", "start") if record.get("role")}
    rates = _rates(history, clock)
    return tuple(
        Lane(role, _segments(role, history, clock), rates.get(role, ())) for role in sorted(roles, key=role_order)
    )


def _segments(role: str, history: History, clock: Clock) -> tuple[Segment, ...]:
    """The states of one role, from the changes its records tell, with its pauses laid over them."""
    changes: list[tuple[float, State | None, int]] = []
    incarnation = 0
    learner = any(record.node == role for record in history.of("welcome", "ready"))
    for record in history.of("spawn", "exit", "up", "welcome", "ready", "disconnect"):
        if role not in (record.node, record.get("role")):
            continue
        incarnation = integer_of(record, "incarnation" if learner else "start", incarnation)
        if record.kind == "exit" and record.get("expected") and not record.get("injection"):
            changes.append((record.t, None, incarnation))  # it was done: nothing is down
            continue
        state = _state_after(record, learner)
        if state is not None:
            changes.append((record.t, state, incarnation))
    segments = []
    for index, (t, state, number) in enumerate(changes):
        start_s = clock.at(t)
        end_s = min(clock.at(changes[index + 1][0]), clock.end_s) if index + 1 < len(changes) else clock.end_s
        if state is not None and end_s > start_s:
            segments.append(Segment(start_s, end_s, state, number))
    return _merged(_with_pauses(segments, _pauses(role, history, clock)))


def _state_after(record: Record, learner: bool) -> State | None:
    match record.kind:
        case "exit":
            return "down"
        case "spawn" | "disconnect" | "welcome":
            return "joining"
        case "ready":
            return "up"
        case "up":
            # A learner's `ready` is the exact moment; `up` is when the daemon saw its first step.
            return None if learner else "up"
    return None


def _pauses(role: str, history: History, clock: Clock) -> list[tuple[float, float]]:
    return [
        (window.start_s, window.end_s)
        for window in windows_of(history, clock)
        if window.family == "pause" and role in window.targets
    ]


def _with_pauses(segments: list[Segment], pauses: list[tuple[float, float]]) -> list[Segment]:
    """The segments with every pause cut into those that are not down: a dead process is not paused."""
    for pause_start_s, pause_end_s in pauses:
        cut: list[Segment] = []
        for segment in segments:
            start_s, end_s = max(segment.start_s, pause_start_s), min(segment.end_s, pause_end_s)
            if segment.state == "down" or start_s >= end_s:
                cut.append(segment)
                continue
            pieces: list[tuple[float, float, State]] = [
                (segment.start_s, start_s, segment.state),
                (start_s, end_s, "paused"),
                (end_s, segment.end_s, segment.state),
            ]
            cut += [Segment(begin, stop, state, segment.incarnation) for begin, stop, state in pieces if stop > begin]
        segments = cut
    return segments


def _merged(segments: list[Segment]) -> tuple[Segment, ...]:
    """Neighbours of equal state and incarnation as one."""
    merged: list[Segment] = []
    for segment in segments:
        last = merged[-1] if merged else None
        if last is not None and (last.state, last.incarnation) == (segment.state, segment.incarnation):
            merged[-1] = Segment(last.start_s, segment.end_s, segment.state, segment.incarnation)
        else:
            merged.append(segment)
    return tuple(merged)


def _rates(history: History, clock: Clock) -> dict[str, tuple[tuple[float, float], ...]]:
    """Steps a second of every role that writes steps, in bins of one second or more."""
    length_s = clock.end_s - clock.start_s
    if length_s <= 0:
        return {}
    bin_s = max(1.0, length_s / RATE_BINS_MAX)
    bins = math.ceil(length_s / bin_s)
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * bins)
    for record in history.of("step"):
        index = math.floor((record.t - clock.zero_t - clock.start_s) / bin_s)
        if 0 <= index < bins:
            counts[record.node][index] += 1
    return {
        role: tuple(
            (round(clock.start_s + (index + 0.5) * bin_s, 3), round(count / bin_s, 2))
            for index, count in enumerate(found)
        )
        for role, found in counts.items()
    }


def rejoins_of(history: History, clock: Clock) -> tuple[Rejoin, ...]:
    """Every return of a learner as a new incarnation, in order of time."""
    joins: dict[str, list[Record]] = defaultdict(list)
    for record in history.of("join"):
        joins[str(record.get("learner"))].append(record)
    merges = history.of("merge")
    found = []
    for learner, records in joins.items():
        for before, join in pairwise(records):
            found.append((join.t, _rejoin(learner, before, join, history, clock, merges)))
    return tuple(rejoin for _, rejoin in sorted(found, key=lambda item: item[0]))


def _rejoin(
    learner: str, before: Record, join: Record, history: History, clock: Clock, merges: Sequence[Record]
) -> Rejoin:
    incarnation = integer_of(join, "incarnation")
    exited = _last_between(history.of("exit"), "role", learner, before.t, join.t)
    spawned = _last_between(history.of("spawn"), "role", learner, before.t, join.t)
    left = _last_between(history.of("leave"), "learner", learner, before.t, join.t)
    lost = exited or left
    ready = next(
        (
            record
            for record in history.of("ready")
            if record.node == learner and record.get("incarnation") == incarnation
        ),
        None,
    )
    merged = _first_merge(merges, learner, incarnation, join.t)

    def after(t: float | None) -> float | None:
        return None if t is None or lost is None else round(t - lost.t, 3)

    return Rejoin(
        learner=learner,
        incarnation=incarnation,
        cause=_cause(exited, left, history),
        lost_s=clock.maybe(lost.t if lost else None),
        restart_after_s=after(spawned.t if spawned and exited else None),
        join_after_s=after(join.t),
        ready_after_s=after(ready.t if ready else None),
        merge_after_s=after(merged.t if merged else None),
        versions_join=integers_of(join, "versions"),
        versions_ready=integers_of(ready, "versions") if ready else (),
    )


def _last_between(records: Iterable[Record], field: str, name: str, start_t: float, end_t: float) -> Record | None:
    matching = [record for record in records if record.get(field) == name and start_t < record.t <= end_t]
    return matching[-1] if matching else None


def _cause(exited: Record | None, left: Record | None, history: History) -> str:
    if exited is not None:
        injection = exited.get("injection")
        entry: InjectionEntry | None = next((e for e in history.injections if e.id == injection), None)
        return f"{entry.id} ({entry.fault})" if entry else "the process ended"
    return f"connection lost: {left.get('why', 'no reason given')}" if left is not None else "connection lost"


def _first_merge(merges: Sequence[Record], learner: str, incarnation: int, after_t: float) -> Record | None:
    first = bisect.bisect_left(merges, after_t, key=lambda record: record.t)
    for record in merges[first:]:
        for item in contributions_of(record):
            if item.get("learner") == learner and item.get("incarnation") == incarnation:
                return record
    return None
