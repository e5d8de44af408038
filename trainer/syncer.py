"""The syncer as a state machine: no clock, socket, thread or random generator inside.

It owns the global parameters. Learners report counters after every step; the syncer decides when a fragment is due, pulls it
from every learner that has work to give, merges, makes the merge durable, and only then tells anyone.

Order of the effects of one merge, which is what a restart relies on:

    PersistMerge ──▶ Record merge ──▶ Record publish ──▶ Send Fragment (to all)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.config import Config
from trainer.effects import (
    Close,
    Closed,
    Effect,
    Event,
    Finish,
    PersistMembers,
    PersistMerge,
    Received,
    Record,
    Send,
    Terminate,
)
from trainer.fragments import Fragment, digest_of, initial_theta
from trainer.membership import Average, Session
from trainer.merge import Contribution, in_canonical_order, length, merge, norm_ratios, outer_gradient
from trainer.messages import Fragment as FragmentMessage
from trainer.messages import Hello, Ping, Progress, Pull, Push, Ready, Refused, Reject, Stop, Welcome
from trainer.rounds import Round, number_of

ANSWERS_WAITED = 3.0
"""An answer is late after this many times the learner's own average."""


@dataclass
class SyncerState:
    """All that outlives a syncer process. Lists are indexed by fragment; arrays are float32 of the fragment's size."""

    theta: list[np.ndarray]
    momentum: list[np.ndarray]
    versions: list[int]
    incarnations: dict[str, int] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)

    @classmethod
    def fresh(cls, fragments: Sequence[Fragment], seed: int) -> SyncerState:
        theta = [initial_theta(fragment, seed) for fragment in fragments]
        return cls(theta, [np.zeros_like(values) for values in theta], [0] * len(theta))


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
    staleness_max: int
    global_theta: np.ndarray


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
    if a.round is None:
        return a.push.round <= number_of(a.push.fragment, a.version, _P(a))
    return a.push.round == a.round.number and a.push.attempt < a.round.attempt


def _P(a: Arrival) -> int:
    return a.session.fragments if a.session else 1


def wrong_round(a: Arrival) -> bool:
    return a.round is None or (a.push.round, a.push.attempt) != (a.round.number, a.round.attempt)


def duplicate(a: Arrival) -> bool:
    """The same push once more (S17). Ids are numbered per incarnation and fragment, and travel in order."""
    return a.session is not None and _push_number(a.push) <= a.session.pushes_seen[a.push.fragment]


def _push_number(push: Push) -> int:
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
    "bad-digest": bad_digest,
    "not-finite": not_finite,
}
"""Every check a push must pass, in this order; the name is the reason on the tape. A check returns True to reject."""

OWN_COPY_BAD = {"not-finite", "norm"}
"""Reasons after which the learner must overwrite its copy even with the version that it already holds."""


def next_incarnation(newest: int, hello: Hello) -> int:
    """Strictly above every incarnation that the syncer has handed out and that the learner has had (S5)."""
    return max(newest, hello.incarnation) + 1


