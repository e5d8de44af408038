"""Rejoin: a learner that was lost comes back, is ready in time, and is merged again.

lost (exit or disconnect) ─ restarted ─ joined ─ ready ─ merged
                                │◀──── T_j ────────▶│
                                │◀──── T_j + T ────────────▶│
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import zip_longest

from chaoskit.journal import History, Record
from chaoskit.plan import Setting
from chaoskit.probes.base import Case, Finding, Verdict, probe
from chaoskit.probes.touch import (
    ALLOWANCE,
    REJOIN_S_DEFAULT,
    Touch,
    first_after,
    learners_of,
    merge_patience_s,
    merged_times,
    over_s,
    touches,
)

TOLD_COUNT_MAX = 6
"""So many rejoins are told with all their times; the detail is a sentence, not a table."""


@dataclass
class Rejoin:
    """One return of a learner. Times are seconds of the run's clock; None where it did not happen."""

    learner: str
    cause: str
    """"restart" (a new process) or "disconnect" (the same one)."""
    lost_s: float
    due_from_s: float
    """From when its deadlines count: the start of the new process, or the end of the fault that cut it off."""
    merge_due_from_s: float | None = None
    """From when its first merge is due: the first merge of anybody after it was ready, and after every fault on it."""
    noticed_s: float | None = None
    """When the syncer let go of it."""
    restarted_s: float | None = None
    joined_s: float | None = None
    ready_s: float | None = None
    merged_s: float | None = None
    incarnation: int | None = None
    hit_again_s: float | None = None
    """When it was lost again before it was merged."""
    records: list[int] = field(default_factory=list)

    @property
    def told(self) -> str:
        """One clause with the measured times, counted from the loss."""
        times = [
            (name, at_s)
            for name, at_s in (
                ("noticed", self.noticed_s),
                ("restarted", self.restarted_s),
                ("joined", self.joined_s),
                ("ready", self.ready_s),
                ("merged", self.merged_s),
            )
            if at_s is not None
        ]
        after = ", ".join(f"{name} {max(0.0, at_s - self.lost_s):.1f} s" for name, at_s in times)
        return f"{self.learner} after its {self.cause}: {after or 'nothing'}"


def rejoins(history: History) -> list[Rejoin]:
    """Every return, or missing return, of a learner that had been lost, in order of loss."""
    return sorted(
        (rejoin for learner in learners_of(history) for rejoin in _rejoins_of(history, learner)),
        key=lambda rejoin: rejoin.lost_s,
    )


def _rejoins_of(history: History, learner: str) -> list[Rejoin]:
    end_s = over_s(history)
    found: list[Rejoin] = []
    open_: Rejoin | None = None
    left_s: float | None = None  # the syncer may notice before the daemon or the learner does
    for record in history.of("exit", "spawn", "disconnect", "leave", "welcome", "ready"):
        if record.t >= end_s or (record.get("role") or record.get("learner") or record.node) != learner:
            continue
        if record.kind == "exit":
            if open_ is not None and open_.ready_s is None:
                open_.hit_again_s = record.t
            open_ = Rejoin(learner, "restart", record.t, record.t, noticed_s=left_s, records=[record.n])
        elif record.kind == "disconnect" and (open_ is None or open_.ready_s is not None):
            open_ = Rejoin(learner, "disconnect", record.t, record.t, noticed_s=left_s, records=[record.n])
            found.append(open_)
        elif record.kind == "leave" and (open_ is None or open_.ready_s is not None):
            left_s = record.t
        elif open_ is not None:
            _advance(open_, record, found)
            left_s = None if record.kind == "ready" else left_s
    _note_merges(history, learner, found)
    hits = [touch for touch in touches(history) if learner in touch.learners]
    for rejoin in found:
        _extend(rejoin, hits)
    return found


def _advance(rejoin: Rejoin, record: Record, found: list[Rejoin]) -> None:
    """Note what one record tells of a rejoin that is under way. An exit counts only once a restart follows."""
    rejoin.records.append(record.n)
    if record.kind == "leave" and rejoin.joined_s is None:
        rejoin.noticed_s = rejoin.noticed_s or record.t
    elif record.kind == "spawn" and record.get("cause") == "restart":
        rejoin.restarted_s = rejoin.due_from_s = record.t
        found.append(rejoin)
    elif record.kind == "welcome" and rejoin.joined_s is None:
        rejoin.joined_s = record.t
    elif record.kind == "ready" and rejoin.ready_s is None:
        rejoin.ready_s = record.t
        rejoin.incarnation = record["incarnation"]


