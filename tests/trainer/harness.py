"""A world in memory for the two state machines: virtual time, an event heap, links with a delay, and no process.

    World(seed=1).run()                                      a clean run
    world.at(2.0, world.kill, "learner-1")                   at virtual second 2 its process is gone
    world.at(3.0, world.start_learner, "learner-1")          and comes back as a new one
    world.tapes["syncer"], world.records()                   the event tape of docs/event-tape.md, in dicts with `t`

Everything is decided by the seed: the same seed gives the same history, record for record. Learners do not train on
text; each step moves every parameter a little towards the learner's own target plus keyed noise, which is enough for a
merge to have something to average, and costs microseconds.
"""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.config import Config, from_mapping
from trainer.effects import (
    Close,
    Closed,
    Effect,
    Event,
    Finish,
    Opened,
    PersistMembers,
    PersistMerge,
    Received,
    Record,
    Send,
    Stepped,
    Tick,
)
from trainer.fragments import Fragment, Placed, TensorSpec, digest_of, total_size
from trainer.learner import Learner
from trainer.messages import Fragment as FragmentMessage
from trainer.messages import Message, Ping
from trainer.state import SyncerState
from trainer.syncer import Syncer, publish_fields

EVENTS_MAX = 200_000
"""A run that needs more has lost its way: the harness fails instead of looping."""
TIMER_S_MIN = 1e-6
NOTICE_S = 0.0005
"""A peer's death is seen this long after it."""
RECONNECT_S = 0.05
LAUNCH_T = 1000.0
"""Virtual time begins here, so that a forgotten zero shows."""


def toy_config(**protocol: Any) -> Config:
    """Four learners, four fragments, 40 merges; `protocol` overrides, `steps` goes to the task."""
    steps = protocol.pop("steps", 80)
    raw = {
        "task": {"steps": steps, "batch": 2},
        "model": {"width": 4, "layers": 1, "heads": 1, "context": 4},
        "protocol": {"M": 4, "P": 4, "H": 8, "tau": 2, "K": 2} | protocol,
    }
    return from_mapping(raw, "the harness")


def toy_fragments(P: int) -> tuple[Fragment, ...]:
    """P fragments of two tensors, 5 numbers each, one of them embedding-like."""
    fragments, offset = [], 0
    for index in range(P):
        one = TensorSpec(f"t{index}.a", (3,), False, 0.5)
        other = TensorSpec(f"t{index}.b", (2,), True, 0.5)
        fragment = Fragment(index, offset, (Placed(one, 0, 3), Placed(other, 3, 5)))
        fragments.append(fragment)
        offset += fragment.size
    return tuple(fragments)


@dataclass
class Pipe:
    """One connection. Messages in one direction keep their order whatever the delays."""

    number: int
    learner: str
    process: int
    syncer_life: int
    open: bool = True
    last_arrival: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False)
class Process:
    """One process of a learner."""

    machine: Learner
    number: int
    pipe: Pipe | None = None
    paused: bool = False
    held: list[Event] = field(default_factory=list)
    """What has arrived while it was paused."""


