"""One injection from intent to verified undoing, each as a task of its own.

The order is the guarantee: intent on disk, then apply, then the proof that it landed, then the hold, then undo and the
proof of that. Undoing runs on its own clock, is tried again when it could not be verified, and is never skipped because
something before it raised.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from chaoskit.daemon.ledger import Ledger
from chaoskit.faults import FAULTS, Fault, NotApplicableError, Undoing, World
from chaoskit.journal import AppendLog
from chaoskit.schedule import Injection

LEASE_SLACK_S = 150.0
"""What an undo may take beyond the hold before the guardian steps in: a role may have to start twice."""
UNDO_TRIES_MAX = 2


class Injector:
    """Runs injections against a world and keeps ledger and journal of them."""

    def __init__(self, world: World, ledger: Ledger, journal: AppendLog) -> None:
        self._world = world
        self._ledger = ledger
        self._journal = journal
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._faults: dict[str, Fault] = {}
        self._undo_now = asyncio.Event()
        self.started: set[str] = set()
        self.ended: set[str] = set()
        self.crashes: list[str] = []
        """What raised inside a fault. An injector that crashes poisons the run."""
        self.residue: list[str] = []

    def start(self, injection: Injection, due_t: float) -> None:
        """Begin an injection now."""
        self.started.add(injection.id)
        self._tasks[injection.id] = asyncio.create_task(self._run(injection, due_t), name=injection.id)

    def skip(self, injection: Injection, why: str) -> None:
        """Say that an injection will never happen, and why."""
        self.started.add(injection.id)
        self.ended.add(injection.id)
        self._journal.append(
            "skipped", injection=injection.id, name=injection.fault.name, fault=injection.fault.kind, why=why
        )

    @property
    def busy(self) -> bool:
        """Whether any injection is not undone yet."""
        return any(not task.done() for task in self._tasks.values())

    def touching(self, role: str) -> str | None:
        """The active injection that acts on this role as a process, or None."""
        for name, fault in self._faults.items():
            if fault.acts_on == "role" and role in fault.targets:
                return name
        return None

    def down(self) -> frozenset[str]:
        """Roles that an active injection holds down or paused."""
        return frozenset(role for fault in self._faults.values() if fault.downs_role for role in fault.targets)

    def active(self) -> list[str]:
        """Ids of the injections that act now."""
        return list(self._faults)

    def undo_soon(self) -> None:
        """End every hold now; `busy` tells when all is undone."""
        self._undo_now.set()

    async def undo_all(self) -> None:
        """Undo everything now and wait until it is verified or known to be a residue."""
        self.undo_soon()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def _run(self, injection: Injection, due_t: float) -> None:
        kind = FAULTS[injection.fault.kind]
        settings = dict(injection.fault.settings)
        hold_s = kind.hold_of(injection.hold_s, settings)
        fault = kind(injection.id, injection.targets, settings, hold_s)
        begun = time.monotonic()
        self._ledger.write("intent", injection=injection.id, fault=kind.kind, until_t=begun + hold_s + LEASE_SLACK_S)
        self._journal.append(
            "intent",
            injection=injection.id,
            fault=kind.kind,
            name=injection.fault.name,
            targets=list(injection.targets),
            settings=settings | {"hold_s": hold_s},
            trigger=injection.trigger_text,
            due_t=due_t,
        )
        self._faults[injection.id] = fault
        try:
            await self._harm(injection, fault, begun + hold_s)
        except NotApplicableError as error:
            self._journal.append(
                "skipped", injection=injection.id, name=injection.fault.name, fault=kind.kind, why=str(error)
            )
        except Exception as error:  # noqa: BLE001 - a fault is foreign code: whatever it raises poisons the run, and is undone
            self.crashes.append(f"{injection.id}: {type(error).__name__}: {error}")
        finally:
            await self._undo(injection.id, fault)
            del self._faults[injection.id]
            self.ended.add(injection.id)

    async def _harm(self, injection: Injection, fault: Fault, until_t: float) -> None:
        evidence = await fault.apply(self._world)
        self._journal.append("applied", injection=injection.id, targets=list(fault.targets), evidence=dict(evidence))
        landing = await fault.landed(self._world)
        self._journal.append("landed", injection=injection.id, landed=landing.landed, evidence=dict(landing.evidence))
        try:
            async with asyncio.timeout(max(0.0, until_t - time.monotonic())):
                await self._undo_now.wait()
        except TimeoutError:
            return

    async def _undo(self, injection: str, fault: Fault) -> None:
        self._journal.append("undo", injection=injection)
        undoing = Undoing(False, {})
        for _ in range(UNDO_TRIES_MAX):
            undoing = await self._undo_once(injection, fault)
            if undoing.clean:
                break
        evidence: dict[str, Any] = dict(undoing.evidence)
        self._journal.append("undone", injection=injection, clean=undoing.clean, evidence=evidence)
        self._ledger.write("undone", injection=injection, clean=undoing.clean)
        if not undoing.clean:
            self.residue.append(f"{injection}: the undo could not be verified: {evidence}")

    async def _undo_once(self, injection: str, fault: Fault) -> Undoing:
        try:
            return await fault.undo(self._world)
        except Exception as error:  # noqa: BLE001 - as above; it is tried once more and then reported as a residue
            text = f"{type(error).__name__}: {error}"
            self.crashes.append(f"{injection}: undo: {text}")
            return Undoing(False, {"raised": text})
