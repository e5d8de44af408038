"""One round: from the first learner with work to give until the merge.

gathering ─ K have reported ─▶ grace ─ window over, or all have ─▶ pulling ─ all answered, or deadline ─▶ merged
    ▲                            │ quorum lost                        │ fewer than K valid answers
    └──────── attempt + 1 ───────┴────────────────────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.merge import Contribution


@dataclass
class Round:
    """Round `number` of fragment `fragment`; answers to an older `attempt` are never taken. Times are `now`s."""

    number: int
    fragment: int
    gathering_since: float
    attempt: int = 1
    stage: Literal["gathering", "grace", "pulling"] = "gathering"
    below_quorum: bool = False
    """Whether fewer than K were ready at some time of this gathering: how long it took measures no quorum then."""
    quorum_at: float = 0.0
    """t_K"""
    pull_at: float = 0.0
    grace_s: float = 0.0
    waiting: dict[str, tuple[int, float]] = field(default_factory=dict)
    """learner -> (incarnation, deadline of its answer)"""
    answers: dict[str, Contribution] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, int, int]:
        return self.fragment, self.number, self.attempt

    def fields(self) -> dict[str, Any]:
        """As every tape record about this round has them."""
        return {"round": self.number, "fragment": self.fragment, "attempt": self.attempt}

    def again(self, now: float) -> None:
        """Start over under the next attempt number; what was answered before is void."""
        self.attempt += 1
        self.stage = "gathering"
        self.gathering_since = now
        self.below_quorum = False
        self.waiting.clear()
        self.answers.clear()


def number_of(fragment: int, version: int, P: int) -> int:
    """The round that makes `version` of `fragment`.

    Fragments take turns and no round is given up, so the versions tell the round numbers, and a restarted syncer has
    nothing to remember.
    """
    return (version - 1) * P + fragment + 1