def _note_merges(history: History, learner: str, found: list[Rejoin]) -> None:
    """The first merge of each rejoin, from when it was due, and whether the learner was lost again before it."""
    merged = merged_times(history).get(learner, [])
    merges = history.of("merge")
    for rejoin, following in zip_longest(found, found[1:]):
        if following is not None and rejoin.hit_again_s is None:
            rejoin.hit_again_s = following.lost_s
        if rejoin.ready_s is None:
            continue
        # While nobody merges, nobody is left out: whether there is progress at all is asked by L1 and L6.
        rejoin.merge_due_from_s = first_after((merge.t for merge in merges), rejoin.ready_s)
        for at_s, incarnation, merge in merged:
            if at_s >= rejoin.ready_s and incarnation == rejoin.incarnation:
                rejoin.merged_s = at_s
                rejoin.records.append(merge.n)
                break


def _extend(rejoin: Rejoin, hits: list[Touch]) -> None:
    """Deadlines count from the end of every fault that holds the learner up.

    Not from the end of the fault that killed its process: that one ends only when the new process is up, which
    is what is being timed.
    """
    for hit in hits:
        if rejoin.cause == "restart" and rejoin.learner in hit.direct and hit.start_s <= rejoin.lost_s:
            continue
        until_s = rejoin.ready_s if rejoin.ready_s is not None else rejoin.due_from_s + REJOIN_S_DEFAULT
        if hit.start_s < until_s and hit.end_s > rejoin.due_from_s:
            rejoin.due_from_s = hit.end_s
        due_s = rejoin.merge_due_from_s
        if due_s is not None and hit.end_s > due_s and hit.start_s < (rejoin.merged_s or math.inf):
            rejoin.merge_due_from_s = hit.end_s


@probe(
    "L2",
    "rejoin",
    "Every learner that was restarted or cut off is ready within T_j, and from then on in a merge within H steps,"
    " grace and allowance.",
    needs=("ready", "merge", "config", "step"),
    settings=(
        Setting(
            name="ready",
            unit="duration",
            default=REJOIN_S_DEFAULT,
            about="T_j: time from the start of the new process, or the end of the fault, to ready",
        ),
        ALLOWANCE,
    ),
)
def rejoin(case: Case) -> Finding:
    history = case.history
    found = rejoins(history)
    if not found:
        return Finding(Verdict.NOT_RUN, "No learner was restarted or disconnected while training went on.")
    ready_s_max = case.tolerance["ready_s"]
    merged_s_max = merge_patience_s(history, case.tolerance["allowance_s"])
    end_s = over_s(history)
    late, undecided = [], []
    for one in found:
        verdict = _verdict(one, ready_s_max, merged_s_max, end_s)
        if verdict is Verdict.FAIL:
            late.append(one)
        elif verdict is Verdict.UNKNOWN:
            undecided.append(one)
    slowest_s = max((one.ready_s - one.due_from_s for one in found if one.ready_s is not None), default=None)
    measured = (None if slowest_s is None else max(0.0, slowest_s), ready_s_max, "s")
    allowed = f"ready within {ready_s_max:g} s of the start or the fault's end, and merged {merged_s_max:.1f} s later"
    if late:
        missing = "; ".join(one.told for one in late[:TOLD_COUNT_MAX])
        evidence = tuple(n for one in late for n in one.records)
        return Finding(
            Verdict.FAIL,
            f"{len(late)} of {len(found)} rejoins were late: {missing} after the loss; expected {allowed}.",
            *measured,
            evidence,
        )
    if undecided:
        return Finding(
            Verdict.UNKNOWN,
            f"Training was over before {len(undecided)} of {len(found)} rejoins could be judged: "
            f"{'; '.join(one.told for one in undecided[:TOLD_COUNT_MAX])} after the loss; allowed was {allowed}.",
            *measured,
            tuple(n for one in undecided for n in one.records),
        )
    told = "; ".join(one.told for one in found[:TOLD_COUNT_MAX])
    return Finding(
        Verdict.PASS, f"{len(found)} of {len(found)} rejoins were in time: {told} after the loss.", *measured
    )


def _verdict(one: Rejoin, ready_s_max: float, merged_s_max: float, end_s: float) -> Verdict:
    """PASS also for a rejoin that a further fault cut short in time: the next one is judged."""
    merge_from_s = math.inf if one.merge_due_from_s is None else one.merge_due_from_s
    for deadline_s, reached_s in (
        (one.due_from_s + ready_s_max, one.ready_s),
        (merge_from_s + merged_s_max, one.merged_s),
    ):
        if reached_s is not None and reached_s <= deadline_s:
            continue
        if one.hit_again_s is not None and one.hit_again_s <= deadline_s:
            return Verdict.PASS
        return Verdict.UNKNOWN if reached_s is None and end_s < deadline_s else Verdict.FAIL
    return Verdict.PASS
