"""What goes into and comes out of the two state machines.

    event ──▶ machine.handle(now, event) ──▶ [effect, effect, ...]     carried out in order, by a shell or a test

`now` is seconds of a monotonic clock. A `connection` is a number that the shell gives to each TCP connection; it is
never used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.merge import Contribution
from trainer.messages import Message

# ---- events


@dataclass(frozen=True)
class Opened:
    """Learner only: its connection to the syncer stands."""

    connection: int


@dataclass(frozen=True)
class Received:
    connection: int
    message: Message
    payload: bytes = b""


@dataclass(frozen=True)
class Closed:
    """The connection is gone; `why` for the tape. `bad_frame` when its stream was cut or corrupt."""

    connection: int
    why: str
    bad_frame: bool = False


@dataclass(frozen=True)
class Stepped:
    """Learner only: one inner step is done, theta has been changed in place."""

    loss: float
    step_s: float
    blocked_s: float | None = None
    """Time of the step in which the training thread neither ran nor could have run; None where nobody measures it."""


@dataclass(frozen=True)
class Tick:
    """Time has passed; sent at the latest when the machine's `wake_at` says so."""


@dataclass(frozen=True)
class Terminate:
    """Someone asked this process to end (SIGTERM)."""

    reason: str


Event = Opened | Received | Closed | Stepped | Tick | Terminate

# ---- effects


@dataclass(frozen=True)
class Send:
    connection: int
    message: Message
    payload: bytes = b""


@dataclass(frozen=True)
class Close:
    """Close a connection after what was sent on it has left."""

    connection: int
    why: str


@dataclass(frozen=True)
class Record:
    """One record of the event tape."""

    kind: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class PersistMerge:
    """Make a merged fragment durable before any later effect is carried out. `contributions` are kept for replay."""

    fragment: int
    version: int
    theta: np.ndarray
    momentum: np.ndarray
    cursors: Mapping[str, int]
    record: Mapping[str, Any]
    contributions: tuple[Contribution, ...]


@dataclass(frozen=True)
class PersistMembers:
    """Make the incarnations handed out durable before any later effect is carried out."""

    incarnations: Mapping[str, int]
    processes: Mapping[str, str]
    cursors: Mapping[str, int]


@dataclass(frozen=True)
class ForgetMoments:
    """Learner only: the parameters were bad, so the optimiser's moments are; begin them anew."""


@dataclass(frozen=True)
class Finish:
    """The process has nothing left to do and exits. `error` is a reason to exit with 1 instead of 0."""

    reason: str
    error: bool = False


Effect = Send | Close | Record | PersistMerge | PersistMembers | ForgetMoments | Finish
