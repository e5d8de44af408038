"""What travels between learner and syncer. Metadata only; parameters ride behind as the frame's raw payload.

learner ── Hello ──▶ syncer ── Welcome, Fragment x P (cause "join") ──▶ learner ── Ready ──▶ syncer

then, for ever:   learner ── Progress, after every step ──▶ syncer
                  learner ◀── Pull ── syncer
                  learner ── Push + payload ──▶ syncer
                  learner ◀── Fragment + payload (cause "broadcast") ── syncer
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(max_length=128)]
PerFragment = Annotated[list[Count], msgspec.Meta(max_length=4096)]
Cause = Literal["join", "broadcast", "reject"]


class Message(msgspec.Struct, frozen=True):
    """Base of all messages."""


class Hello(Message, frozen=True):
    """First message of a connection. `incarnation` is 0 for a process that never had one, else its last one.

    `process` names the operating-system process, so that the syncer can tell a reconnecting learner from a zombie which
    comes back after its successor has joined.
    """

    run: Name
    learner: Name
    process: Name
    incarnation: Count
    config: Name


class Welcome(Message, frozen=True):
    """The clock comes first: fragments older than `versions` are no valid state for this incarnation."""

    incarnation: Count
    versions: PerFragment
    cursor: Count


class Refused(Message, frozen=True):
    """The connection will never be accepted; the learner ends. `fenced`: a zombie, which ends without error."""

    why: str
    fenced: bool


class Ready(Message, frozen=True):
    """All fragments are adopted at or after the clock; from now on this incarnation takes part."""

    incarnation: Count
    versions: PerFragment


class Progress(Message, frozen=True):
    """The counters of one learner, sent after every step; a newer one replaces one still waiting to be sent."""

    incarnation: Count
    step: Count
    tokens: Count
    step_s: float
    c_steps: PerFragment
    c_tokens: PerFragment
    versions: PerFragment


class Pull(Message, frozen=True):
    round: Count
    fragment: Count
    attempt: Count


class Push(Message, frozen=True):
    """Answer to a pull; the payload is theta. Tokens (lo, hi] were processed since `base` was adopted."""

    incarnation: Count
    step: Count
    round: Count
    fragment: Count
    attempt: Count
    base: Count
    lo: Count
    hi: Count
    steps: Count
    id: Name
    digest: Name


class Fragment(Message, frozen=True):
    """Parameters of one fragment at one version. `overwrite`: take it even if the version is already held, since the
    learner's own copy was found bad."""

    fragment: Count
    version: Count
    digest: Name
    cause: Cause
    overwrite: bool = False


class Reject(Message, frozen=True):
    id: Name
    why: Name


class Ping(Message, frozen=True):
    """Sent by the network thread every second, whatever the training thread does."""


class Stop(Message, frozen=True):
    reason: str


TYPES: tuple[type[Message], ...] = (Hello, Welcome, Refused, Ready, Progress, Pull, Push, Fragment, Reject, Ping, Stop)
"""A message's number on the wire is its place here, from 1. Append only."""
