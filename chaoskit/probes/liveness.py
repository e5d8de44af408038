"""Progress where the protocol promises it: after the heal, and during chaos while enough is untouched.

Time on a shared machine is noise, so nothing here compares with an absolute speed: deadlines are counted in
the run's own steps plus a generous allowance. A stall shows as many seconds.
"""

from __future__ import annotations

import math
from itertools import pairwise

from chaoskit.journal import History
from chaoskit.plan import Setting
from chaoskit.probes.base import Case, Finding, Verdict, probe
from chaoskit.probes.touch import (
    ALLOWANCE,
    REJOIN_S_DEFAULT,
    ended_by_itself,
    learners_of,
    merge_patience_s,
    merged_times,
    over_s,
    phase_window,
    touches,
)


@probe(
    "L1",
    "progress",
    "After the heal, with K learners up, every fragment merges within H steps at the slowest pace plus grace and"
    " allowance, until training ends by itself.",
    needs=("phase", "config", "step"),
    settings=(
        ALLOWANCE,
        Setting(
            name="rejoin",
            unit="duration",
            default=REJOIN_S_DEFAULT,
            about="when fewer than K learners are up as the heal begins, the time they have to come back",
        ),
    ),
)
def progress(case: Case) -> Finding:
    history = case.history
    heal = phase_window(history, "heal")
    if heal is None:
        return Finding(Verdict.NOT_RUN, "The run never came to its heal phase, in which progress is judged.")
    patience_s = merge_patience_s(history, case.tolerance["allowance_s"])
    end_s = min(over_s(history), heal[1])
    start_s = _quorum_up_s(history, heal[0], case.tolerance["rejoin_s"])
    times: dict[int, list[float]] = {}
    config = history.config
    assert config is not None, "the registry demands the kind"
    for fragment in range(config["fragments"]):
        times[fragment] = [start_s]
    for record in history.of("merge"):
        if start_s <= record.t <= end_s:
            times.setdefault(record["fragment"], [start_s]).append(record.t)
    slowest = max(times, key=lambda fragment: _longest_gap_s(times[fragment], end_s))
    gap_s = _longest_gap_s(times[slowest], end_s)
    unmerged = [fragment for fragment, merges in times.items() if len(merges) == 1]
    measured = (gap_s, patience_s, "s")
    if gap_s > patience_s:
        return Finding(
            Verdict.FAIL,
            f"After the heal fragment {slowest} was not merged for {gap_s:.1f} s; expected a merge within "
            f"{patience_s:.1f} s (H = {config['steps']} steps at the slowest median pace, grace and allowance).",
            *measured,
            _evidence_of_gap(history, slowest, times[slowest], end_s),
        )
    if len(unmerged) == len(times) or (unmerged and not ended_by_itself(history)):
        return Finding(
            Verdict.UNKNOWN,
            f"Training lasted {max(0.0, end_s - start_s):.1f} s after the heal, and {len(unmerged)} of {len(times)} "
            f"fragments were not merged in it; {patience_s:.1f} s are needed to tell a stall from a short heal.",
            *measured,
        )
    return Finding(
        Verdict.PASS,
        f"After the heal no fragment waited longer than {gap_s:.1f} s for a merge (fragment {slowest}); "
        f"{patience_s:.1f} s were allowed.",
        *measured,
    )


def _longest_gap_s(times: list[float], end_s: float) -> float:
    return max((after - before for before, after in pairwise([*times, max(end_s, times[-1])])), default=0.0)


def _evidence_of_gap(history: History, fragment: int, times: list[float], end_s: float) -> tuple[int, ...]:
    """The records of the merges before and after the longest gap."""
    before, after = max(pairwise([*times, end_s]), key=lambda gap: gap[1] - gap[0])
    merges = [record for record in history.of("merge") if record["fragment"] == fragment]
    return tuple(record.n for record in merges if record.t in (before, after))


def _quorum_up_s(history: History, start_s: float, rejoin_s: float) -> float:
    """From when K learners count as up: the start, or when enough are ready again, or when they had to be."""
    config = history.config
    assert config is not None, "the registry demands the kind"
    up: set[str] = set()
    for record in history.of("ready", "disconnect", "exit", "start"):
        if record.t > start_s and len(up) >= config["quorum"]:
            break
        if record.t > start_s + rejoin_s:
            return start_s + rejoin_s
        role = record["role"] if record.kind == "exit" else record.node
        if record.kind == "ready":
            up.add(role)
        else:
            up.discard(role)
        if record.t > start_s and len(up) >= config["quorum"]:
            return record.t
    return start_s if len(up) >= config["quorum"] else start_s + rejoin_s


