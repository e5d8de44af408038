"""Whom a fault touched, and when: what the liveness probes need to know before they may demand anything.

    injection    ──────applied═══════════════undone──────────▶ time
    learner-2    healthy │      touched        │  recovering   │ healthy
                         ▼                     ▼               ▼
                                                    ready again, or in a merge again

A fault on a link touches the learner at its end. A fault on the syncer touches every learner: each of them
has to find it again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from chaoskit.journal import History, Record
from chaoskit.plan import Setting

ALLOWANCE = Setting(
    name="allowance",
    unit="duration",
    default=10.0,
    about="time for round trips, retries and a busy machine, on top of H steps and the grace window",
)
REJOIN_S_DEFAULT = 20.0
"""A new process imports its libraries before it can join; on a loaded machine that takes up to 10 s."""
ARROW = re.compile(r"\s*(?:->|<->|<-)\s*")


@dataclass(frozen=True)
class Touch:
    """One injection that was applied. `end_s` is infinite while it is not undone."""

    injection: str
    direct: frozenset[str]
    """The roles it names, not those at the end of a link."""
    learners: frozenset[str]
    """The learners that it may have harmed in any way."""
    start_s: float
    end_s: float
    records: tuple[int, ...]

    def overlaps(self, start_s: float, end_s: float) -> bool:
        return self.start_s < end_s and start_s < self.end_s


def learners_of(history: History) -> list[str]:
    """The names of all learners, in order of name."""
    return sorted({record.node for record in history.of("welcome", "step")})


def touches(history: History) -> list[Touch]:
    """Every injection that was applied, by start."""
    learners = frozenset(learners_of(history))
    syncers = {record.node for record in history.of("config", "merge")}
    found = []
    for injection in history.injections:
        # The intent is on the disk before the first side effect; `applied` may come after it.
        start_s = injection.t_intent if injection.t_intent is not None else injection.t_applied
        if start_s is None or injection.skipped is not None:
            continue
        direct = frozenset(target for target in injection.targets if not ARROW.search(target))
        ends = {end for target in injection.targets for end in ARROW.split(target)}
        found.append(
            Touch(
                injection=injection.id,
                direct=direct,
                learners=learners if direct & syncers else frozenset(ends) & learners,
                start_s=start_s,
                end_s=math.inf if injection.t_undone is None else injection.t_undone,
                records=injection.records,
            )
        )
    return sorted(found, key=lambda touch: touch.start_s)


def over_s(history: History) -> float:
    """When training was over: the syncer's orderly stop, or the phase `stop`, whichever came first."""
    syncers = {record.node for record in history.of("config", "merge")}
    stops = [record.t for record in history.of("stop") if record.node in syncers]
    stops += [record.t for record in history.of("phase") if record.get("phase") == "stop"]
    return min(stops, default=max((record.t for record in history.records), default=0.0))


def ended_by_itself(history: History) -> bool:
    """Whether the syncer stopped in order before anyone told it to."""
    syncers = {record.node for record in history.of("config", "merge")}
    end_s = over_s(history)
    return any(record.node in syncers and record.t <= end_s for record in history.of("stop"))


def phase_window(history: History, phase: str) -> tuple[float, float] | None:
    """(start, end) of a phase in seconds, or None if the run had no such phase."""
    windows = [(start_s, end_s) for name, start_s, end_s in history.phases if name == phase]
    return (windows[0][0], windows[-1][1]) if windows else None


def step_times(history: History) -> dict[str, list[list[float]]]:
    """Learner -> for each of its incarnations the times of its steps; a tape without incarnations has one run."""
    runs: dict[str, dict[int, list[float]]] = {}
    for record in history.of("step"):
        runs.setdefault(record.node, {}).setdefault(record.get("incarnation", 0), []).append(record.t)
    return {learner: list(by_incarnation.values()) for learner, by_incarnation in sorted(runs.items())}


def pace_s(history: History) -> dict[str, float]:
    """Learner -> median seconds from step to step over the whole run; a pause or a restart does not move it."""
    paces = {}
    for learner, runs in step_times(history).items():
        steps_s = [after - before for run in runs for before, after in pairwise(run)]
        if steps_s:
            paces[learner] = median(steps_s)
    return paces


def merge_patience_s(history: History, allowance_s: float) -> float:
    """T: within this time a fragment must merge, or there is no progress.

    H steps at the slowest learner's median pace, plus the longest grace window, plus an allowance for round
    trips, retries and a busy machine.
    """
    config = history.config
    assert config is not None, "probes that use this need the kind `config`"
    steps_s = float(config["steps"]) * max(pace_s(history).values(), default=0.0)
    return steps_s + float(config["grace_s_max"]) + allowance_s


def merged_times(history: History) -> dict[str, list[tuple[float, int, Record]]]:
    """Learner -> (time, incarnation, merge) of every merge that it is in."""
    merged: dict[str, list[tuple[float, int, Record]]] = {}
    for record in history.of("merge"):
        for update in record["contributions"]:
            merged.setdefault(update["learner"], []).append((record.t, update["incarnation"], record))
    return merged


def first_after(times: Iterable[float], start_s: float) -> float | None:
    """The first of the ascending times that is at or after `start_s`."""
    return next((time for time in times if time >= start_s), None)
