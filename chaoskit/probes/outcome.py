"""What came of it: the loss of the global parameters, and how much of the work reached them.

Both compare with the paired control run (same seed, no faults). They are weak oracles: most protocol bugs do
not show in a loss, some lower it. The safety probes come first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from chaoskit.journal import History, Record
from chaoskit.plan import Setting
from chaoskit.probes.base import Case, Finding, Verdict, probe
from chaoskit.probes.ledger import ledger
from chaoskit.probes.rejoin import rejoins
from chaoskit.probes.touch import (
    REJOIN_S_DEFAULT,
    learners_of,
    merge_patience_s,
    over_s,
    touches,
)

NO_CONTROL = "There is no control run to compare with"


@probe(
    "C1",
    "loss",
    "The final loss of the global parameters is finite and within a margin of the control run's; better by more"
    " than the margin is an alarm as well.",
    needs=("eval",),
    settings=(
        Setting(
            name="within",
            unit="share",
            default=0.06,
            about="the margin, of the control run's loss",
        ),
        Setting(name="evals", unit="count", default=1, about="how many of the last evaluations are averaged"),
    ),
)
def loss(case: Case) -> Finding:
    """6 % is what killing and rejoining on `text` was measured to stay within by 7 standard deviations.
    Suspiciously better is UNKNOWN, not a pass: a leak or a double count lowers the loss."""
    evals = case.history.of("eval")
    broken = [record for record in evals if not _finite(record)]
    if broken:
        return Finding(
            Verdict.FAIL,
            f"The evaluation after {broken[0].get('merges')} merges gave loss {broken[0].get('loss')}, and "
            f"{len(broken)} of {len(evals)} were like it; expected a finite number.",
            evidence=tuple(record.n for record in broken),
        )
    end = case.history.end
    if end is not None and end.get("outcome") != "finished":
        return Finding(
            Verdict.NOT_RUN, f"The run ended as {end.get('outcome')!r}, so its last loss is not a final one."
        )
    count = int(case.tolerance["evals"])
    here = _final(evals, count)
    if case.control is None or not case.control.of("eval"):
        why = NO_CONTROL if case.control is None else "The control run has no evaluation to compare with"
        return Finding(Verdict.UNKNOWN, f"{why}; the final loss is {here:.4f} nats per byte.", here, unit="nats")
    there = _final(case.control.of("eval"), count)
    if not math.isfinite(there) or there <= 0:
        return Finding(Verdict.UNKNOWN, f"The control run ended with loss {there}; nothing compares with it.")
    excess = here / there - 1
    within = case.tolerance["within_share"]
    verdict = Verdict.FAIL if excess > within else Verdict.UNKNOWN if excess < -within else Verdict.PASS
    suspicion = {
        Verdict.UNKNOWN: "; suspiciously better: look for a leak or a double count",
        Verdict.FAIL: "; worse than the margin",
    }
    return Finding(
        verdict,
        f"Final loss {here:.4f} nats per byte after {evals[-1].get('merges')} merges, control {there:.4f} after "
        f"{case.control.of('eval')[-1].get('merges')}: {100 * excess:+.2f} %, expected within {100 * within:g} %"
        f"{suspicion.get(verdict, '')}.",
        100 * excess,
        100 * within,
        "%",
        tuple(record.n for record in evals[-count:]) if verdict is not Verdict.PASS else (),
    )


def _finite(record: Record) -> bool:
    """JSON has no word for not-a-number: it comes as null, or as a text."""
    value = record.get("loss")
    return isinstance(value, int | float) and math.isfinite(value)


def _final(evals: list[Record], count: int) -> float:
    return fmean(record["loss"] if _finite(record) else math.nan for record in evals[-count:])


@probe(
    "L7",
    "goodput",
    "Of the work done as much reaches the global parameters as in the control run, less the share of learner"
    " time that faults took.",
    needs=("merge", "step", "send", "adopt"),
    settings=(
        Setting(name="slack", unit="share", default=0.15, about="what may be lost beyond the faults' own share"),
        Setting(
            name="rejoin",
            unit="duration",
            default=REJOIN_S_DEFAULT,
            about="how long after a fault a learner that was lost may count as coming back",
        ),
    ),
)
def goodput(case: Case) -> Finding:
    """L7 asks for merged tokens >= (1 - share of learner time lost - slack) x the control run's.

    Taken literally that would compare two wall clocks: a run ends after a fixed number of rounds, rounds are paced
    by the slowest learner, and the machine is shared. So two ratios are taken that no clock enters, and the worse
    one is judged:

    - participation: fragment tokens merged per merge, of the control run's. It falls when a learner is
      ignored, or contributes less than it could.
    - efficiency: the share of processed tokens that were merged, of the control run's. It falls when work is
      done and thrown away.

    The learner time lost is the time in which a fault touches a learner, and until it is ready again where it was
    lost (but no longer than `rejoin`: one that never comes back is not excused), widened by H steps on both sides:
    the work before was still open, the work after is not merged at once. Over the learners times the time of
    training.
    """
    here = _Work.of(case.history)
    if case.control is None or not case.control.of("merge"):
        why = NO_CONTROL if case.control is None else "The control run merged nothing"
        return Finding(
            Verdict.UNKNOWN,
            f"{why}; of {here.processed} fragment tokens processed {100 * here.efficiency:.1f} % were merged.",
            100 * here.efficiency,
            unit="%",
        )
    there = _Work.of(case.control)
    if not there.merged:
        return Finding(Verdict.UNKNOWN, "The control run merged no tokens; nothing compares with it.")
    lost = _learner_time_lost(case.history, case.tolerance["rejoin_s"])
    bar = 1 - lost - case.tolerance["slack_share"]
    participation = here.per_merge / there.per_merge
    efficiency = here.efficiency / there.efficiency
    worse = min(participation, efficiency)
    return Finding(
        Verdict.PASS if worse >= bar else Verdict.FAIL,
        f"Merged {100 * here.efficiency:.1f} % of the fragment tokens processed (control "
        f"{100 * there.efficiency:.1f} %) and {here.per_merge:.0f} a merge (control {there.per_merge:.0f}), so "
        f"{100 * worse:.1f} % of the control run's; faults took {100 * lost:.1f} % of learner time, expected at "
        f"least {100 * bar:.1f} %.",
        100 * worse,
        100 * bar,
        "%",
    )


@dataclass(frozen=True)
class _Work:
    """Fragment tokens of one run."""

    processed: int
    merged: int
    merges: int

    @classmethod
    def of(cls, history: History) -> _Work:
        books = ledger(history)
        return cls(books.processed, books.merged, len(history.of("merge")))

    @property
    def efficiency(self) -> float:
        return self.merged / self.processed if self.processed else 0.0

    @property
    def per_merge(self) -> float:
        return self.merged / self.merges if self.merges else 0.0


def _learner_time_lost(history: History, rejoin_s_max: float) -> float:
    """The share of all learners' training time in which a fault held one of them up, between 0 and 1."""
    learners = learners_of(history)
    start_s = min(record.t for record in history.of("step"))
    end_s = over_s(history)
    if not learners or end_s <= start_s:
        return 0.0
    open_s = merge_patience_s(history, 0.0) if history.config is not None else 0.0
    spans = [
        (learner, touch.start_s - open_s, touch.end_s + open_s)
        for touch in touches(history)
        for learner in touch.learners
    ]
    for one in rejoins(history):
        if any(learner == one.learner and start <= one.lost_s for learner, start, _ in spans):
            latest_s = one.due_from_s + rejoin_s_max
            ready_s = latest_s if one.ready_s is None else min(one.ready_s, latest_s)
            spans.append((one.learner, one.lost_s - open_s, ready_s + open_s))
    lost_s = 0.0
    until_s = dict.fromkeys(learners, start_s)
    for learner, span_start_s, span_end_s in sorted(spans):
        stop_s = min(span_end_s, end_s)
        lost_s += max(0.0, stop_s - max(span_start_s, until_s[learner]))
        until_s[learner] = max(until_s[learner], stop_s)
    return lost_s / (len(learners) * (end_s - start_s))
