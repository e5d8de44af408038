"""The daemon: starts the target, waits for the steady state, injects by schedule, heals, and stops everything.

    preflight ─▶ steady ─▶ chaos ─▶ heal ─▶ stop
        │           │         │        │
        └───────────┴─────────┴────────┴──▶ whatever ends a phase early also ends in undo-all and stop

It is started by the guardian (`python -m chaoskit.daemon.core RUN --life-fd N --heartbeat-fd N --guardian-fd N`), owns
every role and the proxy, and writes journal and ledger. It decides nothing: what is due comes from `schedule`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

import chaoskit
from chaoskit.daemon.control import ControlServer, Handler
from chaoskit.daemon.injector import Injector
from chaoskit.daemon.ledger import Ledger
from chaoskit.daemon.spec import RunSpec, read_spec
from chaoskit.errors import ChaoskitError, PlanError
from chaoskit.faults import Exit, kind_specs
from chaoskit.journal import FORMAT, AppendLog
from chaoskit.plan import Plan, Target, read_plan, read_target
from chaoskit.schedule import Injection, Moment, allowed, due, injections
from chaoskit.world import RealWorld
from chaoskit.world.process import RoleProcess, process_stat

TICK_S = 0.005
HEARTBEAT_INTERVAL_S = 0.25
PROXY_CHECK_INTERVAL_S = 0.1
GATE_DEADLINE_S = 90.0
"""How long the target may take until every role is up and the steady state has held."""
TARGET_END_DEADLINE_S = 20.0
"""How long the other roles may take to end after the role that completes the run has ended."""


class RunEndedError(Exception):
    """The run ends now, before its plan is through. `outcome` is what the journal's `end` record says."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome
        self.why = why


