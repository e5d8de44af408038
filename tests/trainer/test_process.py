"""Real processes, real TCP, real text: the smoke job of faults/targets, without any chaos and with a little."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainer.config import load
from trainer.launch import Run, TapeReader

pytestmark = pytest.mark.process

SMOKE = Path(__file__).parents[2] / "faults" / "targets" / "smoke.config.toml"
DEADLINE_S = 90.0
"""For any one event; a loaded machine starts five processes with torch in about 25 s."""
LOOK_S = 0.02


class Watch:
    """Waits for records of a run's tapes, with a deadline."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.records: dict[str, list[dict[str, Any]]] = {}
        self._readers: dict[Path, TapeReader] = {}

    def look(self) -> None:
        for path in (self.run.folder / "tape").iterdir():
            reader = self._readers.setdefault(path, TapeReader(path))
            self.records.setdefault(path.name.split(".")[0], []).extend(reader.new())

    def of(self, role: str, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records.get(role, []) if record["kind"] == kind]

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + DEADLINE_S
        while True:
            self.look()
            if condition():
                return
            logs = {role: self.run.log_tail(role) for role in self.run.starts}
            assert time.monotonic() < give_up_at, f"{what} did not happen in {DEADLINE_S} s; logs: {logs}"
            select.select([], [], [], LOOK_S)

    def merges(self) -> int:
        return len(self.of("syncer", "merge"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Watch]]:
    runs: list[Run] = []

    def begin(*overrides: str, roles: list[str] | None = None) -> Watch:
        run = Run(tmp_path / "run", load(SMOKE, overrides), seed=1)
        runs.append(run)
        for role in roles or run.roles:
            run.start(role)
        return Watch(run)

    yield begin
    for run in runs:
        for process in run.processes.values():
            process.send_signal(signal.SIGCONT)
        run.stop()


def replayed(run_dir: Path) -> dict[tuple[int, int], str]:
    command = [sys.executable, "-P", "-m", "trainer", "replay", "--run", str(run_dir)]
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=True)
    lines = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    return {(line["fragment"], line["version"]): line["digest"] for line in lines}


def told(watch: Watch) -> dict[tuple[int, int], str]:
    init = {(r["fragment"], 0): r["digest"] for r in watch.of("syncer", "init")}
    return init | {(r["fragment"], r["version"]): r["h_out"] for r in watch.of("syncer", "merge")}


