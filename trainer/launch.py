"""`python -m trainer` alone: a syncer, an evaluator and M learners as processes on this machine, and a line of
progress.

The run folder has the same shape as a run of chaoskit: tape/ROLE.1.jsonl, logs/ROLE.1.log, target/ (the state folder).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from trainer.config import Config, ConfigError
from trainer.fragments import fragments_of
from trainer.text import Corpus

POLL_S = 0.1
LEAVE_S = 10.0
"""How long learners and evaluator may take to end after the syncer has."""
TERMINATE_S = 3.0
"""How long a role may take to obey SIGTERM before it is killed."""


@dataclass
class Run:
    """The processes of one run; usable by tests to start, kill and restart single roles."""

    folder: Path
    config: Config
    seed: int
    run_id: str = "launch"
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tape", "logs", "target"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.config_path.write_text(to_toml(self.config), encoding="utf-8")

    @property
    def config_path(self) -> Path:
        return self.folder / "config.toml"

    @property
    def state(self) -> Path:
        return self.folder / "target"

    @property
    def roles(self) -> list[str]:
        return ["syncer", "evaluator", *(f"learner-{index}" for index in range(self.config.protocol.M))]

    def start(self, role: str) -> subprocess.Popen[bytes]:
        """Start a role, or start it again; every process has its own tape and log."""
        number = self.starts[role] = self.starts.get(role, 0) + 1
        kind = role.partition("-")[0]
        command = [
            sys.executable, "-P", "-m", "trainer", kind, "--config", str(self.config_path), "--state", str(self.state),
            "--tape", str(self.tape(role, number)), "--seed", str(self.seed), "--run-id", self.run_id,
        ]  # fmt: skip
        if kind == "learner":
            command += ["--learner", role, "--index", role.partition("-")[2]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRAINER_DIE_WITH_PARENT": "1"}
        environment.pop("TRAINER_SYNCER", None)
        with (self.folder / "logs" / f"{role}.{number}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self.processes[role] = process
        return process

    def tape(self, role: str, number: int = 1) -> Path:
        return self.folder / "tape" / f"{role}.{number}.jsonl"

    def log_tail(self, role: str, lines: int = 5) -> str:
        path = self.folder / "logs" / f"{role}.{self.starts[role]}.log"
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def learners_alive(self) -> int:
        return sum(process.poll() is None for role, process in self.processes.items() if role.startswith("learner-"))

    def stop(self) -> None:
        """SIGTERM to all, SIGKILL to those that do not obey; returns when all are gone."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        give_up_at = time.monotonic() + TERMINATE_S
        for process in self.processes.values():
            try:
                process.wait(timeout=max(0.0, give_up_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class TapeReader:
    """The records that have been added to one tape since the last look."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def new(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [msgspec.json.decode(line) for line in whole.splitlines()]


def to_toml(config: Config) -> str:
    """The configuration as the TOML that `config.load` reads."""
    lines: list[str] = []
    for section, content in msgspec.to_builtins(config).items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in content.items()]
    return "\n".join(lines) + "\n"


def run(config: Config, *, out: Path | None, seed: int, console: Console | None = None) -> int:
    """Train once and say the final loss of the global parameters. Returns 0, 1 when a role failed, 130 on Ctrl-C.

    Raises:
        ConfigError: before anything is started: the text is too short, the model cannot be cut, or `out` holds
            something already.
    """
    console = console or Console()
    Corpus(config, seed)
    fragments_of(config.model, config.protocol.P)
    _refuse_to_mix(out)
    with _folder(out) as folder:
        training = Run(folder, config, seed)

        def on_signal(number: int, _frame: FrameType | None) -> None:
            raise KeyboardInterrupt(signal.Signals(number).name)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        try:
            for role in training.roles:
                training.start(role)
            code, loss = _follow(training, console)
        except KeyboardInterrupt as interrupt:
            console.print(f"interrupted ({interrupt}); all roles are told to stop")
            return 130
        finally:
            training.stop()
        if loss is not None:
            console.print(f"final loss of the global parameters: {loss:.4f} nats per byte")
        if out:
            console.print(f"run folder: {out}")
        return code


def _refuse_to_mix(out: Path | None) -> None:
    """A syncer goes on from what is in its folder: started in a finished run's, it would train nothing."""
    if out and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: not an empty folder; name one that does not exist yet, or delete this one")


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out:
        out.mkdir(parents=True, exist_ok=True)
        yield out.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="trainer-") as name:
        yield Path(name)


def _follow(training: Run, console: Console) -> tuple[int, float | None]:
    """Show progress until the syncer has ended; (exit code, final loss)."""
    syncer, evaluator = TapeReader(training.tape("syncer")), TapeReader(training.tape("evaluator"))
    loss: float | None = None
    reported: set[str] = set()
    total, merges = training.config.rounds_total, 0
    about, done = TextColumn("{task.description}"), TextColumn("{task.completed}/{task.total} merges")
    with Progress(about, BarColumn(), done, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("starting", total=total)
        while True:
            ended = training.processes["syncer"].poll() is not None
            alive = training.learners_alive()
            merges += sum(record["kind"] == "merge" for record in syncer.new())
            progress.update(task, completed=merges)
            for record in evaluator.new():
                if record["kind"] == "eval":
                    loss = record["loss"]
                    progress.update(task, description=f"loss {loss:.3f}")
            for role, process in training.processes.items():
                if role != "syncer" and process.poll() not in (None, 0) and role not in reported:
                    reported.add(role)
                    console.print(f"{role} ended with {process.returncode}:\n{training.log_tail(role)}")
            if ended:
                break
            # Learners end before the syncer, but never before the last merge is on its tape.
            if alive < training.config.protocol.K and merges < total:
                console.print(
                    f"{alive} learners are left, protocol.K = {training.config.protocol.K}: no merge can come"
                )
                return 1, loss
            time.sleep(POLL_S)
    code = training.processes["syncer"].returncode
    if code != 0:
        console.print(f"the syncer ended with {code}:\n{training.log_tail('syncer')}")
        return 1, loss
    give_up_at = time.monotonic() + LEAVE_S
    while time.monotonic() < give_up_at and any(p.poll() is None for p in training.processes.values()):
        time.sleep(POLL_S)
    for record in evaluator.new():
        if record["kind"] == "eval":
            loss = record["loss"]
    return (1 if reported else 0), loss
