"""process.kill: a role dies at once, and comes back after a while as a new process."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from chaoskit.faults.base import Evidence, Fault, Landing, NotApplicableError, Process, Undoing, World
from chaoskit.plan import Setting

EXIT_DEADLINE_S = 5.0
"""A process with much memory touched takes up to 0.2 s to go; more than this is not a SIGKILL that worked."""
UP_DEADLINE_S = 60.0
"""Importing torch on a loaded machine takes 3 to 25 s."""


class ProcessKill(Fault):
    """SIGKILL to the role's whole process group: no handler runs, no buffer is flushed, its sockets close."""

    kind = "process.kill"
    acts_on = "role"
    stands_for = (
        "A process that dies without warning: out-of-memory kill, crash of the host, preemption without notice."
    )
    does_not_certify = (
        "The loss of a host: the kernel lives on, so peers see their connections close at once and files stay intact. "
        "It is not a lost GPU, and no half-written page."
    )
    settings = (
        Setting(
            name="restart-after",
            unit="duration",
            required=False,
            default=1.0,
            about="time from the kill to the start of the role's next process",
        ),
    )
    takes_hold = False
    downs_role = True

    @classmethod
    def hold_of(cls, hold_s: float | None, settings: Mapping[str, Any]) -> float:  # noqa: ARG003
        """The role is down for `restart-after` and for as long as its start takes."""
        return float(settings["restart_after_s"])

    async def apply(self, world: World) -> Evidence:
        victims = [_alive(world, role) for role in self.targets]
        self.victims = victims
        for victim in victims:
            victim.signal(signal.SIGKILL)
        return {"pids": [v.pid for v in victims], "start_times_ticks": [v.start_time for v in victims]}

    async def landed(self, world: World) -> Landing:
        ends = {}
        for victim in self.victims:
            end = await world.wait_exit(victim, EXIT_DEADLINE_S)
            ends[victim.role] = end
        evidence = {
            f"{role}_ended_by": "still alive"
            if end is None
            else f"signal {end.signal}"
            if end.signal
            else f"code {end.code}"
            for role, end in ends.items()
        }
        landed = all(end is not None and end.signal == signal.SIGKILL for end in ends.values())
        return Landing(landed, evidence | {"gone_pids": [v.pid for v in self.victims if v.state() in (None, "Z")]})

    async def undo(self, world: World) -> Undoing:
        if world.ending():
            gone = all(victim.state() in (None, "Z") for victim in self.victims)
            return Undoing(gone, {"restarted": False, "why": "the run is ending; a dead role is an undone state"})
        evidence: dict[str, Any] = {}
        clean = True
        for role in self.targets:
            process = await world.bring_up(role, UP_DEADLINE_S)
            if process is None and world.ending():
                evidence[f"{role}_restarted"] = "the run ended meanwhile"
                continue
            clean = clean and process is not None
            evidence[f"{role}_new_pid"] = process.pid if process else f"not up within {UP_DEADLINE_S:g} s"
        return Undoing(clean, evidence)


def _alive(world: World, role: str) -> Process:
    process = world.process(role)
    if process is None:
        raise NotApplicableError(f"{role} is not alive, so it cannot be killed")
    return process
