"""Isolation: nobody else pays for a fault. That is what "decoupled" means, and it is measured here.

Speeds are ratios inside one run: a shared machine is faster in one minute than in the next, and the control
run may have been made yesterday. Even inside one run the machine may turn slow just when a fault is on. So a tape
may tell how much of each step the learner was blocked (`step.blocked_s`: neither on a core nor ready for one), and a
learner that steps slowly without being blocked was slowed by the machine, and not by its peers. What this cannot see
is a peer that takes the cores away by spinning; the control run's pace, in the detail, hints at it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import median

from chaoskit.journal import History
from chaoskit.plan import Setting
from chaoskit.probes.base import Case, Finding, Verdict, probe
from chaoskit.probes.rejoin import rejoins
from chaoskit.probes.touch import Touch, over_s, pace_s, step_times, touches

STEPS_MIN = 5
"""A median of fewer intervals says nothing."""
STALL_STEPS = 20
"""A gap shorter than this many of the learner's own steps is a slow step, not a stall."""
STALL_WINDOW_S_MIN = 2.0
"""A window shorter than this may pass between two time slices of a loaded machine."""


@dataclass(frozen=True)
class _Pace:
    """One untouched learner in one fault window."""

    share: float
    """Its rate in the window, of its own rate outside all windows; 0 for a stall."""
    learner: str
    touch: Touch
    told: str


@probe(
    "L8",
    "isolation",
    "A learner that no fault touches steps during a fault at no less than a share of its own rate without"
    " faults, or is free to step for that share of the time, and never stalls.",
    needs=("step", "intent"),
    settings=(
        Setting(
            name="rate",
            unit="share",
            default=0.5,
            about="the least share of its own rate outside faults, or of its time unblocked",
        ),
        Setting(
            name="stall",
            unit="duration",
            default=5.0,
            about="the longest time between two steps that is not a stall; at least 20 of its own median steps",
        ),
    ),
)
def isolation(case: Case) -> Finding:
    """Rates are compared by the median time from step to step. Medians do not see a stall, so the longest time
    without a step is judged by itself; and a window of STALL_WINDOW_S_MIN or more that holds not one of 20
    expected steps is a stall too. A fault on the syncer touches everyone, so such windows are not judged; nor is
    a learner that is still coming back from an earlier fault."""
    hits = touches(case.history)
    comebacks = _comebacks(case.history, hits)
    paces: list[_Pace] = []
    too_short = 0
    end_s = over_s(case.history)
    for learner, runs in step_times(case.history).items():
        own_s = _own_pace_s(learner, runs, hits, case.control)
        steps = sorted(chain.from_iterable(runs))
        for touch in hits:
            if any(learner in hit.learners and hit.overlaps(touch.start_s, touch.end_s) for hit in hits):
                continue
            if any(touch.overlaps(*comeback) for comeback in comebacks.get(learner, ())):
                continue
            window = (touch.start_s, min(touch.end_s, end_s))
            told = None if own_s is None else _pace_in(steps, window, own_s, case.tolerance["stall_s"])
            if told is not None and 0 < told[0] < case.tolerance["rate_share"]:
                free = _free_share(case.history, learner, window)
                if free >= case.tolerance["rate_share"]:
                    told = free, f"{told[1]}, but free to step for {100 * free:.0f} % of the time: the machine was busy"
            if told is None:
                too_short += 1
            else:
                paces.append(_Pace(told[0], learner, touch, told[1]))
    if not paces:
        why = "they are too short to count steps in" if too_short else "each is touched, or still coming back"
        return Finding(Verdict.NOT_RUN, f"In {len(hits)} fault windows no learner can be judged: {why}.")
    worst = min(paces, key=lambda pace: pace.share)
    least = case.tolerance["rate_share"]
    failed = worst.share < least
    return Finding(
        Verdict.FAIL if failed else Verdict.PASS,
        f"Of {len(paces)} windows of untouched learners the slowest was {worst.learner}'s during "
        f"{worst.touch.injection}: {worst.told}{_against_control(case, worst.learner)}; "
        f"{'expected' if failed else 'asked was'} at least {100 * least:.0f} %.",
        100 * worst.share,
        100 * least,
        "%",
        worst.touch.records if failed else (),
    )


def _comebacks(history: History, hits: list[Touch]) -> dict[str, list[tuple[float, float]]]:
    """Learner -> (lost, ready) of each return after a fault that touched it. Without a fault there is none: an
    untouched learner that is lost is a stall."""
    comebacks: dict[str, list[tuple[float, float]]] = {}
    for one in rejoins(history):
        if any(one.learner in hit.learners and hit.start_s <= one.lost_s for hit in hits):
            ready_s = math.inf if one.ready_s is None else one.ready_s
            comebacks.setdefault(one.learner, []).append((one.lost_s, ready_s))
    return comebacks


def _own_pace_s(learner: str, runs: list[list[float]], hits: list[Touch], control: History | None) -> float | None:
    """Median seconds from step to step outside all fault windows; else in the control run; else None."""
    steps_s = [
        after - before
        for run in runs
        for before, after in pairwise(run)
        if not any(hit.overlaps(before, after) for hit in hits)
    ]
    if len(steps_s) >= STEPS_MIN:
        return median(steps_s)
    return None if control is None else pace_s(control).get(learner)


def _pace_in(steps: list[float], window: tuple[float, float], own_s: float, stall_s: float) -> tuple[float, str] | None:
    """(share of its own rate, the same in words); None if the window is too short or began before the learner did."""
    start_s, end_s = window
    if steps[0] >= start_s or end_s <= start_s:
        return None
    inside = [t for t in steps if start_s <= t <= end_s]
    longest_s = max(after - before for before, after in pairwise([start_s, *inside, end_s]))
    stuck = not inside and end_s - start_s >= max(STALL_WINDOW_S_MIN, STALL_STEPS * own_s)
    if longest_s > max(stall_s, STALL_STEPS * own_s) or stuck:
        return 0.0, f"it made no step for {longest_s:.1f} s"
    if len(inside) <= STEPS_MIN:
        return None
    share = own_s / max(median(after - before for before, after in pairwise(inside)), 1e-9)
    return share, f"{100 * share:.0f} % of its own rate outside faults"


def _free_share(history: History, learner: str, window: tuple[float, float]) -> float:
    """The share of its time in which it was free to step; 0 where its tape does not tell."""
    steps = [record for record in history.of("step") if record.node == learner and window[0] <= record.t <= window[1]]
    took_s = sum(record["step_s"] for record in steps)
    if took_s <= 0 or not all("blocked_s" in record for record in steps):
        return 0.0
    return 1.0 - float(sum(record["blocked_s"] for record in steps)) / float(took_s)


def _against_control(case: Case, learner: str) -> str:
    """Its rate over the whole run against the control run; for the reader, not for the verdict."""
    here = pace_s(case.history).get(learner)
    there = None if case.control is None else pace_s(case.control).get(learner)
    return f" (over the whole run {100 * there / here:.0f} % of the control run's)" if here and there else ""