def test_python_m_trainer_trains_and_its_replay_equals_its_tape_bit_for_bit(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-P", "-m", "trainer", "--config", str(SMOKE), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, timeout=2 * DEADLINE_S, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "final loss of the global parameters" in done.stdout
    watch = Watch(Run(out, load(SMOKE), seed=1))
    watch.look()
    evals = watch.of("evaluator", "eval")
    assert evals[-1]["merges"] == load(SMOKE).rounds_total
    assert evals[-1]["loss"] < 0.6 * evals[0]["loss"]
    assert replayed(out) == told(watch)
    assert {role: watch.of(role, "stop")[0]["reason"] for role in watch.run.roles} == dict.fromkeys(
        watch.run.roles, "complete"
    )


def test_a_killed_learner_rejoins_and_the_others_merge_on(start: Callable[..., Watch]) -> None:
    watch = start("task.steps=1600")
    watch.until("the fourth learner's step", lambda: all(watch.of(f"learner-{i}", "step") for i in range(4)))
    victim = watch.run.processes["learner-1"]
    victim.kill()
    victim.wait()
    merges = watch.merges()
    watch.run.start("learner-1")

    def contributed_again() -> bool:
        parts = [part for record in watch.of("syncer", "merge") for part in record["contributions"]]
        return any(part["learner"] == "learner-1" and part["incarnation"] == 2 for part in parts)

    watch.until("a contribution of incarnation 2", contributed_again)
    assert watch.merges() > merges
    ready = watch.of("learner-1", "ready")
    assert [(record["incarnation"], record["optimiser"]) for record in ready] == [(1, "fresh"), (2, "fresh")]


def test_a_killed_syncer_goes_on_from_its_last_merge_and_the_history_is_one_chain(start: Callable[..., Watch]) -> None:
    watch = start("task.steps=480")
    watch.until("twenty merges", lambda: watch.merges() >= 20)
    victim = watch.run.processes["syncer"]
    victim.kill()
    victim.wait()
    watch.look()
    before = told(watch)

    def stepped_alone() -> bool:
        return any(watch.of(f"learner-{index}", "detached-step") for index in range(4))

    # Before the syncer comes back: a fast restart may fall between two steps, and would show nothing.
    watch.until("a learner's step while the syncer is away", stepped_alone)
    watch.run.start("syncer")
    watch.until("the end", lambda: watch.run.processes["syncer"].poll() is not None)
    watch.look()
    assert watch.run.processes["syncer"].returncode == 0
    restored = watch.of("syncer", "restore")[0]
    for fragment, (version, digest) in enumerate(zip(restored["versions"], restored["digests"], strict=True)):
        assert told(watch)[fragment, version] == digest
        assert version >= max(v for f, v in before if f == fragment)
    versions = sorted((r["fragment"], r["version"]) for r in watch.of("syncer", "merge"))
    assert versions == [(f, v) for f in range(4) for v in range(1, 31)]
    assert replayed(watch.run.folder) == told(watch)


def test_garbage_and_strangers_on_the_syncers_port_change_nothing(start: Callable[..., Watch]) -> None:
    watch = start("task.steps=64000", "timing.hello_s=1.5", roles=["syncer"])
    watch.until("the address", lambda: (watch.run.state / "syncer.address").exists())
    host, port = (watch.run.state / "syncer.address").read_text().strip().split(":")
    source = random.Random(7)
    strangers = [socket.create_connection((host, int(port)), timeout=5) for _ in range(60)]
    for stranger in strangers[1:]:
        stranger.sendall(source.randbytes(source.randint(1, 4000)))
    watch.until("as many frame errors", lambda: len(watch.of("syncer", "frame-error")) >= 60)
    whys = {record["why"] for record in watch.of("syncer", "frame-error")}
    assert any("no hello" in why for why in whys)  # the first said nothing at all
    for stranger in strangers:
        stranger.settimeout(5)
        assert not _reads_anything(stranger)
        stranger.close()
    watch.run.start("learner-0")
    watch.run.start("learner-1")
    watch.until("a merge", lambda: watch.merges() >= 1)
    assert watch.run.processes["syncer"].poll() is None


def _reads_anything(stranger: socket.socket) -> bool:
    try:
        return bool(stranger.recv(1))
    except ConnectionError:
        return False


def test_a_learner_may_start_before_the_syncer_and_every_role_obeys_sigterm(start: Callable[..., Watch]) -> None:
    watch = start("task.steps=64000", roles=["learner-0", "learner-1", "evaluator"])
    watch.until("their start", lambda: all(watch.of(r, "start") for r in ("learner-0", "learner-1", "evaluator")))
    watch.run.start("syncer")
    watch.until("merges", lambda: watch.merges() >= 4 and bool(watch.of("evaluator", "eval")))
    for process in watch.run.processes.values():
        process.terminate()
    codes = {role: process.wait(timeout=DEADLINE_S) for role, process in watch.run.processes.items()}
    assert codes == dict.fromkeys(codes, 0)
    watch.look()
    assert {role for role in codes if watch.of(role, "stop")} == set(codes)


def test_a_paused_learner_costs_the_others_little_and_comes_back(start: Callable[..., Watch]) -> None:
    watch = start("task.steps=64000", "timing.silent_s=1.2")
    watch.until("steps of all", lambda: all(watch.of(f"learner-{i}", "step") for i in range(4)))
    process = watch.run.processes["learner-2"]
    os.kill(process.pid, signal.SIGSTOP)
    at = watch.merges()
    watch.until("thirty more merges", lambda: watch.merges() >= at + 30)
    os.kill(process.pid, signal.SIGCONT)
    resumed = watch.merges()

    def merged_since() -> bool:
        return any(
            part["learner"] == "learner-2"
            for record in watch.of("syncer", "merge")[resumed + 4 :]
            for part in record["contributions"]
        )

    watch.until("a contribution after the pause", merged_since)
    assert {record["incarnation"] for record in watch.of("learner-2", "ready")} == {1}
    assert not watch.of("learner-2", "disconnect")


def test_a_learner_of_another_configuration_is_refused_and_ends_with_an_error(start: Callable[..., Watch]) -> None:
    watch = start(roles=["syncer"])
    watch.until("the address", lambda: (watch.run.state / "syncer.address").exists())
    path = watch.run.config_path
    path.write_text(path.read_text().replace("learning_rate = 0.005", "learning_rate = 0.5"), encoding="utf-8")
    learner = watch.run.start("learner-0")
    assert learner.wait(timeout=DEADLINE_S) == 1
    assert "configuration differs" in watch.run.log_tail("learner-0")
