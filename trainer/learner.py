"""The learner as a state machine: no clock, socket, thread or random generator inside.

                   Opened            Welcome                 all fragments at or after the clock
    detached ────────────▶ greeting ─────────▶ joining ──────────────────────────────────────────▶ ready
        ▲                                         │ more than H syncer steps: start again            │
        └──────────── Closed (any state) ─────────┴──────────────────────────────────────────────────┘

The training loop steps on `theta` in place and then hands in `Stepped`; whatever has arrived meanwhile is applied
there, at the step boundary, never inside a step. A process that has parameters keeps stepping in every state, so the
network can never stall it; steps outside `ready` belong to no incarnation and are never counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trainer.config import Config
from trainer.effects import (
    Close,
    Closed,
    Effect,
    Event,
    Finish,
    ForgetMoments,
    Opened,
    Received,
    Record,
    Send,
    Stepped,
    Terminate,
)
from trainer.fragments import Fragment, digest_of, total_size
from trainer.messages import Fragment as FragmentMessage
from trainer.messages import Hello, Ping, Progress, Pull, Push, Ready, Refused, Reject, Stop, Welcome


@dataclass
class Counters:
    """What this incarnation knows of one fragment. Tokens (lo, now] are not yet in any adopted version."""

    version: int = 0
    steps: int = 0
    lo: int = 0
    pushes: int = 0


@dataclass
class Incarnation:
    """One accepted connection."""

    number: int
    clock: list[int]
    cursor: int
    tokens: int = 0
    counters: list[Counters] = field(default_factory=list)


class Learner:
    """One learner's side of the protocol.

    Args:
        config: what this process trains and under which protocol.
        fragments: layout of the flat vector.
        name: role name, "learner-2".
        run: name of the run; the syncer refuses learners of another run.
        process: a text that no other process of this learner has.

    `theta` is the flat float32 vector of shape (total size,), changed in place by the training loop and by adoption.
    It has no meaning before `has_state` is True. `cursor` is the next step of this learner's data stream.
    """

    def __init__(self, config: Config, fragments: Sequence[Fragment], name: str, run: str, process: str) -> None:
        self.config = config
        self.fragments = tuple(fragments)
        self.name = name
        self.run = run
        self.process = process
        self.theta = np.zeros(total_size(fragments), dtype=np.float32)
        self.has_state = False
        self.cursor = 0
        self.state = "detached"
        self.stopped = False
        self._connection = 0
        self._incarnation: Incarnation | None = None
        self._last_incarnation = 0
        self._arrived: dict[int, tuple[FragmentMessage, bytes]] = {}
        self._inbox: dict[tuple[type, int], tuple[FragmentMessage | Pull, bytes]] = {}

    # ---- events

    def handle(self, now: float, event: Event) -> list[Effect]:
        """Take one event, give the effects to carry out in order. A learner has no deadlines: `now` is not used."""
        del now
        if self.stopped:
            return []
        match event:
            case Opened(connection):
                return self._greet(connection)
            case Received(connection, message, payload) if connection == self._connection:
                return self._received(message, payload)
            case Closed(connection, why, bad_frame) if connection == self._connection:
                return self._lost(why, bad_frame)
            case Stepped():
                return self._stepped(event)
            case Terminate(reason):
                return self._stop(reason)
        return []

    def _greet(self, connection: int) -> list[Effect]:
        self._connection = connection
        self.state = "greeting"
        hello = Hello(self.run, self.name, self.process, self._last_incarnation, self.config.digest())
        return [Send(connection, hello)]

    def _received(self, message: object, payload: bytes) -> list[Effect]:
        match message:
            case Welcome() if self.state == "greeting":
                return self._welcomed(message)
            case FragmentMessage() | Pull():
                return self._fragment_or_pull(message, payload)
            case Refused(why, fenced):
                self.stopped = True
                return [Record("stop", {"reason": f"refused: {why}"}), Finish(f"refused: {why}", error=not fenced)]
            case Stop(reason):
                return self._stop(reason)
            case Reject() | Ping():
                return []  # the syncer records rejections, and sends the current fragment behind each
        return self._drop(f"unexpected {type(message).__name__} while {self.state}")

    def _lost(self, why: str, bad_frame: bool) -> list[Effect]:
        out: list[Effect] = []
        if bad_frame:
            out.append(Record("frame-error", {"why": why}))
        number = self._incarnation.number if self._incarnation else 0
        out.append(Record("disconnect", {"incarnation": number, "why": why}))
        self._detach()
        return out

    def _stop(self, reason: str) -> list[Effect]:
        self.stopped = True
        out: list[Effect] = [Record("stop", {"reason": reason})]
        if self._connection:
            out.append(Close(self._connection, reason))
        return [*out, Finish(reason)]

    # ---- joining

    def _welcomed(self, welcome: Welcome) -> list[Effect]:
        if len(welcome.versions) != len(self.fragments) or welcome.incarnation <= self._last_incarnation:
            return self._drop("a Welcome that does not fit this learner")
        self.state = "joining"
        self._last_incarnation = welcome.incarnation
        self._incarnation = Incarnation(welcome.incarnation, list(welcome.versions), welcome.cursor)
        fields = {"incarnation": welcome.incarnation, "versions": welcome.versions, "cursor": welcome.cursor}
        return [Record("welcome", fields)]

    def _fragment_or_pull(self, message: FragmentMessage | Pull, payload: bytes) -> list[Effect]:
        if not 0 <= message.fragment < len(self.fragments):
            return self._drop(f"fragment {message.fragment} does not exist", bad_frame=True)
        if isinstance(message, FragmentMessage):
            if not self._intact(message, payload):
                return self._drop(f"fragment {message.fragment} does not match its digest", bad_frame=True)
            if self.state == "joining":
                return self._collect(message, payload)
        if self.state != "ready":
            return self._drop(f"unexpected {type(message).__name__} while {self.state}")
        # Of each fragment only the newest pull and the newest parameters wait, in order of arrival: after a pause there
        # may be hundreds, and the older ones are about rounds that are over.
        self._inbox.pop((type(message), message.fragment), None)
        self._inbox[type(message), message.fragment] = (message, payload)
        return []

    def _intact(self, message: FragmentMessage, payload: bytes) -> bool:
        expected = self.fragments[message.fragment].payload_bytes
        return len(payload) == expected and digest_of(np.frombuffer(payload, dtype="<f4")) == message.digest

    def _collect(self, message: FragmentMessage, payload: bytes) -> list[Effect]:
        incarnation = self._live()
        held = self._arrived.get(message.fragment)
        if held is None or held[0].version < message.version:
            self._arrived[message.fragment] = (message, payload)
        # [?] "More than H syncer steps": a syncer step is P / H merges, so H steps are P merges.
        merges = sum(held[0].version - incarnation.clock[fragment] for fragment, held in self._arrived.items())
        if merges > len(self.fragments):
            why = f"{merges} merges since the clock, at most {len(self.fragments)}"
            return [Record("rejoin-restart", {"why": why}), *self._drop("rejoin took more than H steps")]
        # A process without parameters has no step boundary to wait for.
        return [] if self.has_state else self._adopt_all_when_complete()

    def _adopt_all_when_complete(self) -> list[Effect]:
        """Ready when every fragment is there at or after the clock: only then may the state be trained on."""
        incarnation = self._live()
        complete = all(
            fragment.index in self._arrived
            and self._arrived[fragment.index][0].version >= incarnation.clock[fragment.index]
            for fragment in self.fragments
        )
        if not complete:
            return []
        out: list[Effect] = []
        # [?] Inner optimiser: kept by a process that lives and is sane, else fresh. The alternative: from a donor.
        kept = self.has_state and self._is_finite()
        if self.has_state and not kept:
            out.append(ForgetMoments())
        incarnation.counters = [Counters() for _ in self.fragments]
        for fragment in self.fragments:
            out.append(self._adopt(*self._arrived[fragment.index], cause="join"))
        self._arrived.clear()
        # [?] Data position: the learner's own where it is further than the syncer knows; no sample counts twice.
        self.cursor = max(self.cursor, incarnation.cursor)
        optimiser = "kept" if kept else "fresh"
        self.has_state = True
        self.state = "ready"
        versions = [counters.version for counters in incarnation.counters]
        out.append(Record("ready", {"incarnation": incarnation.number, "versions": versions, "optimiser": optimiser}))
        out.append(Send(self._connection, Ready(incarnation.number, versions)))
        return out

    def _adopt(self, message: FragmentMessage, payload: bytes, cause: str) -> Record:
        """Overwrite (alpha = 0) and reset the counters of this fragment only; AdamW's moments stay as they are
        unless the copy was bad."""
        incarnation = self._live()
        counters = incarnation.counters[message.fragment]
        self.theta[self.fragments[message.fragment].slice] = np.frombuffer(payload, dtype="<f4")
        fields = {
            "incarnation": incarnation.number, "fragment": message.fragment, "version": message.version,
            "digest": message.digest, "lo": counters.lo, "at": incarnation.tokens, "cause": cause,
        }  # fmt: skip
        if message.overwrite:
            fields["optimiser"] = "fresh"
        counters.version, counters.steps, counters.lo = message.version, 0, incarnation.tokens
        return Record("adopt", fields)

    # ---- training

    def _stepped(self, stepped: Stepped) -> list[Effect]:
        self.cursor += 1
        told: dict[str, object] = {"loss": round(stepped.loss, 5), "step_s": round(stepped.step_s, 6)}
        if stepped.blocked_s is not None:
            told["blocked_s"] = round(stepped.blocked_s, 6)
        if self.state != "ready":
            out: list[Effect] = [Record("detached-step", {"step": self.cursor, **told})]
            return out + (self._adopt_all_when_complete() if self.state == "joining" else [])
        incarnation = self._live()
        incarnation.tokens += self.config.tokens_per_step
        for counters in incarnation.counters:
            counters.steps += 1
        out = [
            Record("step", {
                "incarnation": incarnation.number, "step": self.cursor, "tokens": incarnation.tokens,
                **told,
            }),
            Send(self._connection, self._progress(incarnation, stepped.step_s)),
        ]  # fmt: skip
        waiting, self._inbox = self._inbox, {}
        for key, (message, payload) in waiting.items():
            if not isinstance(message, Pull):
                out += self._take(message, payload)
                if message.overwrite:
                    out += self._repaired()
                if self.state != "ready":
                    return out
            elif incarnation.counters[message.fragment].steps == 0:
                self._inbox[key] = (message, payload)  # overwritten just now: there is work to give one step later
            else:
                out += self._answer(message)
        return out

    def _progress(self, incarnation: Incarnation, step_s: float) -> Progress:
        counters = incarnation.counters
        return Progress(
            incarnation=incarnation.number, step=self.cursor, tokens=incarnation.tokens, step_s=step_s,
            c_steps=[c.steps for c in counters], c_tokens=[incarnation.tokens - c.lo for c in counters],
            versions=[c.version for c in counters],
        )  # fmt: skip

    def _answer(self, pull: Pull) -> list[Effect]:
        incarnation = self._live()
        counters = incarnation.counters[pull.fragment]
        counters.pushes += 1
        theta = self.theta[self.fragments[pull.fragment].slice].astype("<f4")
        push = Push(
            incarnation=incarnation.number, step=self.cursor,
            round=pull.round, fragment=pull.fragment, attempt=pull.attempt,
            base=counters.version, lo=counters.lo, hi=incarnation.tokens, steps=counters.steps, digest=digest_of(theta),
            id=f"{self.name}.{incarnation.number}.{pull.fragment}.{counters.pushes}",
        )  # fmt: skip
        fields = {
            "incarnation": push.incarnation, "fragment": push.fragment, "round": push.round, "attempt": push.attempt,
            "base": push.base, "lo": push.lo, "hi": push.hi, "steps": push.steps, "id": push.id, "digest": push.digest,
        }  # fmt: skip
        return [Record("send", fields), Send(self._connection, push, theta.tobytes())]

    def _take(self, message: FragmentMessage, payload: bytes) -> list[Effect]:
        version = self._live().counters[message.fragment].version
        newer = message.version > version
        again = message.overwrite and message.version == version
        return [self._adopt(message, payload, message.cause)] if newer or again else []

    def _repaired(self) -> list[Effect]:
        """After an `overwrite`: what made this learner's copy bad is in the moments too, and mostly in the other
        fragments. One by one they would infect each other again, so that joining anew is the cure then."""
        if self._is_finite():
            return [ForgetMoments()]
        return self._drop("its parameters are not finite")

    def _is_finite(self) -> bool:
        return bool(np.isfinite(self.theta).all())

    # ---- connection

    def _drop(self, why: str, bad_frame: bool = False) -> list[Effect]:
        """Close this connection; the shell opens the next, which is a new incarnation."""
        close = Close(self._connection, why)
        return [*self._lost(why, bad_frame), close]

    def _detach(self) -> None:
        self.state = "detached"
        self._connection = 0
        self._incarnation = None
        self._arrived.clear()
        self._inbox.clear()

    def _live(self) -> Incarnation:
        assert self._incarnation is not None, f"no incarnation while {self.state}"
        return self._incarnation