@probe(
    "L6",
    "availability",
    "During chaos, while the syncer and at least K learners are untouched, no gap between merges exceeds"
    " H steps plus grace and allowance.",
    needs=("phase", "config", "step", "ready"),
    settings=(ALLOWANCE,),
)
def availability(case: Case) -> Finding:
    """A learner counts while no fault touches it, and after one only once it has shown itself again: a ready or a
    merged update after the fault's end. How long that may take is L2's matter."""
    history = case.history
    chaos = phase_window(history, "chaos")
    if chaos is None:
        return Finding(Verdict.NOT_RUN, "The run had no chaos phase.")
    patience_s = merge_patience_s(history, case.tolerance["allowance_s"])
    end_s = min(chaos[1], over_s(history))
    stretches = _untouched_stretches(history, chaos[0], end_s)
    merges = [record for record in history.of("merge") if chaos[0] <= record.t <= end_s]
    longest = (0.0, 0.0, 0.0)
    watched_s = 0.0
    index = 0
    for stretch_start_s, stretch_end_s in stretches:
        watched_s += stretch_end_s - stretch_start_s
        last_s = stretch_start_s
        while index < len(merges) and merges[index].t < stretch_start_s:
            index += 1
        while index < len(merges) and merges[index].t <= stretch_end_s:
            longest = max(longest, (merges[index].t - last_s, last_s, merges[index].t))
            last_s = merges[index].t
            index += 1
        longest = max(longest, (stretch_end_s - last_s, last_s, stretch_end_s))
    if not watched_s:
        return Finding(
            Verdict.NOT_RUN, "At no time in chaos were the syncer and K learners untouched: nothing was promised."
        )
    gap_s, gap_start_s, gap_end_s = longest
    failed = gap_s > patience_s
    return Finding(
        Verdict.FAIL if failed else Verdict.PASS,
        f"During {watched_s:.1f} s of chaos with the syncer and K learners untouched the longest time without a merge "
        f"was {gap_s:.1f} s; {'expected at most ' if failed else 'allowed were '}{patience_s:.1f} s.",
        gap_s,
        patience_s,
        "s",
        tuple(record.n for record in merges if record.t in (gap_start_s, gap_end_s)) if failed else (),
    )


def _untouched_stretches(history: History, start_s: float, end_s: float) -> list[tuple[float, float]]:
    """The stretches of [start, end] in which the syncer runs and K learners are up and untouched."""
    config = history.config
    assert config is not None, "the registry demands the kind"
    changes = [
        change
        for learner in learners_of(history)
        for stretch in _healthy_stretches(history, learner)
        for change in ((stretch[0], 1), (stretch[1], -1))
    ]
    stretches: list[tuple[float, float]] = []
    up, since_s = 0, math.inf
    for at_s, change in sorted(changes):
        if up >= config["quorum"] > up + change:
            stretches.append((max(since_s, start_s), min(at_s, end_s)))
        elif up < config["quorum"] <= up + change:
            since_s = at_s
        up += change
    return [(stretch_start_s, stop_s) for stretch_start_s, stop_s in stretches if stretch_start_s < stop_s]


def _healthy_stretches(history: History, learner: str) -> list[tuple[float, float]]:
    """The stretches of a learner's life from a sign of health to the next fault or end of its process."""
    signs = [(record.t, "sign") for record in history.of("ready") if record.node == learner]
    signs += [(t, "sign") for t, _, _ in merged_times(history).get(learner, [])]
    ends = [(record.t, "end") for record in history.of("exit") if record["role"] == learner]
    hits = [touch for touch in touches(history) if learner in touch.learners]
    ends += [(touch.start_s, "end") for touch in hits]
    events = sorted([*signs, *ends, (over_s(history), "end")])
    stretches: list[tuple[float, float]] = []
    since_s: float | None = None
    for at_s, event in events:
        if event == "end" and since_s is not None:
            stretches.append((since_s, at_s))
            since_s = None
        elif event == "sign" and since_s is None and not any(t.start_s <= at_s <= t.end_s for t in hits):
            since_s = at_s
    return stretches
