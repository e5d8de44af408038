"""The syncer as a state machine: no clock, socket, thread or random generator inside.

It owns the global parameters. Learners report counters after every step; the syncer decides when a fragment is due,
pulls it from every learner that has work to give, merges, makes the merge durable, and only then tells anyone.

Order of the effects of one merge, which is what a restart relies on:

    PersistMerge ──▶ Record merge ──▶ Record publish ──▶ Send Fragment (to all)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainer.acceptance import CHECKS, OWN_COPY_BAD, Arrival, push_number
from trainer.config import Config
from trainer.effects import Close, Closed, Effect, Event, Finish, PersistMerge, Received, Record, Send, Terminate
from trainer.fragments import Fragment, digest_of
from trainer.membership import Average, Members, Session
from trainer.merge import Contribution, Merged, in_canonical_order, length, merge, norm_ratios, outer_gradient
from trainer.messages import Cause, Hello, Ping, Progress, Pull, Push, Ready, Reject, Stop
from trainer.messages import Fragment as FragmentMessage
from trainer.rounds import Round, number_of
from trainer.state import SyncerState

ANSWERS_WAITED = 3.0
"""An answer is late after this many times the learner's own average."""
ANSWER_S_MIN = 0.05
"""Steps of microseconds must not make every answer late."""


