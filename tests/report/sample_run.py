"""A plausible run, written as a journal and event tapes: what the report and the live view are tested with.

Four learners train for a minute. learner-1 is killed in round 120 and comes back as incarnation 2; learner-2 is
paused for six seconds; the link of learner-3 is capped. `python -m tests.report.sample_run FOLDER` writes the run and
its control run, for looking at.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaoskit.journal import AppendLog
from chaoskit.probes import ProbeResult, Verdict

BOOT_T = 5000.0
"""Monotonic time at which the sample run begins; all its roles are up and steady 9 s later."""
STEADY_T = BOOT_T + 9.0
TRAIN_S = 62.0
FRAGMENTS = 8
ROUND_S = 0.15
STEP_S = 0.066
TOKENS_PER_STEP = 256
KILL_S, RESTART_S, REJOIN_S = 18.31, 20.36, 23.9
PAUSE_S, RESUME_S = 31.02, 37.05
CAP_S, UNCAP_S = 42.5, 52.55


@dataclass
class Learner:
    """One learner of the sample: its incarnation, and its counters."""

    name: str
    incarnation: int = 1
    step: int = 0
    tokens: int = 0
    next_step_t: float = STEADY_T - 0.4
    merged_at: dict[int, int] = field(default_factory=dict)


@dataclass
class Writer:
    """Lines of the tapes and the journal, collected with their times and written in order."""

    tapes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    journal: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)

    def tape(self, name: str, t: float, kind: str, **fields: Any) -> None:
        self.tapes.setdefault(name, []).append({"t": round(t, 4), "kind": kind, **fields})

    def note(self, t: float, kind: str, /, **fields: Any) -> None:
        self.journal.append((round(t, 4), kind, fields))

    def save(self, run_dir: Path) -> None:
        (run_dir / "tape").mkdir(parents=True)
        for name, lines in self.tapes.items():
            lines.sort(key=lambda line: line["t"])
            (run_dir / "tape" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.journal.sort(key=lambda entry: entry[0])
        times: Iterator[float] = iter([t for t, _, _ in self.journal])
        with AppendLog(run_dir / "journal.jsonl", clock=lambda: next(times)) as log:
            for _, kind, fields in self.journal:
                log.append(kind, **fields)


def write_sample_run(run_dir: Path, *, chaos: bool = True) -> Path:
    """Write the sample run (or, without `chaos`, its control run) into a new folder and return the folder."""
    draws = random.Random(7)
    writer = Writer()
    name = "kill-and-rejoin-s7-20260411-101500" if chaos else "kill-and-rejoin-s7-control"
    writer.note(
        BOOT_T,
        "journal",
        format=1,
        run=name,
        plan="kill-and-rejoin",
        seed=7,
        wall_time="2026-04-11T10:15:00+00:00",
        chaoskit="0.1.0",
        target="reference-text",
    )
    _write_phases(writer, chaos)
    learners = [Learner(f"learner-{index}") for index in range(4)]
    _write_start(writer, learners)
    if chaos:
        _write_faults(writer)
        _write_rejoin(writer, learners[1])
    _write_training(writer, learners, draws, chaos)
    _write_end(writer)
    writer.save(run_dir)
    return run_dir


def _write_phases(writer: Writer, chaos: bool) -> None:
    phases = [("preflight", BOOT_T), ("steady", BOOT_T + 0.2), ("chaos", STEADY_T), ("heal", STEADY_T + 52.6)]
    for phase, t in phases if chaos else phases[:3]:
        writer.note(t, "phase", phase=phase)
    writer.note(STEADY_T + TRAIN_S, "phase", phase="stop")


def _write_start(writer: Writer, learners: list[Learner]) -> None:
    pid = 4100
    writer.note(BOOT_T + 0.1, "proxy", event="start", pid=4099)
    for offset, role in enumerate(["syncer", "evaluator", *(learner.name for learner in learners)]):
        t = BOOT_T + 0.3 + 0.2 * offset
        writer.note(t, "spawn", role=role, pid=pid + offset, start_time=1000 + offset, start=1, cause="start")
        writer.tape(f"{role}.1", t + 3.1, "start", role=role, pid=pid + offset, format=1)
        writer.note(STEADY_T - 0.35 + 0.05 * offset, "up", role=role, start=1)
    config = {"learners": 4, "fragments": FRAGMENTS, "steps": 16, "tau": 2, "quorum": 1, "staleness_max": 2}
    writer.tape("syncer.1", BOOT_T + 3.6, "config", **config)
    for index, learner in enumerate(learners):
        t = STEADY_T - 2 + 0.3 * index
        join = {"incarnation": 1, "versions": [0] * FRAGMENTS, "cursor": 0}
        writer.tape("syncer.1", t, "join", learner=learner.name, **join)
        writer.tape(f"{learner.name}.1", t + 0.01, "welcome", **join)
        for fragment in range(FRAGMENTS):
            adopted = {"incarnation": 1, "fragment": fragment, "version": 0, "digest": "0" * 16, "lo": 0, "at": 0}
            writer.tape(f"{learner.name}.1", t + 0.2 + fragment * 0.01, "adopt", cause="join", **adopted)
        writer.tape(f"{learner.name}.1", t + 0.4, "ready", incarnation=1, versions=[0] * FRAGMENTS)
        writer.tape("syncer.1", t + 0.41, "admit", learner=learner.name, incarnation=1, versions=[0] * FRAGMENTS)


def _write_faults(writer: Writer) -> None:
    def inject(number: int, name: str, fault: str, target: str, t_s: float, **rest: Any) -> None:
        t, injection = STEADY_T + t_s, f"{name}#1"
        fields = {"injection": injection, "fault": fault, "name": name, "targets": [target]}
        writer.note(t - 0.01, "intent", **fields, settings=rest["settings"], trigger=rest["trigger"], due_t=t - 0.012)
        writer.note(t, "applied", injection=injection, targets=[target], evidence={"number": number})
        writer.note(t + 0.3, "landed", injection=injection, landed=True, evidence=rest["landed"])
        writer.note(STEADY_T + rest["end_s"] - 0.05, "undo", injection=injection)
        writer.note(STEADY_T + rest["end_s"], "undone", injection=injection, clean=True, evidence=rest["undone"])

    inject(
        1,
        "crash",
        "process.kill",
        "learner-1",
        KILL_S,
        end_s=REJOIN_S + 0.1,
        trigger="round 120",
        settings={"restart_s": 2.0},
        landed={"pid": 4103, "signal": 9, "gone_ms": 0.34},
        undone={"new_pid": 4107, "restarted_after_s": 2.05},
    )
    inject(
        2,
        "freeze",
        "process.pause",
        "learner-2",
        PAUSE_S,
        end_s=RESUME_S,
        trigger="after 31 s",
        settings={"hold_s": 6.0},
        landed={"state": "stopped", "stopped_after_ms": 2.6, "cpu_ms": 0.0},
        undone={"state": "running", "resumed_after_ms": 0.8},
    )
    inject(
        3,
        "slow-uplink",
        "link.bandwidth",
        "learner-3->syncer",
        CAP_S,
        end_s=UNCAP_S,
        trigger="after 42.5 s",
        settings={"rate_mbit_s": 2.0},
        landed={"measured_mbit_s": 1.983, "backlog_bytes": 81920},
        undone={"chain": "empty", "queued_bytes": 0},
    )


def _write_rejoin(writer: Writer, learner: Learner) -> None:
    at = lambda t_s: STEADY_T + t_s  # noqa: E731  # three letters that keep the list below readable
    role, merges = learner.name, int(RESTART_S / ROUND_S)
    versions = [merges // FRAGMENTS + (fragment < merges % FRAGMENTS) for fragment in range(FRAGMENTS)]
    later = [version + 1 for version in versions]
    writer.note(
        at(KILL_S + 0.001),
        "exit",
        role=role,
        pid=4103,
        start=1,
        code=None,
        signal=9,
        expected=True,
        injection="crash#1",
    )
    writer.tape("syncer.1", at(KILL_S + 0.003), "leave", learner=role, incarnation=1, why="connection closed")
    writer.note(at(RESTART_S), "spawn", role=role, pid=4107, start_time=9000, start=2, cause="restart")
    writer.tape(f"{role}.2", at(RESTART_S + 2.4), "start", role=role, pid=4107, format=1)
    joined = {"incarnation": 2, "versions": versions, "cursor": 270}
    writer.tape("syncer.1", at(RESTART_S + 2.6), "join", learner=role, **joined)
    writer.tape(f"{role}.2", at(RESTART_S + 2.61), "welcome", **joined)
    for fragment in range(FRAGMENTS):
        adopted = {
            "incarnation": 2,
            "fragment": fragment,
            "version": later[fragment],
            "digest": "0" * 16,
            "lo": 0,
            "at": 0,
        }
        writer.tape(f"{role}.2", at(RESTART_S + 2.7 + fragment * 0.02), "adopt", cause="join", **adopted)
    writer.tape(f"{role}.2", at(REJOIN_S), "ready", incarnation=2, versions=later)
    writer.tape("syncer.1", at(REJOIN_S + 0.01), "admit", learner=role, incarnation=2, versions=later)
    writer.note(at(REJOIN_S + 0.09), "up", role=role, start=2)


def _alive(learner: Learner, t_s: float, chaos: bool) -> bool:
    if not chaos:
        return True
    if learner.name == "learner-1":
        return not KILL_S <= t_s < REJOIN_S
    return not (learner.name == "learner-2" and PAUSE_S <= t_s < RESUME_S)


def _write_training(writer: Writer, learners: list[Learner], draws: random.Random, chaos: bool) -> None:
    merges, t_s, work = 0, 0.2, 0.0
    while t_s < TRAIN_S:
        for learner in learners:
            _write_steps(writer, learner, t_s, draws, chaos)
        alive = [learner for learner in learners if _alive(learner, t_s, chaos) and learner.tokens]
        merges += 1
        work += len(alive) / 4
        _write_merge(writer, alive, merges, STEADY_T + t_s)
        if merges % 8 == 0:
            loss = 1.62 + 3.2 * math.exp(-work / 42) + draws.gauss(0, 0.006)
            writer.tape("evaluator.1", STEADY_T + t_s + 0.05, "eval", merges=merges, loss=round(loss, 4))
        t_s += ROUND_S * draws.uniform(0.9, 1.1)


def _write_steps(writer: Writer, learner: Learner, until_s: float, draws: random.Random, chaos: bool) -> None:
    while learner.next_step_t < STEADY_T + until_s:
        t_s = learner.next_step_t - STEADY_T
        learner.next_step_t += STEP_S * draws.uniform(0.85, 1.15)
        if not _alive(learner, t_s, chaos):
            continue
        if chaos and learner.name == "learner-1" and t_s >= REJOIN_S and learner.incarnation == 1:
            learner.incarnation, learner.tokens, learner.merged_at = 2, 0, {}
        learner.step += 1
        learner.tokens += TOKENS_PER_STEP
        loss = 1.7 + 3.0 * math.exp(-learner.step / 160) + draws.gauss(0, 0.05)
        writer.tape(
            f"{learner.name}.{learner.incarnation}",
            learner.next_step_t,
            "step",
            incarnation=learner.incarnation,
            step=learner.step,
            tokens=learner.tokens,
            loss=round(loss, 4),
            step_s=STEP_S,
        )


def _write_merge(writer: Writer, alive: list[Learner], merges: int, t: float) -> None:
    fragment, version = (merges - 1) % FRAGMENTS, (merges - 1) // FRAGMENTS + 1
    contributions = []
    for learner in alive:
        lo = learner.merged_at.get(fragment, 0)
        learner.merged_at[fragment] = learner.tokens
        contributions.append(
            {
                "learner": learner.name,
                "incarnation": learner.incarnation,
                "id": f"{learner.name}.{learner.incarnation}.{merges}",
                "base": version - 1,
                "lo": lo,
                "hi": learner.tokens,
                "steps": 16,
                "tokens": learner.tokens - lo,
            }
        )
    writer.tape("syncer.1", t - 0.06, "round", round=merges, fragment=fragment, attempt=1)
    digest = f"{merges:016x}"
    writer.tape(
        "syncer.1",
        t,
        "merge",
        round=merges,
        fragment=fragment,
        version=version,
        h_in=f"{merges - 8:016x}",
        h_out=digest,
        contributions=contributions,
        grace_s=0.02,
    )
    writer.tape("syncer.1", t + 0.001, "publish", fragment=fragment, version=version, digest=digest)
    for learner in alive:
        writer.tape(
            f"{learner.name}.{learner.incarnation}",
            t + 0.04,
            "adopt",
            incarnation=learner.incarnation,
            fragment=fragment,
            version=version,
            digest=digest,
            lo=0,
            at=learner.tokens,
            cause="broadcast",
        )


def _write_end(writer: Writer) -> None:
    t = STEADY_T + TRAIN_S + 0.5
    for index, role in enumerate(["learner-0", "learner-1", "learner-2", "learner-3", "evaluator", "syncer"]):
        writer.note(t + 0.1 * index, "exit", role=role, pid=4100 + index, start=1, code=0, signal=None, expected=True)
    writer.note(t + 0.9, "end", outcome="finished", why="all rounds done", residue=[])


def result(probe: str, id: str, detail: str, verdict: Verdict = Verdict.PASS, **rest: Any) -> ProbeResult:
    """A row of the probe table as `judge` gives it."""
    rest.setdefault("statement", f"What {probe} demands of a run.")
    return ProbeResult(
        probe=probe,
        id=id,
        verdict=verdict,
        detail=detail,
        statement=rest["statement"],
        measured=rest.get("measured"),
        tolerance=rest.get("tolerance"),
        unit=rest.get("unit", ""),
        evidence=rest.get("evidence", ()),
    )


def sample_results() -> list[ProbeResult]:
    """Probe results that fit the sample run."""
    none = {"measured": 0.0, "tolerance": 0.0, "unit": "violations"}
    return [
        result("version-chain", "S1", "413 merges of 8 fragments form unbroken chains.", **none),
        result("no-fork", "S2", "413 versions were seen 2101 times, each with one digest.", **none),
        result("distinct-quorum", "S3", "413 merges each had at least K = 1 distinct learners.", **none),
        result("fencing", "S4", "1574 merged updates were of the newest incarnation of their learner.", **none),
        result("tokens-once", "S6", "1574 token intervals are disjoint.", **none),
        result("replay", "S11", "All 413 versions were reproduced bit for bit.", **none),
        result(
            "rejoin",
            "L2",
            "learner-1 was ready 5.6 s after it was lost, and in a merge after 5.7 s.",
            measured=5.713,
            tolerance=20.0,
            unit="s",
            evidence=(2070, 2500, 2560),
        ),
        result("availability", "L6", "The longest gap was 0.16 s.", measured=0.165, tolerance=2.1, unit="s"),
        result("isolation", "L8", "learner-0 kept 99 % of its pace.", measured=99.0, tolerance=50.0, unit="%"),
        result("loss", "loss", "Final loss 1.631, control 1.626: +0.35 %.", measured=0.35, tolerance=6.0, unit="%"),
        result("goodput", "goodput", "Merged 92 % of the control run's.", measured=92.1, tolerance=75.2, unit="%"),
        result("restored", "S16", "The history has no record of kind snapshot; this probe needs it.", Verdict.NOT_RUN),
    ]


FIDELITY = {
    "process.kill": (
        "A learner process that ends at once: an out-of-memory kill, a preempted instance, a crash in native code.",
        "A lost accelerator or host: the page cache and the network card survive here, and a restart finds its files.",
    ),
    "process.pause": (
        "A process that makes no progress but keeps its connections: a hung driver, a live migration.",
        "A slow process: a paused one does nothing at all, and then everything.",
    ),
    "link.bandwidth": (
        "A congested or throttled uplink between sites.",
        "RDMA, packet loss, or TCP at long round trips: bytes are held back above TCP, on one machine.",
    ),
}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_sample_run(folder / "run")
    write_sample_run(folder / "control", chaos=False)
