"""What a push must pass before it may be merged: a flat, ordered table of small questions, each with its own reason.

The order matters only for which reason is told when several apply. A test deletes one line of the table at a time and
sees an invariant break; that is why they are apart, and why none of them does two things.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trainer.fragments import digest_of
from trainer.membership import Session
from trainer.merge import length
from trainer.messages import Push
from trainer.rounds import Round, number_of


@dataclass(frozen=True)
class Arrival:
    """A push on its way through the checks, with all that they may look at."""

    connection: int
    push: Push
    theta: np.ndarray | None
    """None when the payload has not the size of the fragment."""
    session: Session | None
    round: Round | None
    version: int
    """Newest version of the fragment."""
    global_theta: np.ndarray
    staleness_max: int
    fragments: int
    """P."""


def unknown_learner(a: Arrival) -> bool:
    return a.session is None


def stale_incarnation(a: Arrival) -> bool:
    """Fencing (S4): a zombie speaks for an incarnation that has a successor."""
    return a.session is not None and (
        a.push.incarnation != a.session.incarnation or a.connection != a.session.connection
    )


def not_ready(a: Arrival) -> bool:
    return a.session is not None and not a.session.ready


def late(a: Arrival) -> bool:
    """Its round has merged, or has gone on to another attempt."""
    merged = a.push.round <= number_of(a.push.fragment, a.version, a.fragments)
    return merged or (a.round is not None and a.push.round == a.round.number and a.push.attempt < a.round.attempt)


def wrong_round(a: Arrival) -> bool:
    return a.round is None or (a.push.round, a.push.attempt) != (a.round.number, a.round.attempt)


def duplicate(a: Arrival) -> bool:
    """The same push once more (S17). Ids are numbered per incarnation and fragment, and travel in order."""
    return a.session is not None and push_number(a.push) <= a.session.pushes_seen[a.push.fragment]


def push_number(push: Push) -> int:
    tail = push.id.rpartition(".")[2]
    return int(tail) if tail.isdecimal() else 0


def wrong_base(a: Arrival) -> bool:
    """From a version that does not exist yet."""
    return a.push.base > a.version


def too_stale(a: Arrival) -> bool:
    """S9: an update for version v = version + 1 has a base of v - 1 - S or later."""
    return a.push.base < a.version - a.staleness_max


def tokens_merged(a: Arrival) -> bool:
    """S6: the interval (lo, hi] must not overlap with what this incarnation has had merged, and must hold something."""
    return a.session is not None and (a.push.lo < a.session.merged_hi[a.push.fragment] or a.push.hi <= a.push.lo)


def no_work(a: Arrival) -> bool:
    """Tokens without steps have no weight `c_tokens^2 / c_steps`, and a merge of nothing else could not be done."""
    return a.push.steps < 1


def bad_digest(a: Arrival) -> bool:
    """S8, end to end: the frame's checksum guards the wire, this one guards everything between two memories."""
    return a.theta is None or digest_of(a.theta) != a.push.digest


def not_finite(a: Arrival) -> bool:
    """Rides on the norm, which is not finite exactly when an element is not."""
    return a.theta is not None and not np.isfinite(length(a.global_theta.astype(np.float64) - a.theta))


Check = Callable[[Arrival], bool]
CHECKS: dict[str, Check] = {
    "unknown-learner": unknown_learner,
    "stale-incarnation": stale_incarnation,
    "not-ready": not_ready,
    "duplicate": duplicate,
    "late": late,
    "wrong-round": wrong_round,
    "wrong-base": wrong_base,
    "too-stale": too_stale,
    "tokens-merged": tokens_merged,
    "no-work": no_work,
    "bad-digest": bad_digest,
    "not-finite": not_finite,
}
"""Every check a push must pass, in this order; the name is the reason on the tape. A check returns True to reject."""

OWN_COPY_BAD = {"not-finite", "norm"}
"""Reasons after which the learner must overwrite its copy even with the version that it already holds."""