class Syncer:
    """The syncer's side of the protocol.

    Args:
        config: protocol and task; `config.rounds_total` rounds are run.
        fragments: layout of the flat vector.
        state: fresh, or what `durable.Store.load` found; changed in place.
        run: name of the run; learners of another run are refused.
    """

    def __init__(self, config: Config, fragments: Sequence[Fragment], state: SyncerState, run: str) -> None:
        self.config = config
        self.fragments = tuple(fragments)
        self.state = state
        self.members = Members(config, state, run, len(self.fragments))
        self.rounds: list[Round] = []
        self.complete = False
        self.finished = False
        decay = config.protocol.average_decay
        self._xi_quorum, self._xi_sync = Average(decay), Average(decay)
        self._started_at = -np.inf
        self._pace_s = 0.0
        self._leave_by = np.inf
        self._someone_knows = False
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
                    peer = self.members.learner_of(connection) or f"connection {connection}"
                    out.append(Record("frame-error", {"peer": peer, "why": why}))
                out += self.members.left(connection, why)
            case Terminate(reason):
                self.finished = True
                return [Record("stop", {"reason": reason}), Finish(reason)]
        return out + self._advance(now)

    def wake_at(self) -> float:
        """When a Tick is due at the latest, if nothing else happens; infinity when nothing is waited for."""
        times = [self._leave_by]
        if len(self.rounds) < self.config.protocol.tau and self._due() is not None:
            times.append(self._started_at + self._pace_s)
        for round_ in self.rounds:
            if round_.stage == "grace":
                times.append(round_.pull_at)
            times += [deadline for _, deadline in round_.waiting.values()]
            if round_.stage == "pulling" and not round_.waiting:
                times.append(self._give_up_at(round_))
        return float(min(times))

    def clock(self) -> list[int]:
        """The version of every fragment."""
        return list(self.state.versions)

    # ---- messages

    def _received(self, now: float, connection: int, message: object, payload: bytes) -> list[Effect]:
        learner = self.members.learner_of(connection)
        if isinstance(message, Hello) and learner is None:
            return self._greeted(now, connection, message)
        own = self.members.own_session_of(connection)
        if own:
            own.heard_at = now
        P = len(self.fragments)
        match message:
            case Push() if learner and message.fragment < P:
                return self._pushed(now, connection, learner, message, payload)
            case Ready() if own and message.incarnation == own.incarnation and len(message.versions) == P:
                return self.members.admit(own, message)
            case Progress() if own and message.incarnation == own.incarnation and own.ready:
                if len(message.versions) == len(message.c_steps) == P:
                    self.members.note(own, message)
                    return self._send_what_is_missing(now, own)
            case Ping() | Ready() | Progress() if learner:
                return []  # a sign of life, or the last words of a fenced connection
        why = f"unexpected {type(message).__name__}"
        peer = learner or f"connection {connection}"
        return [Record("frame-error", {"peer": peer, "why": why}), Close(connection, why)]

    def _greeted(self, now: float, connection: int, hello: Hello) -> list[Effect]:
        out, session = self.members.greet(now, connection, hello)
        if session is None:
            return out
        # [?] State comes from the syncer's own copy, the paper's fallback; the paper prefers a healthy peer.
        out += [self._send_fragment(now, session, fragment.index, "join") for fragment in self.fragments]
        if self.complete:
            self._someone_knows = True
            out.append(Send(connection, Stop("complete")))
        return out

    def _send_what_is_missing(self, now: float, session: Session) -> list[Effect]:
        """A broadcast can be lost with its connection, or skipped for a silent learner. Exactly-once acceptance would
        then keep that learner out of this fragment for ever; so what it lacks is sent again."""
        out: list[Effect] = []
        patience_s = self.config.protocol.H * max(self.members.xi_step(now), session.xi_step.value)
        for index, version in enumerate(self.state.versions):
            sent_version, sent_at = session.sent[index]
            if session.versions[index] < version and (sent_version < version or now - sent_at > patience_s):
                out.append(self._send_fragment(now, session, index, "broadcast"))
        return out

    def _send_fragment(self, now: float, session: Session, index: int, cause: Cause, overwrite: bool = False) -> Send:
        theta, version = self.state.theta[index], self.state.versions[index]
        session.sent[index] = (version, now)
        message = FragmentMessage(index, version, digest_of(theta), cause, overwrite)
        return Send(session.connection, message, theta.astype("<f4").tobytes())

    # ---- pushes

    def _pushed(self, now: float, connection: int, learner: str, push: Push, payload: bytes) -> list[Effect]:
        index = push.fragment
        fits = len(payload) == self.fragments[index].payload_bytes
        theta = np.frombuffer(payload, dtype="<f4").astype(np.float32) if fits else None
        session = self.members.session_of(connection)
        round_ = next((r for r in self.rounds if r.fragment == index), None)
        arrival = Arrival(
            connection, push, theta, session, round_, self.state.versions[index], self.state.theta[index],
            self.config.protocol.staleness_max, len(self.fragments),
        )  # fmt: skip
        if own := self.members.own_session_of(connection):
            own.answered(now, push)
            self.members.advance_cursor(learner, push.step)
            if round_ and round_.key == (index, push.round, push.attempt):
                round_.waiting.pop(learner, None)  # answered, whether or not the answer is good
        why = next((name for name, check in CHECKS.items() if check(arrival)), None)
        if why or session is None or round_ is None or theta is None:
            return self._reject(now, connection, learner, push, why or "wrong-round")
        session.pushes_seen[index] = push_number(push)
        round_.answers[learner] = Contribution(
            learner, push.incarnation, push.id, push.base, push.lo, push.hi, push.steps, push.digest, theta
        )
        fields = {
            "learner": learner, "incarnation": push.incarnation, "fragment": index, "round": push.round,
            "attempt": push.attempt, "id": push.id, "base": push.base, "lo": push.lo, "hi": push.hi,
            "steps": push.steps, "digest": push.digest,
        }  # fmt: skip
        return [Record("accept", fields)]

    def _reject(self, now: float, connection: int, learner: str, push: Push, why: str) -> list[Effect]:
        """Tell why, and send the current fragment again: whatever it was that the learner missed, it has it then."""
        fields = {
            "learner": learner, "incarnation": push.incarnation, "fragment": push.fragment, "round": push.round,
            "attempt": push.attempt, "id": push.id, "why": why,
        }  # fmt: skip
        out: list[Effect] = [Record("reject", fields), Send(connection, Reject(push.id, why))]
        own = self.members.own_session_of(connection)
        if own and own.ready:
            out.append(self._send_fragment(now, own, push.fragment, "reject", overwrite=why in OWN_COPY_BAD))
        return out

    # ---- rounds

    def _advance(self, now: float) -> list[Effect]:
        """Let every round go as far as it can, and open the next ones that are due."""
        out = self._watch_quorum()
        for _ in range(self.config.protocol.tau + 1):  # a merge may let the next round open; the pace allows no more
            before = [(r.key, r.stage) for r in self.rounds]
            out += self._open_round(now)
            for round_ in list(self.rounds):
                out += self._drive(now, round_)
            if [(r.key, r.stage) for r in self.rounds] == before:
                break
        return out + self._end_when_done(now)

    def _watch_quorum(self) -> list[Effect]:
        ready, K = self.members.ready_count(), self.config.protocol.K
        below = ready < K
        self._had_quorum = self._had_quorum or not below
        begins = below and not self._below and self._had_quorum and not self.complete
        self._below = below
        return [Record("below-quorum", {"ready": ready, "quorum": K})] if begins else []

    def _due(self) -> int | None:
        """The fragment whose next round has the lowest number, of those with none in flight."""
        flying = {r.fragment for r in self.rounds}
        numbers = [
            (number_of(index, version + 1, len(self.fragments)), index)
            for index, version in enumerate(self.state.versions)
            if version < self.config.versions_total and index not in flying
        ]
        return min(numbers)[1] if numbers else None

    def _open_round(self, now: float) -> list[Effect]:
        self._pace_s = self.members.pace_s(now)
        if len(self.rounds) >= self.config.protocol.tau or now < self._started_at + self._pace_s:
            return []
        due = self._due()
        if due is None:
            return []
        number = number_of(due, self.state.versions[due] + 1, len(self.fragments))
        self._started_at = now
        self.rounds.append(Round(number, due, now))
        return [Record("round", self.rounds[-1].fields())]

    def _again(self, now: float, round_: Round) -> list[Effect]:
        round_.again(now)
        return [Record("round", round_.fields())]

    def _drive(self, now: float, round_: Round) -> list[Effect]:
        out: list[Effect] = []
        if round_.stage == "gathering":
            out += self._gather(now, round_)
        if round_.stage == "grace":
            out += self._grace(now, round_)
        if round_.stage == "pulling":
            out += self._collect(now, round_)
        return out

    def _gather(self, now: float, round_: Round) -> list[Effect]:
        eligible = self.members.eligible(round_.fragment)
        round_.below_quorum = round_.below_quorum or self._below
        if len(eligible) < self.config.protocol.K:
            return []
        round_.stage, round_.quorum_at = "grace", now
        if not round_.below_quorum:
            self._xi_quorum.add(now - round_.gathering_since)
        round_.pull_at = now + self._grace_s(now)
        return [Record("quorum", {**round_.fields(), "learners": [s.learner for s in eligible]})]

    def _grace_s(self, now: float) -> float:
        """`slack = tau xi_step - (xi_quorum + xi_sync)`, `0 <= grace <= gamma slack`, at most one inner step."""
        protocol, xi_step = self.config.protocol, self.members.xi_step(now)
        slack = protocol.tau * xi_step - (self._xi_quorum.value + self._xi_sync.value)
        return min(max(protocol.gamma * slack, 0.0), xi_step, self.config.timing.grace_s_max)

    def _grace(self, now: float, round_: Round) -> list[Effect]:
        """Pull when the window is over, or as soon as nobody is left to wait for."""
        eligible = self.members.eligible(round_.fragment)
        sessions = self.members.sessions.values()
        expected = [s for s in sessions if s.ready and not s.overdue and self.members.is_live(s, now)]
        if now < round_.pull_at and len(eligible) < len(expected):
            return []
        if len(eligible) < self.config.protocol.K:
            return self._again(now, round_)
        round_.stage, round_.pull_at, round_.grace_s = "pulling", now, now - round_.quorum_at
        pulls: list[Effect] = []
        capped = len(self._prompt(now, eligible)) >= self.config.protocol.K
        for session in eligible:
            session.pulls[round_.key] = now
            round_.waiting[session.learner] = (session.incarnation, now + self._answer_s(now, session, capped))
            pulls.append(Send(session.connection, Pull(round_.number, round_.fragment, round_.attempt)))
        return [Record("pull", {**round_.fields(), "learners": list(round_.waiting)}), *pulls]

    def _answer_s(self, now: float, session: Session, capped: bool) -> float:
        """[?] An answer may take tau steps, or three times what it usually takes this learner; where `capped`, no
        longer than H steps, so that a learner behind a slow link does not hold back a quorum that is prompt without
        it."""
        protocol, xi_step = self.config.protocol, self.members.xi_step(now)
        longest = protocol.H * xi_step
        usual = ANSWERS_WAITED * session.xi_answer.value if session.xi_answer.started else longest
        wanted = max(protocol.tau * xi_step, usual)
        return max(ANSWER_S_MIN, min(longest, wanted) if capped else wanted)

    def _prompt(self, now: float, sessions: Sequence[Session]) -> list[Session]:
        """Those that answer within H steps, as far as is known."""
        longest = max(ANSWER_S_MIN, self.config.protocol.H * self.members.xi_step(now))
        return [session for session in sessions if session.xi_answer.value <= longest]

    def _collect(self, now: float, round_: Round) -> list[Effect]:
        for learner, (incarnation, deadline) in list(round_.waiting.items()):
            session = self.members.sessions.get(learner)
            if session is None or session.incarnation != incarnation:
                del round_.waiting[learner]
            elif now >= deadline:
                del round_.waiting[learner]
                session.overdue.add(round_.key)
        if round_.waiting or self._needs_the_overdue(now, round_):
            return []
        out, standing = self._standing(now, round_)
        if len(standing) < self.config.protocol.K:
            return out + self._again(now, round_)
        return out + self._merge(now, round_, standing)

    def _needs_the_overdue(self, now: float, round_: Round) -> bool:
        """Whether only answers that are late already can make the quorum. Another attempt would make them void, and be
        late itself: with a round trip above H steps no attempt would ever come to its end."""
        K = self.config.protocol.K
        answered = sum(self._is_current(answer) for answer in round_.answers.values())
        overdue = sum(round_.key in session.overdue for session in self.members.sessions.values())
        if answered >= K or answered + overdue < K or now >= self._give_up_at(round_):
            return False
        return len(self._prompt(now, self.members.eligible(round_.fragment))) < K

    def _give_up_at(self, round_: Round) -> float:
        """When a learner that has said nothing since the pull would be closed for its silence."""
        return round_.pull_at + self.config.timing.idle_s

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
                out += self._reject_answer(now, round_, answer, "norm")
            else:
                standing.append(answer)
        return out, standing

    def _is_current(self, answer: Contribution) -> bool:
        session = self.members.sessions.get(answer.learner)
        return session is not None and session.incarnation == answer.incarnation and session.ready

    def _reject_answer(self, now: float, round_: Round, answer: Contribution, why: str) -> list[Effect]:
        session = self.members.sessions[answer.learner]
        session.c_steps[round_.fragment] = 0  # it must overwrite its copy before it is asked again
        push = Push(
            answer.incarnation, 0, round_.number, round_.fragment, round_.attempt, answer.base, answer.lo, answer.hi,
            answer.steps, answer.id, answer.digest,
        )  # fmt: skip
        return self._reject(now, session.connection, answer.learner, push, why)

    # ---- merge

    def _merge(self, now: float, round_: Round, standing: list[Contribution]) -> list[Effect]:
        index, state, protocol = round_.fragment, self.state, self.config.protocol
        before = digest_of(state.theta[index])
        with np.errstate(over="ignore"):  # looked for just below
            merged = merge(
                state.theta[index], state.momentum[index], standing, self.fragments[index].tensors,
                lr=protocol.outer_lr, mu=protocol.outer_momentum,
            )  # fmt: skip
        if not np.isfinite(length(merged.theta) + length(merged.momentum)):
            # Finite updates can still be too long for float32. Nothing is committed; their learners begin anew.
            bad = [effect for answer in standing for effect in self._reject_answer(now, round_, answer, "not-finite")]
            return bad + self._again(now, round_)
        state.theta[index], state.momentum[index] = merged.theta, merged.momentum
        state.versions[index] += 1
        version = state.versions[index]
        for contribution in standing:
            session = self.members.sessions[contribution.learner]
            session.merged_into[index], session.merged_hi[index] = version, contribution.hi
        self._xi_sync.add(now - round_.pull_at)
        self.rounds.remove(round_)
        record = merge_fields(round_, version, before, standing, merged)
        return [
            PersistMerge(index, version, merged.theta, merged.momentum, dict(state.cursors), record, tuple(standing)),
            Record("merge", record),
            Record("publish", publish_fields(record)),
            *self._broadcast(now, index),
        ]

    def _broadcast(self, now: float, index: int) -> list[Effect]:
        """To all who listen. A silent learner gets the newest version when it is heard again, not all in between."""
        return [
            self._send_fragment(now, session, index, "broadcast")
            for session in self.members.sessions.values()
            if not session.ready or self.members.is_live(session, now)
        ]

    # ---- end

    def _end_when_done(self, now: float) -> list[Effect]:
        out: list[Effect] = []
        sessions = self.members.sessions
        if not self.complete and min(self.state.versions) >= self.config.versions_total:
            self.complete = True
            self._leave_by = now + self.config.timing.leave_s
            self._someone_knows = bool(sessions)
            out += [Send(s.connection, Stop("complete")) for s in sessions.values()]
            out.append(Record("stop", {"reason": "complete"}))
        # A syncer restarted after the last merge has no sessions yet: it waits for learners to tell.
        if self.complete and ((self._someone_knows and not sessions) or now >= self._leave_by):
            self.finished = True
            out.append(Finish("complete"))
        return out


def merge_fields(
    round_: Round, version: int, before: str, standing: Sequence[Contribution], merged: Merged
) -> dict[str, Any]:
    """Fields of a merge's tape record."""
    parts = [
        {
            "learner": c.learner, "incarnation": c.incarnation, "id": c.id, "base": c.base, "lo": c.lo, "hi": c.hi,
            "steps": c.steps, "tokens": c.tokens, "weight": weight, "digest": c.digest,
            "cosine": round(cosine, 6), "norm_ratio": round(ratio, 6),
        }
        for c, weight, cosine, ratio in zip(standing, merged.weights, merged.cosines, merged.norm_ratios, strict=True)
    ]  # fmt: skip
    return {
        "round": round_.number, "fragment": round_.fragment, "version": version, "h_in": before,
        "h_out": digest_of(merged.theta), "momentum": digest_of(merged.momentum), "contributions": parts,
        "grace_s": round(round_.grace_s, 6),
    }  # fmt: skip


def publish_fields(merge_record: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the publish record that belongs to a merge record."""
    return {"fragment": merge_record["fragment"], "version": merge_record["version"], "digest": merge_record["h_out"]}
