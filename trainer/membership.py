"""The syncer's view of its learners: one session per accepted connection, and how fast each is.

Every quantity with xi is the paper's: an exponential moving average of a duration, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SAMPLE_MAX = 4.0
"""A sample counts at most this many times the present average, so that one long pause does not poison the pace. [?]"""


@dataclass
class Average:
    """Exponential moving average; the first sample is taken whole."""

    decay: float
    value: float = 0.0
    started: bool = False

    def add(self, sample: float) -> None:
        if not self.started:
            self.value, self.started = sample, True
            return
        self.value += self.decay * (min(sample, SAMPLE_MAX * self.value) - self.value)


@dataclass
class Session:
    """One learner, one incarnation, one connection. Lists are indexed by fragment."""

    connection: int
    learner: str
    incarnation: int
    heard_at: float
    xi_step: Average
    xi_answer: Average
    fragments: int
    ready: bool = False
    tokens: int = 0
    c_steps: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    sent: list[tuple[int, float]] = field(default_factory=list)
    """(version, when) of the newest parameters sent."""
    merged_into: list[int] = field(default_factory=list)
    """The newest version that holds work of this incarnation."""
    merged_hi: list[int] = field(default_factory=list)
    """Tokens up to here are in some version already: no later update may own them again."""
    pushes_seen: list[int] = field(default_factory=list)
    """The highest push number taken; ids are numbered, so one number stands for all ids seen."""
    pulls: dict[tuple[int, int, int], float] = field(default_factory=dict)
    """(round, fragment, attempt) -> when; pulls without an answer so far."""
    overdue: set[tuple[int, int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        P = self.fragments
        self.c_steps, self.versions, self.merged_into = [0] * P, [0] * P, [0] * P
        self.merged_hi, self.pushes_seen = [0] * P, [0] * P
        self.sent = [(-1, 0.0)] * P

    def eligible(self, fragment: int) -> bool:
        """Has work to give on this fragment that is in no version yet, and owes no answer from long ago.

        A learner that never saw the version which holds its work would count its tokens again: it waits for that version.
        """
        return (
            self.ready
            and not self.overdue
            and self.c_steps[fragment] >= 1
            and self.versions[fragment] >= self.merged_into[fragment]
        )
