"""The real world: roles as processes, links through the proxy, tapes read as they grow.

                         ┌────────── proxy ──────────┐
    learner-2 ──TCP──▶ 127.0.0.1:port ──▶ chain ──▶ syncer          one listening port per link, owned by this process,
                                                                    so that a new proxy takes over the same ports
    learner-2 ── tape/learner-2.1.jsonl ──▶ poll_tapes()

One asyncio loop owns it. Whatever may block (a control call to the proxy) goes to a thread, with a deadline of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from chaoskit.errors import PreflightError
from chaoskit.faults import Exit, LinkHits, Process
from chaoskit.journal import Follower
from chaoskit.links.control import LinkAddress, Proxy
from chaoskit.links.counters import LinkStats
from chaoskit.links.settings import LinkFault, decode_faults
from chaoskit.plan import Link, Role, Target
from chaoskit.world.process import RUN_MARK, RoleProcess, kill_until_gone, marked_processes, process_stat

STOP_GRACE_S = 2.0
"""What a role gets between its stop signal and SIGKILL when the run is torn down."""
KILL_DEADLINE_S = 2.0
STATE_POLL_S = 0.001
HITS_POLL_S = 0.05
UP_POLL_S = 0.01

Note = Callable[..., None]
"""note(kind, **fields): writes a record of the journal."""


@dataclass
class _Started:
    """One process of a role, with what belongs to it alone."""

    process: RoleProcess
    popen: subprocess.Popen[bytes]
    tape: Follower
    up: asyncio.Event = field(default_factory=asyncio.Event)
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    exit: Exit | None = None


class RealWorld:
    """Starts, watches, harms and stops the processes of one run. Implements `chaoskit.faults.World`."""

    def __init__(
        self, target: Target, run_dir: Path, seed: int, note: Note, on_exit: Callable[[RoleProcess, Exit], None]
    ) -> None:
        self.target = target
        self.run_dir = run_dir
        self._ending = False
        self._seed = seed
        self._note = note
        self._on_exit = on_exit
        self._started: dict[str, _Started] = {}
        self._starts: dict[str, int] = {}
        self._proxy: Proxy | None = None
        self._proxy_lock = asyncio.Lock()
        self._snapshots: dict[str, dict[str, Mapping[str, Any]]] = {}
        for folder in ("tape", "logs", "target"):
            (run_dir / folder).mkdir(exist_ok=True)

    # ── life of the world ────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Start the proxy and every role, in the order of the target file. Raises PreflightError."""
        links = [
            LinkAddress(name=link.forward, upstream=Path(self._fill(link.spec.address, None)))
            for link in self.target.links_expanded
        ]
        if links:
            log = self.run_dir / "logs" / "proxy.log"
            environment = dict(os.environ) | {RUN_MARK: str(self.run_dir)}
            self._proxy = await asyncio.to_thread(Proxy.start, links, log=log, environment=environment)
            self._note_proxy("start")
        for role in self.target.roles_by_name:
            self.start(role, "start")

    def begin_ending(self) -> None:
        """From now on a role that is down need not come back, and nobody waits for evidence."""
        self._ending = True

    def ending(self) -> bool:
        return self._ending

    async def close(self) -> list[str]:
        """Stop every role and the proxy; returns what could not be proved gone."""
        self.begin_ending()
        running = [started for started in self._started.values() if started.exit is None]
        for started in running:
            number = signal.Signals[self.target.roles_by_name[started.process.role].spec.stop_signal]
            started.process.signal(number)
        await self._wait_exits(running, STOP_GRACE_S)
        for started in running:
            # The group, also where its leader has gone: a child it left behind is a residue.
            if started.exit is None:
                started.process.signal(signal.SIGKILL)
        await self._wait_exits(running, KILL_DEADLINE_S)
        residue = [f"{s.process.role} (pid {s.process.pid}) is still alive" for s in running if s.exit is None]
        if self._proxy is not None:
            await asyncio.to_thread(self._proxy.close)
            if self._proxy.alive():
                residue.append(f"proxy (pid {self._proxy.pid}) is still alive")
        # What a role started in a session of its own is in no group of ours; it carries the run's mark all the same.
        _, left = await asyncio.to_thread(kill_until_gone, self._strays)
        return residue + [f"{stray} is still alive" for stray in left]

    def _strays(self) -> list[tuple[str, int, int]]:
        return [("a process that a role had started", *found) for found in marked_processes(self.run_dir)]

    async def _wait_exits(self, started: list[_Started], deadline_s: float) -> None:
        if started:
            await asyncio.wait([asyncio.ensure_future(s.exited.wait()) for s in started], timeout=deadline_s)

    # ── roles ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, name: str, cause: str) -> RoleProcess:
        """Start the next process of a role. Raises PreflightError when its command cannot be run."""
        role = self.target.roles_by_name[name]
        number = self._starts.get(name, 0) + 1
        tape = self.run_dir / "tape" / f"{name}.{number}.jsonl"
        log_path = self.run_dir / "logs" / f"{name}.{number}.log"
        command = [self._fill(word, role, tape) for word in role.spec.command]
        with log_path.open("wb") as log:
            try:
                popen = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment(role, tape),
                    start_new_session=True,
                )
            except OSError as error:
                raise PreflightError(
                    f"{self.target.path}: role {name!r} cannot be started: {command[0]}: {error.strerror}; "
                    "expected the first word of `command` to be an executable"
                ) from error
        stat = process_stat(popen.pid)
        assert stat is not None, "an unreaped child always has an entry in /proc"
        process = RoleProcess(name, popen.pid, stat.start_time, number)
        started = _Started(process, popen, Follower(tape))
        self._starts[name] = number
        self._started[name] = started
        self._note("spawn", role=name, pid=process.pid, start_time=process.start_time, start=number, cause=cause)
        pidfd = os.pidfd_open(popen.pid)
        asyncio.get_running_loop().add_reader(pidfd, self._reap, started, pidfd)
        return process

    def _reap(self, started: _Started, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        # What the role started itself goes with it; its group's id is pinned until the leader is reaped.
        _kill_group(started.process.pid)
        code = started.popen.wait()
        started.exit = Exit(code=code if code >= 0 else None, signal=-code if code < 0 else None)
        started.exited.set()
        self._on_exit(started.process, started.exit)

    def _environment(self, role: Role, tape: Path) -> dict[str, str]:
        environment = dict(os.environ) | {RUN_MARK: str(self.run_dir)}
        # Two threads made a training step 80 times slower than one on small machines; a role may override it.
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment |= {name: self._fill(value, role, tape) for name, value in role.spec.env.items()}
        for link in self.target.links_expanded:
            if link.from_role == role.name:
                assert self._proxy is not None
                environment[link.spec.env] = f"127.0.0.1:{self._proxy.port(link.forward)}"
        return environment

    def _fill(self, text: str, role: Role | None, tape: Path | None = None) -> str:
        values = {
            "python": sys.executable,
            "run": str(self.run_dir),
            "state": str(self.run_dir / "target"),
            "here": str(Path(self.target.path).parent),
            "seed": str(self._seed),
            "run_id": self.run_dir.name,
        }
        if role is not None:
            values |= {"role": role.name, "index": str(role.index)}
        if tape is not None:
            values["tape"] = str(tape)
        for name, value in values.items():
            text = text.replace("{" + name + "}", value)
        return text

    def poll_tapes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(role, record) of every tape line written since the last call."""
        for name, started in list(self._started.items()):
            ready = self.target.roles_by_name[name].spec.ready
            for record in started.tape.poll():
                if record["kind"] == ready and not started.up.is_set():
                    started.up.set()
                    self._note("up", role=name, start=started.process.start)
                yield name, record

    def is_up(self, name: str) -> bool:
        """Whether the role's latest process lives and has said that it is ready."""
        started = self._started[name]
        return started.exit is None and started.up.is_set()

    def was_up(self, name: str) -> bool:
        """Whether the role's latest process has ever said that it is ready."""
        return self._started[name].up.is_set()

    def exit_of(self, name: str) -> Exit | None:
        """How the role's latest process ended, or None while it runs."""
        return self._started[name].exit

    # ── what faults ask for ──────────────────────────────────────────────────────────────────────────────────────────

    def process(self, role: str) -> RoleProcess | None:
        started = self._started.get(role)
        return started.process if started and started.exit is None else None

    async def wait_exit(self, process: Process, deadline_s: float) -> Exit | None:
        started = self._started[process.role]
        if (started.process.pid, started.process.start_time) != (process.pid, process.start_time):
            return Exit(code=None, signal=None)
        await self._wait_exits([started], deadline_s)
        return started.exit

    async def bring_up(self, role: str, deadline_s: float) -> RoleProcess | None:
        process = self.process(role) or self.start(role, "restart")
        started = self._started[role]
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline and started.exit is None and not self._ending:
            if started.up.is_set():
                return process
            await asyncio.sleep(UP_POLL_S)
        return None

    async def wait_state(self, process: Process, wanted: str, *, absent: bool, deadline_s: float) -> float | None:
        begun = time.monotonic()
        while (process.state() == wanted) == absent:
            if time.monotonic() > begun + deadline_s:
                return None
            await asyncio.sleep(STATE_POLL_S)
        return time.monotonic() - begun

    async def impose(self, direction: str, injection: str, settings: Mapping[str, Any]) -> None:
        snapshot = self._snapshots.setdefault(direction, {})
        snapshot[injection] = settings
        await self._set_link(direction)

    async def lift(self, direction: str, injection: str) -> None:
        self._snapshots.setdefault(direction, {}).pop(injection, None)
        await self._set_link(direction)

    async def hits(self, directions: Sequence[str], injection: str) -> dict[str, LinkHits]:
        stats = await self._stats()
        found = {}
        for direction in directions:
            link = self._link_of(direction)
            of_link = stats[link.forward]
            way = of_link.forward if direction == link.forward else of_link.backward
            fault = way.faults.get(injection)
            found[direction] = LinkHits(
                present=fault is not None and fault.present,
                bytes_hit=fault.bytes if fault else 0,
                delay_median_s=fault.delay.median_s if fault else 0.0,
                delay_total_s=fault.delay.total_s if fault else 0.0,
                held_bytes=way.held_bytes,
            )
        return found

    async def wait_hits(
        self,
        directions: Sequence[str],
        injection: str,
        enough: Callable[[Mapping[str, LinkHits]], bool],
        deadline_s: float,
    ) -> dict[str, LinkHits]:
        deadline = time.monotonic() + deadline_s
        while True:
            hits = await self.hits(directions, injection)
            if enough(hits) or self._ending or time.monotonic() > deadline:
                return hits
            await asyncio.sleep(HITS_POLL_S)

    async def _set_link(self, direction: str) -> None:
        await self.supervise_proxy()
        assert self._proxy is not None
        link = self._link_of(direction)
        forward, backward = self._faults_on(link.forward), self._faults_on(link.backward)
        await asyncio.to_thread(self._proxy.set_faults, link.forward, forward, backward)

    def _link_of(self, direction: str) -> Link:
        return next(link for link in self.target.links_expanded if direction in (link.forward, link.backward))

    def _faults_on(self, direction: str) -> tuple[LinkFault, ...]:
        imposed = self._snapshots.get(direction, {})
        return decode_faults([{"id": name, **settings} for name, settings in imposed.items()], direction)

    # ── the proxy ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def supervise_proxy(self) -> None:
        """Bring a dead proxy back on the same ports with the same snapshots, and say so."""
        async with self._proxy_lock:
            if self._proxy is None or self._proxy.alive():
                return
            await asyncio.to_thread(self._proxy.restart)
            self._note_proxy("restart")

    async def link_stats(self) -> dict[str, Any]:
        """The proxy's counters by link."""
        return dict(msgspec.to_builtins(await self._stats())) if self._proxy is not None else {}

    async def _stats(self) -> dict[str, LinkStats]:
        await self.supervise_proxy()
        assert self._proxy is not None, "the plan reader lets no fault on links pass where the target has none"
        return await asyncio.to_thread(self._proxy.stats)

    def _note_proxy(self, event: str) -> None:
        assert self._proxy is not None
        stat = process_stat(self._proxy.pid)
        # One that died at once is not there any more, and then needs no killing later.
        self._note("proxy", event=event, pid=self._proxy.pid, start_time=stat.start_time if stat else 0)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
