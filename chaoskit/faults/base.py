"""What a fault is: one kind of harm, its undoing, and the proof of both.

    intent ──▶ apply ──▶ landed? ──▶ (hold) ──▶ undo ──▶ clean?
       │                    │                     │
    synced before        measured, never       its own clock, idempotent,
    any side effect      assumed               never waits on the data plane

Every fault file has the same order: what real failure it stands for and what it does not certify, its settings, apply,
landed, undo. A fault acts on the world only through `World`; what it needs for its undo it keeps by role, a pid only
together with its start time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from chaoskit.plan import KindSpec, Setting

Evidence = Mapping[str, Any]
"""Measured facts, JSON-able, units in the key names (`gone_after_ms`)."""


@dataclass(frozen=True)
class Landing:
    """Whether the harm was measured to be there."""

    landed: bool
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True)
class Undoing:
    """Whether the harm was measured to be gone. "Not found" is not clean unless the fault says why."""

    clean: bool
    evidence: Evidence = field(default_factory=dict)


class NotApplicableError(Exception):
    """The fault cannot be applied now (its target is not alive): nothing was done, the injection is skipped."""


@dataclass(frozen=True)
class Exit:
    """How a process ended: an exit code, or the number of the signal that killed it."""

    code: int | None
    signal: int | None


class Process(Protocol):
    """One process of a role, held by pid and start time."""

    @property
    def role(self) -> str:
        """The role's name."""

    @property
    def pid(self) -> int:
        """Its pid; only together with its start time does it name a process."""

    @property
    def start_time(self) -> int:
        """Clock ticks since boot, field 22 of /proc/PID/stat: a reused pid has another."""

    def state(self) -> str | None:
        """The letter of /proc/PID/stat (R, S, D, T, Z ...), or None once the process is gone."""

    def signal(self, number: int) -> bool:
        """Send a signal to the process and its group; False when it was gone already."""


@dataclass(frozen=True)
class LinkHits:
    """What the proxy measured of one injection on one direction of one link."""

    present: bool
    """Whether the proxy has the injection in the direction's snapshot now."""
    bytes_hit: int
    delay_median_s: float
    """Of the chunks that it let go so far."""
    delay_total_s: float
    held_bytes: int
    """Bytes the direction holds now, whatever the reason."""


class World(Protocol):
    """What a fault may ask of the world it acts in. Real processes and virtual time implement the same."""

    def ending(self) -> bool:
        """True once the run is being torn down: a killed role need not come back just to be stopped."""

    def process(self, role: str) -> Process | None:
        """The live process of a role, or None."""

    async def wait_exit(self, process: Process, deadline_s: float) -> Exit | None:
        """How the process ended, or None when it has not by the deadline."""

    async def bring_up(self, role: str, deadline_s: float) -> Process | None:
        """Start the role if it is down and wait until it says it is up; None when it is not by the deadline."""

    async def wait_state(self, process: Process, wanted: str, *, absent: bool, deadline_s: float) -> float | None:
        """Seconds until the process shows (or, with `absent`, no longer shows) the state; None at the deadline."""

    async def impose(self, direction: str, injection: str, settings: Mapping[str, Any]) -> None:
        """Add one injection to the snapshot of a link's direction; effective for the next byte."""

    async def lift(self, direction: str, injection: str) -> None:
        """Take it out again. Lifting what is not there is fine."""

    async def hits(self, directions: Sequence[str], injection: str) -> dict[str, LinkHits]:
        """What the proxy measured of it so far, by direction."""

    async def wait_hits(
        self,
        directions: Sequence[str],
        injection: str,
        enough: Callable[[Mapping[str, LinkHits]], bool],
        deadline_s: float,
    ) -> dict[str, LinkHits]:
        """The hits as soon as they are enough, else what there is at the deadline or once the run is ending."""


class Fault(ABC):
    """One injection of one kind, from its intent to its verified undoing."""

    kind: ClassVar[str]
    acts_on: ClassVar[Literal["role", "link"]]
    stands_for: ClassVar[str]
    does_not_certify: ClassVar[str]
    settings: ClassVar[tuple[Setting, ...]] = ()
    takes_hold: ClassVar[bool] = True
    """Whether the plan gives the duration by `for`; a kill, for one, ends by its own `restart-after`."""
    downs_role: ClassVar[bool] = False
    """Whether its targets count as down for the plan's limits."""

    def __init__(self, injection: str, targets: Sequence[str], settings: Mapping[str, Any], hold_s: float) -> None:
        self.injection = injection
        self.targets = tuple(targets)
        self.values = dict(settings)
        self.hold_s = hold_s

    @classmethod
    def hold_of(cls, hold_s: float | None, settings: Mapping[str, Any]) -> float:  # noqa: ARG003
        """Seconds from apply to undo."""
        assert hold_s is not None, f"{cls.kind} needs `for`; the plan reader lets none pass without"
        return hold_s

    @classmethod
    def spec(cls) -> KindSpec:
        """What the plan reader must know of this kind."""
        return KindSpec(
            kind=cls.kind,
            acts_on=cls.acts_on,
            settings=cls.settings,
            needs_hold=cls.takes_hold,
            about=cls.stands_for,
            downs_role=cls.downs_role,
        )

    @abstractmethod
    async def apply(self, world: World) -> Evidence:
        """Do the harm. Raises NotApplicableError, having done nothing, when it cannot be done."""

    @abstractmethod
    async def landed(self, world: World) -> Landing:
        """Measure that the harm is there."""

    @abstractmethod
    async def undo(self, world: World) -> Undoing:
        """Take the harm away and measure that it is gone. May be called again, also after a half-done apply."""
