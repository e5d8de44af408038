"""Correct runs, made up: a small simulation of the protocol that writes the tapes and the journal of a run.

    run = make_run(learners=4, faults=[Fault("kill", learner=2, round=6)])
    run.history()          what the probes are given

A `Run` is a list of mutable lines, so that a test can plant one defect in an otherwise correct run. The
simulation knows nothing of the probes; it follows the contract of the event tape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chaoskit.journal import History, Record, merge

STEP_S = 0.05
TICK_S = 0.0005
STEP_TOKENS = 32
DAEMON = "daemon"
SYNCER = "syncer"


@dataclass(frozen=True)
class Fault:
    """What befalls one learner: kind is kill, pause, cut (a partition of its link) or slow (its updates are
    late). It starts in round `round` of chaos and ends `rounds` later."""

    kind: str
    learner: int
    round: int
    rounds: int = 3


@dataclass
class Line:
    """One line of a tape or of the journal."""

    t: float
    node: str
    kind: str
    data: dict[str, Any]


@dataclass
class Run:
    """A run as lines; `history()` merges them as chaoskit does."""

    lines: list[Line] = field(default_factory=list)

    def of(self, kind: str, **wanted: Any) -> list[Line]:
        """The lines of a kind whose fields (or `node`) have these values."""
        return [
            line
            for line in self.lines
            if line.kind == kind
            and all((line.node if key == "node" else line.data.get(key)) == value for key, value in wanted.items())
        ]

    def update(self, id: str) -> list[dict[str, Any]]:
        """Every place that tells of an update, by its id: send, accept, and contributions to merges."""
        told = [line.data for line in self.lines if line.data.get("id") == id]
        return told + [u for m in self.of("merge") for u in m.data["contributions"] if u["id"] == id]

    def drop(self, lines: Sequence[Line]) -> None:
        gone = {id(line) for line in lines}
        self.lines = [line for line in self.lines if id(line) not in gone]

    def insert_after(self, line: Line, kind: str, **data: Any) -> Line:
        new = Line(line.t, line.node, kind, data)
        self.lines.insert(self.lines.index(line) + 1, new)
        return new

    def warp(self, start_s: float, end_s: float, factor: float) -> None:
        """Stretch the time between two moments for everybody."""
        for line in self.lines:
            line.t += (factor - 1) * (min(max(line.t, start_s), end_s) - start_s)

    def history(self) -> History:
        files: dict[str, list[Record]] = {}
        for line in sorted(self.lines, key=lambda line: line.t):
            files.setdefault(line.node, []).append(Record(0, line.t, line.node, line.kind, line.data))
        return History(records=merge(files.values()))


@dataclass
class _Learner:
    name: str
    incarnation: int = 0
    start: int = 0
    state: str = "down"
    """up, down (killed), paused, cut or slow."""
    step: int = 0
    tokens: int = 0
    sends: int = 0
    held: list[int] = field(default_factory=list)
    adopted_at: list[int] = field(default_factory=list)


class _Simulation:
    def __init__(self, learners: int, fragments: int, quorum: int, steps: int) -> None:
        self.t = 100.0
        self.run = Run()
        self.quorum = quorum
        self.steps = steps
        """Steps from round to round."""
        self.versions = [0] * fragments
        self.digests = [digest(p, 0) for p in range(fragments)]
        self.learners = [_Learner(f"learner-{m}") for m in range(learners)]
        self.active: list[tuple[int, str, Fault]] = []
        self.injected = 0

    def tell(self, node: str, kind: str, **data: Any) -> None:
        self.t += TICK_S
        self.run.lines.append(Line(self.t, node, kind, data))

    def begin(self) -> None:
        self.tell(DAEMON, "journal", format=1, run="made-up", plan="made-up", seed=1)
        self.tell(DAEMON, "phase", phase="preflight")
        self.tell(SYNCER, "start", role=SYNCER, pid=10, format=1)
        self.tell(
            SYNCER,
            "config",
            learners=len(self.learners),
            fragments=len(self.versions),
            steps=self.steps * len(self.versions),
            tau=1,
            quorum=self.quorum,
            staleness_max=3,
            grace_s_max=0.05,
        )
        for fragment, value in enumerate(self.digests):
            self.tell(SYNCER, "init", fragment=fragment, digest=value)
        for learner in self.learners:
            self.spawn(learner, "start")
        self.tell(DAEMON, "phase", phase="steady")

    def spawn(self, learner: _Learner, cause: str) -> None:
        learner.start += 1
        pid = 100 * learner.start + self.learners.index(learner)
        self.tell(DAEMON, "spawn", role=learner.name, pid=pid, start=learner.start, cause=cause)
        self.tell(learner.name, "start", role=learner.name, pid=pid, format=1)
        self.t += 1.0
        self.join(learner)

    def join(self, learner: _Learner) -> None:
        learner.incarnation += 1
        learner.tokens = 0
        learner.adopted_at = [0] * len(self.versions)
        learner.held = [-1] * len(self.versions)
        told = {"incarnation": learner.incarnation, "versions": list(self.versions)}
        self.tell(SYNCER, "join", learner=learner.name, cursor=learner.step, **told)
        self.tell(learner.name, "welcome", cursor=learner.step, **told)
        for fragment in range(len(self.versions)):
            self.adopt(learner, fragment, "join")
        self.tell(learner.name, "ready", **told)
        self.tell(SYNCER, "admit", learner=learner.name, **told)
        learner.state = "up"

    def adopt(self, learner: _Learner, fragment: int, cause: str) -> None:
        self.tell(
            learner.name,
            "adopt",
            incarnation=learner.incarnation,
            fragment=fragment,
            version=self.versions[fragment],
            digest=self.digests[fragment],
            lo=learner.adopted_at[fragment],
            at=learner.tokens,
            cause=cause,
        )
        learner.held[fragment] = self.versions[fragment]
        learner.adopted_at[fragment] = learner.tokens

    def stride(self) -> None:
        """One inner step of everyone who can."""
        self.t += STEP_S
        for learner in self.learners:
            if learner.state in ("up", "slow", "cut"):
                learner.step += 1
                learner.tokens += STEP_TOKENS
                self.tell(
                    learner.name,
                    "step",
                    incarnation=learner.incarnation,
                    step=learner.step,
                    tokens=learner.tokens,
                    loss=1.0,
                    step_s=STEP_S,
                )

    def push(self, learner: _Learner, fragment: int, round: int) -> dict[str, Any]:
        learner.sends += 1
        update = {
            "incarnation": learner.incarnation,
            "fragment": fragment,
            "round": round,
            "attempt": 1,
            "base": learner.held[fragment],
            "lo": learner.adopted_at[fragment],
            "hi": learner.tokens,
            "steps": (learner.tokens - learner.adopted_at[fragment]) // STEP_TOKENS,
            "id": f"{learner.name}.{learner.incarnation}.{fragment}.{learner.sends}",
            "digest": f"u{self.learners.index(learner)}.{learner.incarnation}.{learner.sends}",
        }
        self.tell(learner.name, "send", **update)
        return {"learner": learner.name} | update

    def round(self, number: int, kills: Sequence[Fault]) -> None:
        for _ in range(self.steps):
            self.stride()
        fragment = (number - 1) % len(self.versions)
        self.tell(SYNCER, "round", round=number, fragment=fragment, attempt=1)
        asked = [one for one in self.learners if one.state in ("up", "slow")]
        asked = [one for one in asked if one.tokens > one.adopted_at[fragment]]
        self.tell(SYNCER, "pull", round=number, fragment=fragment, attempt=1, learners=[one.name for one in asked])
        updates = {one.name: self.push(one, fragment, number) for one in asked}
        for fault in kills:
            self.inject(fault)
        self.stride()
        timely = [updates[one.name] for one in asked if one.state == "up"]
        if len(timely) >= self.quorum:
            for update in timely:
                self.tell(SYNCER, "accept", **update)
            self.merge(fragment, number, timely)
        else:
            self.tell(SYNCER, "below-quorum", ready=len(timely), quorum=self.quorum)
        for one in self.learners:
            if one.state == "slow" and one.name in updates:
                self.tell(SYNCER, "reject", **updates[one.name], why="late")
            if one.state in ("up", "slow") and one.held[fragment] < self.versions[fragment]:
                self.adopt(one, fragment, "broadcast")

    def merge(self, fragment: int, round: int, updates: Sequence[dict[str, Any]]) -> None:
        self.versions[fragment] += 1
        version, before = self.versions[fragment], self.digests[fragment]
        self.digests[fragment] = digest(fragment, version)
        self.tell(
            SYNCER,
            "merge",
            round=round,
            fragment=fragment,
            version=version,
            h_in=before,
            h_out=self.digests[fragment],
            contributions=[dict(update, tokens=update["hi"] - update["lo"]) for update in updates],
            grace_s=0.0,
        )
        self.tell(SYNCER, "publish", fragment=fragment, version=version, digest=self.digests[fragment])
        merges = sum(self.versions)
        self.tell("evaluator", "eval", merges=merges, loss=1.5 + 3 / (1 + 0.1 * merges))

    def inject(self, fault: Fault) -> bool:
        """Apply a fault; it never acts on a learner that another one holds."""
        learner = self.learners[fault.learner % len(self.learners)]
        self.injected += 1
        name = f"{fault.kind}#{self.injected}"
        if learner.state != "up":
            self.tell(DAEMON, "skipped", injection=name, why=f"{learner.name} is {learner.state}")
            return False
        link = fault.kind in ("cut", "slow")
        targets = [f"{learner.name} -> syncer", f"syncer -> {learner.name}"] if link else [learner.name]
        self.tell(DAEMON, "intent", injection=name, fault=fault.kind, name=fault.kind, targets=targets, settings={})
        learner.state = {"kill": "down", "pause": "paused"}.get(fault.kind, fault.kind)
        self.tell(DAEMON, "applied", injection=name, targets=targets, evidence={})
        self.tell(DAEMON, "landed", injection=name, landed=True, evidence={})
        if fault.kind == "kill":
            self.tell(DAEMON, "exit", role=learner.name, start=learner.start, signal=9, expected=True, injection=name)
        if fault.kind == "cut":
            self.tell(learner.name, "disconnect", incarnation=learner.incarnation, why="reset")
        if fault.kind in ("kill", "cut"):
            self.tell(SYNCER, "leave", learner=learner.name, incarnation=learner.incarnation, why="eof")
        self.active.append((fault.rounds, name, fault))
        return True

    def heal(self) -> None:
        """One round has passed for every active fault; undo those whose time has come."""
        still: list[tuple[int, str, Fault]] = []
        for rounds, name, fault in self.active:
            if rounds > 1:
                still.append((rounds - 1, name, fault))
                continue
            learner = self.learners[fault.learner % len(self.learners)]
            self.tell(DAEMON, "undo", injection=name)
            if fault.kind == "kill":
                self.spawn(learner, "restart")
            if fault.kind == "pause":
                learner.state = "up"
            self.tell(DAEMON, "undone", injection=name, clean=True, evidence={})
            if fault.kind == "cut":
                self.join(learner)
            if fault.kind in ("pause", "slow"):
                learner.state = "up"
                for fragment, version in enumerate(self.versions):
                    if learner.held[fragment] < version:
                        self.adopt(learner, fragment, "broadcast")
        self.active = still

    def end(self) -> None:
        self.tell(SYNCER, "stop", reason="done")
        for learner in self.learners:
            self.tell(learner.name, "stop", reason="done")
        self.tell(DAEMON, "phase", phase="stop")
        for fragment, last in enumerate(self.versions):
            for version in range(1, last + 1):
                self.tell(DAEMON, "replay", fragment=fragment, version=version, digest=digest(fragment, version))
        self.tell(DAEMON, "end", outcome="finished", why="done", residue=[])


def digest(fragment: int, version: int) -> str:
    return f"h{fragment}.{version}"


def make_run(
    *,
    learners: int = 4,
    fragments: int = 3,
    quorum: int = 1,
    steps: int = 3,
    faults: Sequence[Fault] = (),
    rounds: int = 40,
    steady_rounds: int = 4,
    quiet_rounds: int = 6,
) -> Run:
    """A correct run: `rounds` rounds in all, steady first, then chaos until all faults are undone and
    `quiet_rounds` more have passed, then heal."""
    simulation = _Simulation(learners, fragments, quorum, steps)
    simulation.begin()
    last = max((fault.round + fault.rounds for fault in faults), default=0)
    for number in range(1, rounds + 1):
        chaos_round = number - steady_rounds
        if chaos_round == 1 and faults:
            simulation.tell(DAEMON, "phase", phase="chaos")
        if chaos_round == last + quiet_rounds + 1 or (chaos_round == 1 and not faults):
            simulation.tell(DAEMON, "phase", phase="heal")
        now = [fault for fault in faults if fault.round + 1 == chaos_round]
        for fault in now:
            if fault.kind != "kill":
                simulation.inject(fault)
        simulation.round(number, [fault for fault in now if fault.kind == "kill"])
        simulation.heal()
    simulation.end()
    return simulation.run
