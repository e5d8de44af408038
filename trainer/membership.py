"""The syncer's view of its learners: who may speak, under which incarnation, and how fast each is.

    connection ──▶ learner ──▶ newest session (incarnation, its own connection)

A connection whose learner has a newer session is fenced: its words are still read, and can be told apart, but count for
nothing. Every quantity with xi is the paper's: an exponential moving average of a duration, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainer.config import Config
from trainer.effects import Close, Effect, PersistMembers, Record, Send
from trainer.messages import Hello, Progress, Push, Ready, Refused, Welcome
from trainer.state import SyncerState

SAMPLE_MAX = 4.0
"""For a learner's own averages: one long pause must not poison the pace. [?] The syncer's have no such bound: an
average of nearly nothing would hardly ever grow."""

PullKey = tuple[int, int, int]
"""(fragment, round, attempt)"""


@dataclass
class Average:
    """Exponential moving average; the first sample is taken whole."""

    decay: float
    sample_max: float = float("inf")
    """A sample counts at most this many times the present average."""
    value: float = 0.0
    started: bool = False

    def add(self, sample: float) -> None:
        if not self.started:
            self.value, self.started = sample, True
            return
        self.value += self.decay * (min(sample, self.sample_max * self.value) - self.value)


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
    pulls: dict[PullKey, float] = field(default_factory=dict)
    """When each pull without an answer was sent."""
    overdue: set[PullKey] = field(default_factory=set)
    """Pulls whose deadline has passed. While there are any the learner is not asked again, so a paused one costs one
    deadline and not one per round."""

    def __post_init__(self) -> None:
        P = self.fragments
        self.c_steps, self.versions, self.merged_into = [0] * P, [0] * P, [0] * P
        self.merged_hi, self.pushes_seen = [0] * P, [0] * P
        self.sent = [(-1, 0.0)] * P

    def eligible(self, fragment: int) -> bool:
        """Has work to give on this fragment that is in no version yet, and owes no answer from long ago.

        A learner that never saw the version which holds its work would count its tokens again: it waits for that
        version.
        """
        return (
            self.ready
            and not self.overdue
            and self.c_steps[fragment] >= 1
            and self.versions[fragment] >= self.merged_into[fragment]
        )

    def answered(self, now: float, push: Push) -> None:
        """Learn how long this learner takes, whether or not the answer is still wanted. An answer to a newer pull of
        the same fragment also stands for the older ones, which a learner does not answer one by one."""
        key = (push.fragment, push.round, push.attempt)
        asked_at = self.pulls.get(key)
        if asked_at is not None:
            self.xi_answer.add(now - asked_at)
        for older in [k for k in self.pulls if k[0] == push.fragment and k <= key]:
            del self.pulls[older]
            self.overdue.discard(older)


def next_incarnation(newest: int, hello: Hello) -> int:
    """Strictly above every incarnation that the syncer has handed out and that the learner has had (S5)."""
    return max(newest, hello.incarnation) + 1


class Members:
    """All learners. Changes `state.incarnations`, `state.processes` and `state.cursors`."""

    def __init__(self, config: Config, state: SyncerState, run: str, fragments: int) -> None:
        self.config, self.state, self.run, self.fragments = config, state, run, fragments
        self.sessions: dict[str, Session] = {}
        self._learners: dict[int, str] = {}

    # ---- who speaks

    def learner_of(self, connection: int) -> str | None:
        return self._learners.get(connection)

    def session_of(self, connection: int) -> Session | None:
        """The newest session of the learner behind `connection`; it may belong to another connection by now."""
        return self.sessions.get(self._learners.get(connection, ""))

    def own_session_of(self, connection: int) -> Session | None:
        """The session of `connection` itself, None when it is fenced."""
        session = self.session_of(connection)
        return session if session and session.connection == connection else None

    # ---- coming and going

    def greet(self, now: float, connection: int, hello: Hello) -> tuple[list[Effect], Session | None]:
        """Accept as a new incarnation, or refuse (no session then)."""
        why, fenced = self._refusal(hello)
        if why:
            refusal = Record("refuse", {"learner": hello.learner, "why": why})
            return [refusal, Send(connection, Refused(why, fenced)), Close(connection, why)], None
        state, learner, older = self.state, hello.learner, self.sessions.get(hello.learner)
        incarnation = next_incarnation(state.incarnations.get(learner, 0), hello)
        out = self._fence(older, hello, incarnation) if older else []
        state.incarnations[learner], state.processes[learner] = incarnation, hello.process
        cursor = state.cursors.setdefault(learner, 0)
        decay = self.config.protocol.average_decay
        xi_step, xi_answer = Average(decay, SAMPLE_MAX), Average(decay, SAMPLE_MAX)
        session = Session(connection, learner, incarnation, now, xi_step, xi_answer, self.fragments)
        self.sessions[learner] = session
        self._learners[connection] = learner
        versions = list(state.versions)
        return [
            *out,
            PersistMembers(dict(state.incarnations), dict(state.processes), dict(state.cursors)),
            Record("join", {"learner": learner, "incarnation": incarnation, "versions": versions, "cursor": cursor}),
            Send(connection, Welcome(incarnation, versions, cursor)),
        ], session

    def _fence(self, older: Session, hello: Hello, incarnation: int) -> list[Effect]:
        why = f"fenced by incarnation {incarnation}"
        out = self.leave(older, why)
        # Only another process is told to end: one that has connected anew no longer listens on its old connection.
        if self.state.processes.get(older.learner) != hello.process:
            out.append(Send(older.connection, Refused(why, fenced=True)))
        return [*out, Close(older.connection, why)]

    def _refusal(self, hello: Hello) -> tuple[str, bool]:
        """(why, fenced) when this learner will never be accepted, else ("", False)."""
        M = self.config.protocol.M
        if hello.run != self.run:
            return f"this is run {self.run!r}, not {hello.run!r}", False
        if hello.learner not in {f"learner-{index}" for index in range(M)}:
            return f"{hello.learner!r} is none of learner-0 to learner-{M - 1}", False
        if hello.config != self.config.digest():
            return "its configuration differs from the syncer's; start both from one file", False
        newest = self.state.incarnations.get(hello.learner, 0)
        same_process = self.state.processes.get(hello.learner) == hello.process
        # [?] A process that was once accepted and has been replaced by another must not come back: two copies would
        # fence each other for ever. A new process (incarnation 0) is always taken for the successor.
        if not same_process and 0 < hello.incarnation < newest:
            return f"incarnation {hello.incarnation} was replaced by another process, now incarnation {newest}", True
        return "", False

    def left(self, connection: int, why: str) -> list[Effect]:
        """The connection is gone; its learner leaves unless it has a newer one."""
        session = self.own_session_of(connection)
        self._learners.pop(connection, None)
        return self.leave(session, why) if session else []

    def leave(self, session: Session, why: str) -> list[Effect]:
        del self.sessions[session.learner]
        return [Record("leave", {"learner": session.learner, "incarnation": session.incarnation, "why": why})]

    def admit(self, session: Session, message: Ready) -> list[Effect]:
        """From now on the learner counts towards K."""
        session.ready, session.versions = True, list(message.versions)
        fields = {"learner": session.learner, "incarnation": session.incarnation, "versions": list(message.versions)}
        return [Record("admit", fields)]

    # ---- pace

    def note(self, session: Session, message: Progress) -> None:
        """Take over a learner's counters."""
        if message.step_s > 0 and np.isfinite(message.step_s):
            session.xi_step.add(message.step_s)
        session.c_steps, session.versions = list(message.c_steps), list(message.versions)
        self.advance_cursor(session.learner, message.step)

    def advance_cursor(self, learner: str, step: int) -> None:
        self.state.cursors[learner] = max(self.state.cursors.get(learner, 0), step)

    def is_live(self, session: Session, now: float) -> bool:
        return session.ready and now - session.heard_at < self.config.timing.silent_s

    def xi_step(self, now: float) -> float:
        """Step time of the slowest live learner, seconds; 0 before anyone has reported."""
        return max((s.xi_step.value for s in self.sessions.values() if self.is_live(s, now)), default=0.0)

    def pace_s(self, now: float) -> float:
        """Least time between two rounds: `H xi_step / P`, by the slowest live learner that owes no answer.

        [?] Nothing published paces rounds on a fast link; without it the effective H falls to one or two steps.
        """
        live = [s for s in self.sessions.values() if self.is_live(s, now)]
        slowest = max((s.xi_step.value for s in live if not s.overdue), default=0.0)
        return self.config.protocol.H * slowest / self.fragments

    def ready_count(self) -> int:
        return sum(session.ready for session in self.sessions.values())

    def eligible(self, fragment: int) -> list[Session]:
        """By learner name. [?] Every learner with work to give, not only those that have reached the syncer's step."""
        return sorted((s for s in self.sessions.values() if s.eligible(fragment)), key=lambda s: s.learner)
