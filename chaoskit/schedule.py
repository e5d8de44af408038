"""Which injections are due: a pure function of the plan and of what has happened so far.

    plan ──┐
    moment ┴─▶ due ──▶ allowed? ──▶ the daemon writes its intent and applies it
                          └──▶ a reason why not, which the daemon records

No clock, no thread, no state: the daemon says what moment it is, as often as it likes, and gets the same
answer for the same moment. So a thousand schedules a second run in tests, and both worlds follow the same
one. How often the daemon asks must not change what happens, only how late; a property test pins that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chaoskit.plan import FaultSpec, Plan, RoundTrigger, TimeTrigger


@dataclass(frozen=True)
class Moment:
    """What the schedule must know of the run so far."""

    elapsed_s: float
    """Seconds since the chaos phase began."""
    round: int = 0
    """The highest round that the syncer has opened in the whole run; 0 before the first."""
    started: frozenset[str] = frozenset()
    """Ids of the injections that were started or given up: they are not due again."""


@dataclass(frozen=True)
class Injection:
    """One fault, once."""

    id: str
    """ "kill-one#1": the fault's name and the count of its injections."""
    fault: FaultSpec
    targets: tuple[str, ...]
    """Roles, or directions of links."""
    trigger_text: str
    """The trigger as the plan has it, for instance "round 120"."""
    hold_s: float | None
    """How long it lasts; None where the kind of fault ends by itself."""


def injections(plan: Plan) -> tuple[Injection, ...]:
    """All injections that the plan can bring about, in plan order."""
    return tuple(
        Injection(f"{fault.name}#1", fault, fault.targets, fault.at.text, fault.hold_s) for fault in plan.faults
    )


def due(plan: Plan, moment: Moment) -> tuple[Injection, ...]:
    """The injections whose trigger has come and that have not been started, in plan order."""
    return tuple(
        injection
        for injection in injections(plan)
        if injection.id not in moment.started and _has_come(injection.fault, moment)
    )


def allowed(plan: Plan, injection: Injection, down: Iterable[str]) -> str | None:
    """None if the plan's limits allow the injection now, else the reason for the refusal.

    `down` names the roles that are down or paused at this moment, for whatever reason.
    """
    if injection.fault.acts_on != "role":
        return None
    kept = [role for role in injection.targets if role in plan.limits.keep]
    if kept:
        return f"{', '.join(kept)} must be kept, by [limits] keep"
    if not injection.fault.downs_role:
        return None
    down_after = frozenset(down) | frozenset(injection.targets)
    if len(down_after) > plan.limits.down_max:
        return (
            f"{len(down_after)} roles would be down at once ({', '.join(sorted(down_after))});"
            f" [limits] down-max allows {plan.limits.down_max}"
        )
    return None


def _has_come(fault: FaultSpec, moment: Moment) -> bool:
    match fault.at:
        case TimeTrigger(after_s=after_s):
            return moment.elapsed_s >= after_s
        case RoundTrigger(round=round_):
            return moment.round >= round_
