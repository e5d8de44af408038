"""process.pause: a role stands still for a while and then goes on as if nothing had happened."""

from __future__ import annotations

import signal
from typing import Any

from chaoskit.faults.base import Evidence, Fault, Landing, NotApplicableError, Process, Undoing, World

STOP_DEADLINE_S = 2.0
"""A SIGSTOP takes effect in 2.5 ms, 8 ms at p99; a process in uninterruptible sleep may take longer."""
CONTINUE_DEADLINE_S = 2.0


class ProcessPause(Fault):
    """SIGSTOP to the role's process group, SIGCONT at the end."""

    kind = "process.pause"
    acts_on = "role"
    stands_for = (
        "A process that hangs and recovers: a long garbage collection, a stuck driver call, a frozen virtual machine."
    )
    does_not_certify = (
        "A hang within the kernel or on a device: the sockets stay open and the kernel still acknowledges bytes, so "
        "peers see silence and not an error."
    )
    downs_role = True

    async def apply(self, world: World) -> Evidence:
        self.paused: list[Process] = []
        processes = [world.process(role) for role in self.targets]
        missing = [role for role, process in zip(self.targets, processes, strict=True) if process is None]
        if missing:
            raise NotApplicableError(f"{', '.join(missing)} is not alive, so it cannot be paused")
        for process in processes:
            assert process is not None
            self.paused.append(process)
            process.signal(signal.SIGSTOP)
        return {"pids": [p.pid for p in self.paused], "start_times_ticks": [p.start_time for p in self.paused]}

    async def landed(self, world: World) -> Landing:
        evidence: dict[str, Any] = {}
        landed = True
        for process in self.paused:
            waited_s = await world.wait_state(process, "T", absent=False, deadline_s=STOP_DEADLINE_S)
            landed = landed and waited_s is not None
            evidence[f"{process.role}_stopped_after_ms"] = None if waited_s is None else round(waited_s * 1e3, 2)
        return Landing(landed, evidence)

    async def undo(self, world: World) -> Undoing:
        evidence: dict[str, Any] = {}
        clean = True
        for process in getattr(self, "paused", []):
            if not process.signal(signal.SIGCONT):
                evidence[process.role] = "dead, which is an undone state"
                continue
            waited_s = await world.wait_state(process, "T", absent=True, deadline_s=CONTINUE_DEADLINE_S)
            clean = clean and waited_s is not None
            evidence[f"{process.role}_state"] = process.state()
        return Undoing(clean, evidence)