class World:
    """Syncer and learners in virtual time. Change the public fields before or during the run; all times are seconds."""

    def __init__(self, config: Config | None = None, seed: int = 1) -> None:
        self.config = config or toy_config()
        self.seed = seed
        self.fragments = toy_fragments(self.config.protocol.P)
        self.now = LAUNCH_T
        self.step_s: dict[str, float] = {}
        """Step time per learner; 0.01 where nothing is said."""
        self.delay_s: Callable[[str, Message], float] = lambda _link, _message: 0.001
        """(link, message) -> delay; links are "learner-1->syncer" and "syncer->learner-1"."""
        self.lost: Callable[[str, Message], bool] = lambda _link, _message: False
        self.copies: Callable[[str, Message], int] = lambda _link, _message: 1
        self.tapes: dict[str, list[dict[str, Any]]] = {"syncer": []}
        self.effects: list[tuple[str, Effect]] = []
        """All effects in the order in which they were carried out: (role, effect)."""
        self.durable_state = SyncerState.fresh(self.fragments, seed)
        self.durable_records: dict[int, dict[str, Any]] = {}
        self.contributions: dict[tuple[int, int], PersistMerge] = {}
        self.processes: dict[str, Process] = {}
        self.zombies: list[Process] = []
        """Processes that live on although the supervisor has started a successor."""
        self.finished = False
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._pipes: dict[int, Pipe] = {}
        self._pipe_numbers = itertools.count(1)
        self._process_numbers = itertools.count(1)
        self._life = 0
        self._timer_at = float("inf")
        self.syncer: Syncer | None = None
        self.start_syncer()
        for index in range(self.config.protocol.M):
            self.start_learner(f"learner-{index}")

    # ---- running

    def at(self, after_s: float, action: Callable[..., object], *arguments: Any) -> None:
        """Do something `after_s` virtual seconds from now."""
        heapq.heappush(self._heap, (self.now + after_s, next(self._order), lambda: (action(*arguments), None)[1]))

    def run(self, until_s: float = 60.0) -> World:
        """Until the syncer has finished, or for `until_s` virtual seconds."""
        end = self.now + until_s
        for _ in range(EVENTS_MAX):
            if self.finished or not self._heap or self._heap[0][0] > end:
                return self
            self.now, _, action = heapq.heappop(self._heap)
            action()
        raise AssertionError(f"more than {EVENTS_MAX} events: the protocol is spinning at {self.now}")

    def run_until(self, condition: Callable[[], bool], until_s: float = 60.0) -> World:
        """Until `condition()` holds after an event; fails when it never does."""
        end = self.now + until_s
        for _ in range(EVENTS_MAX):
            if condition():
                return self
            in_time = bool(self._heap) and self._heap[0][0] <= end
            assert in_time, f"it did not happen in {until_s} s; merges: {self.merges()}"
            self.now, _, action = heapq.heappop(self._heap)
            action()
        raise AssertionError(f"more than {EVENTS_MAX} events: the protocol is spinning at {self.now}")

    def merges(self) -> int:
        return sum(record["kind"] == "merge" for record in self.tapes["syncer"])

    def records(self, kind: str | None = None, role: str | None = None) -> list[dict[str, Any]]:
        """All records of all tapes by time, each with its `role`; those of one kind or role where asked."""
        merged = [
            {**record, "role": name}
            for name, tape in self.tapes.items()
            for record in tape
            if (kind is None or record["kind"] == kind) and (role is None or name == role)
        ]
        return sorted(merged, key=lambda record: record["t"])

    # ---- faults

    def kill(self, role: str) -> None:
        """SIGKILL: nothing more is said, and the peers see the connection close."""
        if role == "syncer":
            self.syncer = None
            for pipe in list(self._pipes.values()):
                self.cut(pipe.number)
            return
        process = self.processes.pop(role)
        if process.pipe:
            self.cut(process.pipe.number, whose="syncer")

    def pause(self, role: str) -> None:
        self.processes[role].paused = True

    def resume(self, role: str) -> None:
        process = self.processes[role]
        process.paused = False
        held, process.held = process.held, []
        for event in held:
            self._give_learner(process, event)

    def cut(self, number: int, whose: str = "both") -> None:
        """Close a connection; both sides see it soon, or only the syncer when the learner is dead."""
        pipe = self._pipes.pop(number, None)
        if pipe is None or not pipe.open:
            return
        pipe.open = False
        self.at(NOTICE_S, self._give_syncer, pipe.syncer_life, Closed(number, "closed by the peer"))
        process = self.processes.get(pipe.learner)
        if whose == "both" and process and process.number == pipe.process:
            self.at(NOTICE_S, self._give_learner, process, Closed(number, "closed by the peer"))

    def pipe_of(self, learner: str) -> Pipe:
        pipe = self.processes[learner].pipe
        assert pipe is not None, f"{learner} has no connection"
        return pipe

    # ---- roles

    def start_syncer(self) -> None:
        """Start, or restart from what is durable and nothing else."""
        self._life += 1
        self._timer_at = float("inf")
        state = SyncerState(
            [theta.copy() for theta in self.durable_state.theta], [m.copy() for m in self.durable_state.momentum],
            list(self.durable_state.versions), dict(self.durable_state.incarnations),
            dict(self.durable_state.processes), dict(self.durable_state.cursors),
        )  # fmt: skip
        self.syncer = Syncer(self.config, self.fragments, state, "harness")
        self._introduce(state)
        self._give_syncer(self._life, Tick())

    def _introduce(self, state: SyncerState) -> None:
        protocol = self.config.protocol
        self._tape("syncer", "start", {"role": "syncer", "pid": 1, "format": 1})
        self._tape("syncer", "config", {
            "learners": protocol.M, "fragments": protocol.P, "steps": protocol.H, "tau": protocol.tau,
            "quorum": protocol.K, "staleness_max": protocol.staleness_max,
            "grace_s_max": self.config.timing.grace_s_max, "outer_lr": protocol.outer_lr,
            "outer_momentum": protocol.outer_momentum, "rounds": self.config.rounds_total,
        })  # fmt: skip
        digests = [digest_of(theta) for theta in state.theta]
        if self._life == 1:
            for index, digest in enumerate(digests):
                self._tape("syncer", "init", {"fragment": index, "version": 0, "digest": digest})
            return
        for kind, fields in (("merge", lambda r: r), ("publish", publish_fields)):
            told = {(r["fragment"], r["version"]) for r in self.tapes["syncer"] if r["kind"] == kind}
            for record in self.durable_records.values():
                if (record["fragment"], record["version"]) not in told:
                    self._tape("syncer", kind, fields(record))
        self._tape("syncer", "restore", {"versions": list(state.versions), "digests": digests})

    def start_learner(self, name: str) -> Process:
        """A new process of the learner. One that is still there lives on as a zombie: it was only taken for dead."""
        if name in self.processes:
            self.zombies.append(self.processes[name])
        number = next(self._process_numbers)
        machine = Learner(self.config, self.fragments, name, "harness", f"process-{number}")
        process = self.processes[name] = Process(machine, number)
        self.tapes.setdefault(name, [])
        self._tape(name, "start", {"role": name, "pid": 100 + number, "format": 1})
        self.at(0.0, self._connect, process)
        self.at(self._step_s(name), self._step, process)
        self.at(self.config.timing.ping_s, self._ping, process)
        return process

    def _step_s(self, name: str) -> float:
        return self.step_s.get(name, 0.01)

    def _alive(self, process: Process) -> bool:
        return self.processes.get(process.machine.name) is process or process in self.zombies

    def _connect(self, process: Process) -> None:
        if not self._alive(process) or process.machine.stopped or process.pipe:
            return
        if self.syncer is None or self.syncer.finished:
            self.at(RECONNECT_S, self._connect, process)
            return
        pipe = Pipe(next(self._pipe_numbers), process.machine.name, process.number, self._life)
        self._pipes[pipe.number] = pipe
        process.pipe = pipe
        self._give_learner(process, Opened(pipe.number))

    def _step(self, process: Process) -> None:
        if not self._alive(process) or process.machine.stopped:
            return
        name = process.machine.name
        if process.machine.has_state and not process.paused:
            self.train(process.machine)
            self._give_learner(process, Stepped(1.0, self._step_s(name)))
        self.at(self._step_s(name), self._step, process)

    def train(self, machine: Learner) -> None:
        """One inner step: towards the learner's own target, with noise keyed by (seed, learner, step)."""
        key = [self.seed, zlib.crc32(f"{machine.name}/{machine.cursor}".encode())]
        noise = np.random.Generator(np.random.Philox(key=key)).standard_normal(total_size(self.fragments))
        target = 1.0 + 0.1 * int(machine.name.rpartition("-")[2])
        machine.theta += (0.05 * (target - machine.theta) + 0.01 * noise).astype(np.float32)

    def _ping(self, process: Process) -> None:
        if not self._alive(process) or process.machine.stopped:
            return
        if process.pipe and not process.paused and process.machine.state != "greeting":
            self._send(process.pipe, f"{process.machine.name}->syncer", Ping(), b"")
        self.at(self.config.timing.ping_s, self._ping, process)

    # ---- carrying out

    def _give_syncer(self, life: int, event: Event) -> None:
        if self.syncer is None or self.syncer.finished or life != self._life:
            return
        for effect in self.syncer.handle(self.now, event):
            self.effects.append(("syncer", effect))
            self._carry_out_for_syncer(effect)
            if self.syncer is None:  # type: ignore[redundant-expr]  # a test may kill it between two effects
                return
        wake_at = max(self.syncer.wake_at(), self.now + TIMER_S_MIN)
        if wake_at < self._timer_at:
            self._timer_at = wake_at
            self.at(wake_at - self.now, self._ring, life, wake_at)

    def _ring(self, life: int, timer_at: float) -> None:
        if timer_at == self._timer_at:
            self._timer_at = float("inf")
            self._give_syncer(life, Tick())

    def _carry_out_for_syncer(self, effect: Effect) -> None:
        match effect:
            case Send(connection, message, payload):
                if pipe := self._pipes.get(connection):
                    self._send(pipe, f"syncer->{pipe.learner}", message, payload)
            case Record(kind, fields):
                self._tape("syncer", kind, fields)
            case PersistMerge():
                self._persist(effect)
            case PersistMembers(incarnations, processes, cursors):
                state = self.durable_state
                state.incarnations, state.processes = dict(incarnations), dict(processes)
                state.cursors = dict(cursors)
            case Close(connection, _):
                self.at(0.002, self.cut, connection)
            case Finish():
                self.finished = True

    def _persist(self, merge: PersistMerge) -> None:
        state = self.durable_state
        state.theta[merge.fragment], state.momentum[merge.fragment] = merge.theta.copy(), merge.momentum.copy()
        state.versions[merge.fragment] = merge.version
        for learner, cursor in merge.cursors.items():
            state.cursors[learner] = max(cursor, state.cursors.get(learner, 0))
        self.durable_records[merge.fragment] = dict(merge.record)
        self.contributions[merge.fragment, merge.version] = merge

    def _give_learner(self, process: Process, event: Event) -> None:
        if not self._alive(process):
            return
        if process.paused:
            process.held.append(event)
            return
        if isinstance(event, Closed):
            process.pipe = None
            self.at(RECONNECT_S, self._connect, process)
        for effect in process.machine.handle(self.now, event):
            self.effects.append((process.machine.name, effect))
            self._carry_out_for_learner(process, effect)

    def _carry_out_for_learner(self, process: Process, effect: Effect) -> None:
        name = process.machine.name
        match effect:
            case Send(connection, message, payload):
                if process.pipe and process.pipe.number == connection:
                    self._send(process.pipe, f"{name}->syncer", message, payload)
            case Record(kind, fields):
                self._tape(name, kind, fields)
            case Close(connection, _):
                self.cut(connection, whose="syncer")
                if process.pipe and process.pipe.number == connection:
                    process.pipe = None
                    self.at(RECONNECT_S, self._connect, process)

    def _send(self, pipe: Pipe, link: str, message: Message, payload: bytes) -> None:
        if self.lost(link, message):
            return
        for _ in range(self.copies(link, message)):
            arrival = max(self.now + self.delay_s(link, message), pipe.last_arrival.get(link, 0.0))
            pipe.last_arrival[link] = arrival
            self.at(arrival - self.now, self._arrive, pipe, link, message, payload)

    def _arrive(self, pipe: Pipe, link: str, message: Message, payload: bytes) -> None:
        if not pipe.open:
            return
        event = Received(pipe.number, message, payload)
        if link.endswith("->syncer"):
            self._give_syncer(pipe.syncer_life, event)
            return
        for process in (*self.processes.values(), *self.zombies):
            if process.number == pipe.process:
                self._give_learner(process, event)

    def _tape(self, role: str, kind: str, fields: Any) -> None:
        self.tapes[role].append({"t": self.now, "kind": kind, **fields})


def is_broadcast(message: Message, fragment: int | None = None) -> bool:
    """A fragment on its way to the learners, not part of a join."""
    return (
        isinstance(message, FragmentMessage)
        and message.cause != "join"
        and (fragment is None or message.fragment == fragment)
    )