class Daemon:
    """One run. `await Daemon(...).run()` returns once everything is undone and stopped."""

    def __init__(self, run_dir: Path, plan: Plan, target: Target, spec: RunSpec, guardian_pid: int) -> None:
        self._run_dir = run_dir
        self._plan = plan
        self._target = target
        self._spec = spec
        self._journal = AppendLog(run_dir / "journal.jsonl")
        self._ledger = Ledger(run_dir)
        self._world = RealWorld(target, run_dir, spec.seed, self._note, self._role_exited)
        self._injector = Injector(self._world, self._ledger, self._journal)
        self._injections = injections(plan) if spec.with_faults else ()
        self._phase = ""
        self._round = 0
        self._guardian_pid = guardian_pid
        self._end: RunEndedError | None = None
        self._deadline = time.monotonic() + plan.run.deadline_s
        self._proxy_checked_t = 0.0

    # ── the five phases ──────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Make the run. Raises nothing: whatever happens stands in the journal's `end` record."""
        outcome, why = "internal", "the daemon ended in a way nobody foresaw"
        control = ControlServer(self._run_dir, self._handlers())
        try:
            self._write_opening()
            await control.open()
            self._enter("preflight")
            await self._world.open()
            await self._steady()
            await self._chaos()
            await self._heal()
            outcome, why = "finished", "the target completed its run"
        except RunEndedError as end:
            outcome, why = end.outcome, end.why
        except ChaoskitError as error:
            outcome, why = "inconclusive" if error.exit_code == 2 else "internal", str(error)
        except Exception as error:  # noqa: BLE001 - the daemon's last line of defence: said in the journal, then undone
            outcome, why = "internal", f"{type(error).__name__}: {error}"
        finally:
            residue = await self._tear_down()
            await control.close()
            if self._injector.crashes and outcome == "finished":
                outcome, why = "internal", f"a fault raised: {self._injector.crashes[0]}"
            self._journal.append("end", outcome=outcome, why=why, residue=residue, crashes=self._injector.crashes)
            self._ledger.write("closed", residue=residue)

    async def _steady(self) -> None:
        self._enter("steady")
        gate_deadline = time.monotonic() + GATE_DEADLINE_S
        steady_since: float | None = None
        while steady_since is None or time.monotonic() < steady_since + self._plan.run.steady_s:
            await self._tick()
            gone = [name for name in self._target.roles_by_name if self._world.exit_of(name) is not None]
            missing = [name for name in self._target.roles_by_name if not self._world.is_up(name)]
            if gone:
                why = f"{', '.join(gone)} ended by itself before the steady state was reached"
                raise RunEndedError("inconclusive", f"{why}{self._never_ready()}; see {self._run_dir / 'logs'}")
            if missing:
                steady_since = None
                if time.monotonic() > gate_deadline:
                    raise RunEndedError(
                        "inconclusive",
                        f"the steady state was not reached within {GATE_DEADLINE_S:g} s: {', '.join(missing)} not up"
                        f"{self._never_ready()}; see {self._run_dir / 'logs'}",
                    )
            elif steady_since is None:
                steady_since = time.monotonic()

    async def _chaos(self) -> None:
        self._enter("chaos")
        begun = time.monotonic()
        while not self._target_done():
            moment = Moment(
                elapsed_s=time.monotonic() - begun,
                round=self._round,
                started=frozenset(self._injector.started),
            )
            for injection in due(self._plan, moment) if self._injections else ():
                self._begin(injection)
            # A control run has nothing to wait for here but its target's end, and no heal phase to be judged.
            if self._injections and len(self._injector.ended) == len(self._injections):
                return
            await self._tick()
        # A role that is down need not come back to a target that has ended.
        self._world.begin_ending()
        for injection in self._injections:
            if injection.id not in self._injector.started:
                self._injector.skip(
                    injection, f"the target ended before {injection.trigger_text} came (last round: {self._round})"
                )

    def _begin(self, injection: Injection) -> None:
        refusal = self._overlap(injection) or allowed(self._plan, injection, self._injector.down())
        if refusal:
            self._injector.skip(injection, refusal)
        else:
            self._injector.start(injection, time.monotonic())

    def _overlap(self, injection: Injection) -> str | None:
        """Why a second fault on a role would prove nothing: the end of one would undo the other."""
        if injection.fault.acts_on != "role":
            return None
        held = {role: name for role in injection.targets if (name := self._injector.touching(role))}
        return "; ".join(f"{role} is still under {name}" for role, name in held.items()) or None

    async def _heal(self) -> None:
        self._enter("heal")
        self._injector.undo_soon()
        deadline = time.monotonic() + self._plan.run.heal_s
        while self._injector.busy or not self._target_done():
            await self._tick()
            if time.monotonic() > deadline:
                raise RunEndedError(
                    "deadline",
                    f"the target did not complete within {self._plan.run.heal_s:g} s after everything was undone",
                )
        await self._wait_for_the_others()

    async def _wait_for_the_others(self) -> None:
        deadline = time.monotonic() + TARGET_END_DEADLINE_S
        while any(self._world.exit_of(name) is None for name in self._target.roles_by_name):
            await self._tick()
            if time.monotonic() > deadline:
                late = [name for name in self._target.roles_by_name if self._world.exit_of(name) is None]
                raise RunEndedError(
                    "finished",
                    f"complete, but {', '.join(late)} had to be stopped {TARGET_END_DEADLINE_S:g} s later",
                )

    async def _tear_down(self) -> list[str]:
        """Undo and stop everything; returns what could not be proved clean. A step runs whatever the one before did."""
        self._enter("stop")
        self._world.begin_ending()
        residue: list[str] = []
        try:
            await self._injector.undo_all()
        except Exception as error:  # noqa: BLE001 - tearing down goes on; what failed is said
            residue.append(f"undoing: {type(error).__name__}: {error}")
        # Counters are evidence and not an undo: where the proxy is gone there are none, and nothing is left either.
        with contextlib.suppress(ChaoskitError):
            await self._write_link_stats()
        try:
            residue += await self._world.close()
        except Exception as error:  # noqa: BLE001 - as above
            residue.append(f"stopping the target: {type(error).__name__}: {error}")
        return residue + self._injector.residue

    async def _write_link_stats(self) -> None:
        self._journal.append("links", stats=await self._world.link_stats())

    def _never_ready(self) -> str:
        """Which roles never wrote the record that means "up": a misspelt `ready` of the target file looks like this."""
        kinds = {
            role.spec.ready: role.spec.name
            for name, role in self._target.roles_by_name.items()
            if not self._world.was_up(name)
        }
        told = "; ".join(f"no {name} has written a tape record of kind {kind!r}" for kind, name in kinds.items())
        return f" ({told})" if told else ""

    # ── one turn of the loop ─────────────────────────────────────────────────────────────────────────────────────────

    async def _tick(self) -> None:
        await asyncio.sleep(TICK_S)
        for _, record in self._world.poll_tapes():
            self._observe(record)
        now = time.monotonic()
        if now > self._proxy_checked_t + PROXY_CHECK_INTERVAL_S:
            self._proxy_checked_t = now
            await self._world.supervise_proxy()
        if self._injector.crashes:
            self._stop("internal", f"a fault raised: {self._injector.crashes[0]}")
        if now > self._deadline:
            self._stop("deadline", f"the run took longer than its deadline of {self._plan.run.deadline_s:g} s")
        if self._end is not None:
            raise self._end

    def _observe(self, record: dict[str, Any]) -> None:
        if record["kind"] == "round":
            self._round = max(self._round, int(record["round"]))

    def _target_done(self) -> bool:
        end = self._world.exit_of(self._target.done_role)
        return end is not None and self._injector.touching(self._target.done_role) is None

    def _role_exited(self, process: RoleProcess, end: Exit) -> None:
        injection = self._injector.touching(process.role)
        own_end = end.code == 0
        expected = injection is not None or own_end or self._phase == "stop"
        self._note(
            "exit",
            role=process.role,
            pid=process.pid,
            start=process.start,
            code=end.code,
            signal=end.signal,
            expected=expected,
            injection=injection,
        )
        if not expected:
            how = f"signal {end.signal}" if end.signal else f"exit code {end.code}"
            log = self._run_dir / "logs" / f"{process.role}.{process.start}.log"
            self._stop(
                "target-died", f"{process.role} died outside any fault ({how}); the end of {log}: {_last_line(log)}"
            )

    # ── small things ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _stop(self, outcome: str, why: str) -> None:
        """End the run at the next tick. The first reason stands."""
        if self._end is None:
            self._end = RunEndedError(outcome, why)

    def interrupt(self, why: str) -> None:
        """Somebody wants the run to end: heal and finish the journal."""
        self._stop("interrupted", why)

    def runner_died(self) -> None:
        self._stop("interrupted", "the runner died")

    def guardian_died(self) -> None:
        self._stop("internal", "the guardian died")

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._note("phase", phase=phase)

    def _note(self, kind: str, **fields: Any) -> None:
        self._journal.append(kind, **fields)
        # The proxy and every role are known to the ledger as well: by pid and start time they are found after a crash.
        if kind == "spawn":
            self._ledger.write("spawn", role=fields["role"], pid=fields["pid"], start_time=fields["start_time"])
        elif kind == "proxy":
            self._ledger.write("spawn", role="proxy", pid=fields["pid"], start_time=fields["start_time"])

    def _write_opening(self) -> None:
        self._ledger.write("open", owners=owners(self._guardian_pid))
        self._journal.append(
            "journal",
            format=FORMAT,
            run=self._run_dir.name,
            plan=self._plan.name,
            plan_sha=self._spec.plan_sha,
            seed=self._spec.seed,
            with_faults=self._spec.with_faults,
            target=self._target.name,
            wall_time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            chaoskit=chaoskit.__version__,
            python=platform.python_version(),
            platform=platform.system().lower() + " " + platform.machine(),
        )

    def _status(self) -> dict[str, Any]:
        roles = {name: "up" if self._world.is_up(name) else "down" for name in self._target.roles_by_name}
        return {
            "run": self._run_dir.name,
            "phase": self._phase,
            "round": self._round,
            "active": self._injector.active(),
            "roles": roles,
        }

    def _handlers(self) -> dict[str, Handler]:
        return {
            "status": self._status,
            "stop": lambda: self._end_request("stopped by chaoskit stop"),
            "interrupt": lambda: self._end_request("the runner was interrupted (Ctrl-C or SIGTERM)"),
        }

    def _end_request(self, why: str) -> dict[str, Any]:
        self.interrupt(why)
        return {}