class Syncer:
    """The syncer's side of the protocol.

    Args:
        config: protocol and task; `config.rounds_total` rounds are run.
        fragments: layout of the flat vector.
        state: fresh, or what `durable.load` found; changed in place.
        run: name of the run; learners of another run are refused.
    """

    def __init__(self, config: Config, fragments: Sequence[Fragment], state: SyncerState, run: str) -> None:
        self.config = config
        self.fragments = tuple(fragments)
        self.state = state
        self.run = run
        self.sessions: dict[str, Session] = {}
        self.rounds: list[Round] = []
        self.complete = False
        self.finished = False
        decay = config.protocol.average_decay
        self._xi_quorum, self._xi_sync = Average(decay), Average(decay)
        self._started_at = -np.inf
        self._leave_by = np.inf
        self._anyone_told = False
        self._learners: dict[int, str] = {}
        """connection -> learner; a fenced connection stays known until it is closed, so that its words can be told apart."""
        self._had_quorum = False
        self._below = False

    # ---- events

    def handle(self, now: float, event: Event) -> list[Effect]:
        """Take one event, give the effects to carry out in order."""
        if self.finished:
            return []
        out: list[Effect] = []
        match event:
            case Received(connection, message, payload):
                out += self._received(now, connection, message, payload)
            case Closed(connection, why, bad_frame):
                if bad_frame:
                    peer = self._learners.get(connection, f"connection {connection}")
                    out.append(Record("frame-error", {"peer": peer, "why": why}))
                out += self._left(connection, why)
            case Terminate(reason):
                self.finished = True
                return [Record("stop", {"reason": reason}), Finish(reason)]
        return out + self._advance(now)

    def wake_at(self) -> float:
        """When a Tick is due at the latest, if nothing else happens; infinity when nothing is waited for."""
        times = [self._leave_by]
        if not self.complete and len(self.rounds) < self.config.protocol.tau and self._due() is not None:
            times.append(self._started_at + self._pace())
        for round_ in self.rounds:
            if round_.stage == "grace":
                times.append(round_.pull_at)
            times += [deadline for _, deadline in round_.waiting.values()]
        return float(min(times))

    def clock(self) -> list[int]:
        return list(self.state.versions)

    def xi_step(self, now: float) -> float:
        """Step time of the slowest live learner, seconds; 0 before anyone has reported."""
        return max((s.xi_step.value for s in self.sessions.values() if self._is_live(s, now)), default=0.0)

    # ---- messages

    def _received(self, now: float, connection: int, message: object, payload: bytes) -> list[Effect]:
        learner = self._learners.get(connection)
        if isinstance(message, Hello) and learner is None:
            return self._greeted(now, connection, message)
        session = self.sessions.get(learner) if learner else None
        own = session if session and session.connection == connection else None
        if own:
            own.heard_at = now
        match message:
            case Push() if message.fragment < len(self.fragments):
                return self._pushed(now, connection, session, message, payload)
            case Ready() if own and message.incarnation == own.incarnation and self._fits(message.versions):
                return self._admit(own, message)
            case Progress() if own and message.incarnation == own.incarnation and self._fits(message.versions):
                return self._progressed(now, own, message)
            case Ping() | Ready() | Progress() if learner:
                return []  # a sign of life, or the last words of a fenced connection
        return [
            Record("frame-error", {"peer": learner or "unknown", "why": f"unexpected {type(message).__name__}"}),
            Close(connection, f"unexpected {type(message).__name__}"),
        ]

    def _fits(self, versions: list[int]) -> bool:
        return len(versions) == len(self.fragments)

    def _greeted(self, now: float, connection: int, hello: Hello) -> list[Effect]:
        why, fenced = self._refusal(hello)
        if why:
            refusal = Record("refuse", {"learner": hello.learner, "why": why})
            return [refusal, Send(connection, Refused(why, fenced)), Close(connection, why)]
        state, learner = self.state, hello.learner
        out: list[Effect] = []
        older = self.sessions.get(learner)
        incarnation = next_incarnation(state.incarnations.get(learner, 0), hello)
        if older:
            out += self._leave(older, f"fenced by incarnation {incarnation}")
            # Only another process is told to stop: a process which has reconnected no longer listens on its old connection.
            if state.processes.get(learner) != hello.process:
                out.append(Send(older.connection, Refused(f"fenced by incarnation {incarnation}", fenced=True)))
            out.append(Close(older.connection, "fenced"))
        state.incarnations[learner], state.processes[learner] = incarnation, hello.process
        cursor = state.cursors.setdefault(learner, 0)
        out.append(PersistMembers(dict(state.incarnations), dict(state.processes), dict(state.cursors)))
        decay = self.config.protocol.average_decay
        session = Session(connection, learner, incarnation, now, Average(decay), Average(decay), len(self.fragments))
        self.sessions[learner] = session
        self._learners[connection] = learner
        fields = {"learner": learner, "incarnation": incarnation, "versions": self.clock(), "cursor": cursor}
        out.append(Record("join", fields))
        out.append(Send(connection, Welcome(incarnation, self.clock(), cursor)))
        # [?] State comes from the syncer's own copy, the paper's fallback; the paper prefers a healthy peer.
        for fragment in self.fragments:
            out.append(self._send_fragment(now, session, fragment.index, "join"))
        if self.complete:
            out.append(Send(connection, Stop("complete")))
        return out

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
        # [?] A process that was once accepted and has since been replaced by another must not come back: two copies would
        # fence each other for ever. A new process (incarnation 0) is always taken for the successor.
        if not same_process and 0 < hello.incarnation < newest:
            return f"incarnation {hello.incarnation} was replaced by another process, now incarnation {newest}", True
        return "", False

    def _admit(self, session: Session, message: Ready) -> list[Effect]:
        session.ready = True
        session.versions = list(message.versions)
        fields = {"learner": session.learner, "incarnation": session.incarnation, "versions": message.versions}
        return [Record("admit", fields)]

    def _progressed(self, now: float, session: Session, message: Progress) -> list[Effect]:
        if not session.ready or not self._fits(message.c_steps):
            return []
        if message.step_s > 0 and np.isfinite(message.step_s):
            session.xi_step.add(message.step_s)
        session.tokens = message.tokens
        session.c_steps, session.versions = list(message.c_steps), list(message.versions)
        self._advance_cursor(session.learner, message.step)
        return self._send_what_is_missing(now, session)

    def _advance_cursor(self, learner: str, step: int) -> None:
        self.state.cursors[learner] = max(self.state.cursors.get(learner, 0), step)

    def _send_what_is_missing(self, now: float, session: Session) -> list[Effect]:
        """A broadcast can be lost with its connection or skipped for a silent learner. Exactly-once acceptance would then
        keep that learner out of this fragment for ever; so what it lacks is sent again."""
        out: list[Effect] = []
        patience_s = self.config.protocol.H * max(self.xi_step(now), session.xi_step.value)
        for index, version in enumerate(self.state.versions):
            sent_version, sent_at = session.sent[index]
            if session.versions[index] < version and (sent_version < version or now - sent_at > patience_s):
                out.append(self._send_fragment(now, session, index, "broadcast"))
        return out

    def _send_fragment(
        self, now: float, session: Session, index: int, cause: str, overwrite: bool = False
    ) -> Send:
        theta, version = self.state.theta[index], self.state.versions[index]
        session.sent[index] = (version, now)
        message = FragmentMessage(index, version, digest_of(theta), cause, overwrite)  # type: ignore[arg-type]  # a Cause
        return Send(session.connection, message, theta.astype("<f4").tobytes())

    def _left(self, connection: int, why: str) -> list[Effect]:
        session = self.sessions.get(self._learners.pop(connection, ""))
        return self._leave(session, why) if session and session.connection == connection else []

    def _leave(self, session: Session, why: str) -> list[Effect]:
        del self.sessions[session.learner]
        self._anyone_told = self._anyone_told or self.complete
        return [Record("leave", {"learner": session.learner, "incarnation": session.incarnation, "why": why})]

    # ---- pushes

    def _pushed(
        self, now: float, connection: int, session: Session | None, push: Push, payload: bytes
    ) -> list[Effect]:
        index = push.fragment
        fits = len(payload) == self.fragments[index].payload_bytes
        theta = np.frombuffer(payload, dtype="<f4").astype(np.float32) if fits else None
        round_ = next((r for r in self.rounds if r.fragment == index), None)
        arrival = Arrival(
            connection, push, theta, session, round_, self.state.versions[index], self.config.protocol.staleness_max,
            self.state.theta[index],
        )  # fmt: skip
        if session:
            self._note_answer(now, session, push)
        why = next((name for name, check in CHECKS.items() if check(arrival)), None)
        learner = session.learner if session else push.id.partition(".")[0]
        if why or session is None or round_ is None or theta is None:
            return self._reject(now, connection, session, learner, push, why or "wrong-round")
        session.pushes_seen[index] = _push_number(push)
        round_.waiting.pop(learner, None)
        round_.answers[learner] = Contribution(
            learner, push.incarnation, push.id, push.base, push.lo, push.hi, push.steps, push.digest, theta
        )
        fields = {
            "learner": learner, "incarnation": push.incarnation, "fragment": index, "round": push.round,
            "attempt": push.attempt, "id": push.id, "base": push.base, "lo": push.lo, "hi": push.hi,
            "steps": push.steps, "digest": push.digest,
        }  # fmt: skip
        return [Record("accept", fields)]

    def _note_answer(self, now: float, session: Session, push: Push) -> None:
        """How long this learner takes to answer, whether or not the answer is still wanted."""
        key = (push.round, push.fragment, push.attempt)
        asked_at = session.pulls.pop(key, None)
        session.overdue.discard(key)
        if asked_at is not None:
            session.xi_answer.add(now - asked_at)
            self._advance_cursor(session.learner, push.step)

    def _reject(
        self, now: float, connection: int, session: Session | None, learner: str, push: Push, why: str
    ) -> list[Effect]:
        fields = {
            "learner": learner, "incarnation": push.incarnation, "fragment": push.fragment, "round": push.round,
            "attempt": push.attempt, "id": push.id, "why": why,
        }  # fmt: skip
        out: list[Effect] = [Record("reject", fields), Send(connection, Reject(push.id, why))]
        if session and connection == session.connection and session.ready:
            out.append(self._send_fragment(now, session, push.fragment, "reject", overwrite=why in OWN_COPY_BAD))
        return out

    # ---- rounds

    def _advance(self, now: float) -> list[Effect]:
        """Let every round go as far as it can, and open the next ones that are due."""
        out = self._watch_quorum()
        for _ in range(self.config.protocol.tau + 1):  # a merge may let the next round open; the pace allows no more
            before = [(r.key, r.stage) for r in self.rounds]
            out += self._open_rounds(now)
            for round_ in list(self.rounds):
                out += self._drive(now, round_)
            if [(r.key, r.stage) for r in self.rounds] == before:
                break
        return out + self._end_when_done(now)

    def _watch_quorum(self) -> list[Effect]:
        ready, K = sum(s.ready for s in self.sessions.values()), self.config.protocol.K
        below = ready < K
        self._had_quorum = self._had_quorum or not below
        begins = below and not self._below and self._had_quorum and not self.complete
        self._below = below
        return [Record("below-quorum", {"ready": ready, "quorum": K})] if begins else []

    def _due(self) -> int | None:
        """The fragment whose next round has the lowest number, of those with none in flight."""
        P, total = len(self.fragments), self.config.versions_total
        flying = {r.fragment for r in self.rounds}
        numbers = [
            (number_of(index, version + 1, P), index)
            for index, version in enumerate(self.state.versions)
            if version < total and index not in flying
        ]
        return min(numbers)[1] if numbers else None

    def _pace(self) -> float:
        """[?] Nothing published paces rounds on a fast link; the alternative lets the effective H fall to one or two steps."""
        slowest = max((s.xi_step.value for s in self.sessions.values() if not s.overdue), default=0.0)
        return self.config.protocol.H * slowest / len(self.fragments)

    def _open_rounds(self, now: float) -> list[Effect]:
        out: list[Effect] = []
        due = self._due()
        if due is not None and len(self.rounds) < self.config.protocol.tau and now >= self._started_at + self._pace():
            round_ = Round(number_of(due, self.state.versions[due] + 1, len(self.fragments)), due, now)
            round_.gathering_since = now
            self._started_at = now
            self.rounds.append(round_)
            out.append(self._record_round(round_))
        return out

    def _record_round(self, round_: Round) -> Record:
        return Record("round", {"round": round_.number, "fragment": round_.fragment, "attempt": round_.attempt})

    def _again(self, now: float, round_: Round) -> list[Effect]:
        round_.again(now)
        return [self._record_round(round_)]

    def _drive(self, now: float, round_: Round) -> list[Effect]:
        out: list[Effect] = []
        if round_.stage == "gathering":
            out += self._gather(now, round_)
        if round_.stage == "grace":
            out += self._grace(now, round_)
        if round_.stage == "pulling":
            out += self._collect(now, round_)
        return out

    def _eligible(self, fragment: int) -> list[Session]:
        """[?] Every connected learner with work to give, not only those that have reached the syncer's step."""
        return sorted((s for s in self.sessions.values() if s.eligible(fragment)), key=lambda s: s.learner)

    def _gather(self, now: float, round_: Round) -> list[Effect]:
        eligible = self._eligible(round_.fragment)
        if len(eligible) < self.config.protocol.K:
            return []
        round_.stage, round_.quorum_at = "grace", now
        self._xi_quorum.add(now - round_.gathering_since)
        round_.pull_at = now + self._grace_s(now)
        fields = {"round": round_.number, "fragment": round_.fragment, "attempt": round_.attempt}
        return [Record("quorum", {**fields, "learners": [s.learner for s in eligible]})]

    def _grace_s(self, now: float) -> float:
        """`slack = tau xi_step - (xi_quorum + xi_sync)`, `0 <= grace <= gamma slack`, at most one inner step."""
        protocol, xi_step = self.config.protocol, self.xi_step(now)
        slack = protocol.tau * xi_step - (self._xi_quorum.value + self._xi_sync.value)
        return min(max(protocol.gamma * slack, 0.0), xi_step, self.config.timing.grace_s_max)

    def _grace(self, now: float, round_: Round) -> list[Effect]:
        eligible = self._eligible(round_.fragment)
        expected = [s for s in self.sessions.values() if s.ready and not s.overdue and self._is_live(s, now)]
        if now < round_.pull_at and len(eligible) < len(expected):
            return []
        if len(eligible) < self.config.protocol.K:
            return self._again(now, round_)
        round_.stage, round_.pull_at = "pulling", now
        round_.grace_s = now - round_.quorum_at
        out: list[Effect] = []
        for session in eligible:
            session.pulls[round_.key] = now
            round_.waiting[session.learner] = (session.incarnation, now + self._answer_s(now, session))
            out.append(Send(session.connection, Pull(round_.number, round_.fragment, round_.attempt)))
        fields = {"round": round_.number, "fragment": round_.fragment, "attempt": round_.attempt}
        return [Record("pull", {**fields, "learners": list(round_.waiting)}), *out]

    def _answer_s(self, now: float, session: Session) -> float:
        """[?] An answer may take tau steps, or three times what it usually takes this learner, but no longer than H steps.
        A fixed limit would shut out a learner behind a slow link for ever."""
        protocol, xi_step = self.config.protocol, self.xi_step(now)
        longest = protocol.H * xi_step
        usual = ANSWERS_WAITED * session.xi_answer.value if session.xi_answer.started else longest
        return min(longest, max(protocol.tau * xi_step, usual))

    def _collect(self, now: float, round_: Round) -> list[Effect]:
        for learner, (incarnation, deadline) in list(round_.waiting.items()):
            session = self.sessions.get(learner)
            if session is None or session.incarnation != incarnation:
                del round_.waiting[learner]
            elif now >= deadline:
                del round_.waiting[learner]
                session.overdue.add(round_.key)
        if round_.waiting:
            return []
        out, standing = self._standing(now, round_)
        if len(standing) < self.config.protocol.K:
            return out + self._again(now, round_)
        return out + self._merge(now, round_, standing)

    def _standing(self, now: float, round_: Round) -> tuple[list[Effect], list[Contribution]]:
        """The answers that may be merged now: the quorum is counted again over these, by learner, not by message (S3).

        [?] An answer whose learner has gone meanwhile is dropped; the alternative keeps it until a successor joins.
        """
        answers = [a for a in in_canonical_order(list(round_.answers.values())) if self._is_current(a)]
        guard = self.config.protocol.norm_guard
        out: list[Effect] = []
        standing: list[Contribution] = []
        ratios = norm_ratios([outer_gradient(self.state.theta[round_.fragment], a) for a in answers])
        for answer, ratio in zip(answers, ratios, strict=True):
            if guard and ratio > guard:
                out += self._reject_for_norm(now, round_, answer)
            else:
                standing.append(answer)
        return out, standing

    def _is_current(self, answer: Contribution) -> bool:
        session = self.sessions.get(answer.learner)
        return session is not None and session.incarnation == answer.incarnation and session.ready

    def _reject_for_norm(self, now: float, round_: Round, answer: Contribution) -> list[Effect]:
        session = self.sessions[answer.learner]
        session.c_steps[round_.fragment] = 0  # it must overwrite its copy before it is asked again
        push = Push(
            answer.incarnation, 0, round_.number, round_.fragment, round_.attempt, answer.base, answer.lo, answer.hi,
            answer.steps, answer.id, answer.digest,
        )  # fmt: skip
        return self._reject(now, session.connection, session, answer.learner, push, "norm")

    # ---- merge

    def _merge(self, now: float, round_: Round, standing: list[Contribution]) -> list[Effect]:
        index, state, protocol = round_.fragment, self.state, self.config.protocol
        before = digest_of(state.theta[index])
        merged = merge(
            state.theta[index], state.momentum[index], standing, self.fragments[index].tensors,
            lr=protocol.outer_lr, mu=protocol.outer_momentum,
        )  # fmt: skip
        state.theta[index], state.momentum[index] = merged.theta, merged.momentum
        state.versions[index] += 1
        version = state.versions[index]
        for contribution in standing:
            session = self.sessions[contribution.learner]
            session.merged_into[index], session.merged_hi[index] = version, contribution.hi
        self._xi_sync.add(now - round_.pull_at)
        self.rounds.remove(round_)
        parts = [
            {
                "learner": c.learner, "incarnation": c.incarnation, "id": c.id, "base": c.base, "lo": c.lo, "hi": c.hi,
                "steps": c.steps, "tokens": c.tokens, "weight": weight, "digest": c.digest,
                "cosine": round(cosine, 6), "norm_ratio": round(ratio, 6),
            }
            for c, weight, cosine, ratio in zip(
                standing, merged.weights, merged.cosines, merged.norm_ratios, strict=True
            )
        ]  # fmt: skip
        record = {
            "round": round_.number, "fragment": index, "version": version, "h_in": before,
            "h_out": digest_of(merged.theta), "momentum": digest_of(merged.momentum), "contributions": parts,
            "grace_s": round(round_.grace_s, 6),
        }  # fmt: skip
        return [
            PersistMerge(
                index, version, merged.theta, merged.momentum, dict(state.cursors), record, tuple(standing)
            ),
            Record("merge", record),
            *publish_record(record),
            *self._broadcast(now, index),
        ]

    def _broadcast(self, now: float, index: int) -> list[Effect]:
        """To all who listen. A silent learner gets the newest version when it is heard again, not every one in between."""
        return [
            self._send_fragment(now, session, index, "broadcast")
            for session in self.sessions.values()
            if not session.ready or self._is_live(session, now)
        ]

    def _is_live(self, session: Session, now: float) -> bool:
        return session.ready and now - session.heard_at < self.config.timing.silent_s

    # ---- end

    def _end_when_done(self, now: float) -> list[Effect]:
        out: list[Effect] = []
        if not self.complete and min(self.state.versions) >= self.config.versions_total:
            self.complete = True
            self._leave_by = now + self.config.timing.leave_s
            out += [Send(s.connection, Stop("complete")) for s in self.sessions.values()]
            out.append(Record("stop", {"reason": "complete"}))
        # A syncer restarted after the last merge has no sessions yet: it waits for learners that do not know the end.
        if self.complete and ((self._anyone_told and not self.sessions) or now >= self._leave_by):
            self.finished = True
            out.append(Finish("complete"))
        return out


def publish_record(record: Mapping[str, Any]) -> list[Record]:
    """The publish record that belongs to a merge record."""
    return [Record("publish", {"fragment": record["fragment"], "version": record["version"], "digest": record["h_out"]})]