def owners(guardian_pid: int) -> list[dict[str, int]]:
    """Who may be ended with this run: this process and its guardian.

    Recovery kills owners that hang. A parent that is not the guardian adopted us after its death: a stranger.
    """
    pids = [os.getpid(), *([guardian_pid] if os.getppid() == guardian_pid else [])]
    stats = {pid: process_stat(pid) for pid in pids}
    return [{"pid": pid, "start_time": stat.start_time} for pid, stat in stats.items() if stat is not None]


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "(empty)"


async def _main(run_dir: Path, life_fd: int, heartbeat_fd: int, guardian_fd: int, guardian_pid: int) -> None:
    loop = asyncio.get_running_loop()
    beating = asyncio.create_task(_beat(heartbeat_fd))
    spec = read_spec(run_dir)
    plan = read_plan(spec.plan, kinds=kind_specs(), probes=None)
    target = read_target(plan.target)
    if plan.source_sha != spec.plan_sha:
        raise PlanError(f"{spec.plan}: changed since the run began; expected the file that was validated; start again")
    daemon = Daemon(run_dir, plan, target, spec, guardian_pid)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, daemon.interrupt, f"{signal.Signals(number).name} to the daemon")
    loop.add_reader(life_fd, _at_end_of_file, loop, life_fd, daemon.runner_died)
    loop.add_reader(guardian_fd, _at_end_of_file, loop, guardian_fd, daemon.guardian_died)
    await daemon.run()
    beating.cancel()


def _at_end_of_file(loop: asyncio.AbstractEventLoop, fd: int, then: Any) -> None:
    if not os.read(fd, 64):
        loop.remove_reader(fd)
        then()


async def _beat(heartbeat_fd: int) -> None:
    """Tell the guardian that this loop still turns. A loop that hangs does not, which is the point."""
    while True:
        # A full pipe means a guardian that stands still, a broken one that it died, which `guardian_fd` tells as well.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(heartbeat_fd, b".")
        await asyncio.sleep(HEARTBEAT_INTERVAL_S)


def main() -> None:
    """Entry point of the daemon's process."""
    parser = argparse.ArgumentParser(prog="chaoskit-daemon")
    parser.add_argument("run", type=Path)
    parser.add_argument("--life-fd", type=int, required=True)
    parser.add_argument("--heartbeat-fd", type=int, required=True)
    parser.add_argument("--guardian-fd", type=int, required=True)
    parser.add_argument("--guardian-pid", type=int, required=True)
    arguments = parser.parse_args()
    asyncio.run(
        _main(
            arguments.run,
            arguments.life_fd,
            arguments.heartbeat_fd,
            arguments.guardian_fd,
            arguments.guardian_pid,
        )
    )


if __name__ == "__main__":
    main()
    sys.exit(0)
