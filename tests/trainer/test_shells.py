"""The shells around the state machines, in this process: what they do when the world outside them fails."""

from __future__ import annotations

import asyncio
import errno
import queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.harness import toy_config
from trainer import shell_learner, shell_syncer
from trainer.config import ConfigError, Timing
from trainer.durable import Store
from trainer.effects import Closed, Event, Opened, Received, Send, Stepped
from trainer.fragments import digest_of, fragments_of, initial_theta
from trainer.launch import TapeReader
from trainer.learner import Learner
from trainer.messages import Cause, Fragment, Hello, Welcome
from trainer.model import train_step
from trainer.options import RoleOptions
from trainer.shell_syncer import _Shell
from trainer.syncer import Syncer
from trainer.tape import Tape
from trainer.text import Corpus

SHELL_DEADLINE_S = 20.0


def syncer_shell(folder: Path) -> _Shell:
    options = RoleOptions(toy_config(), folder, folder / "tape.jsonl", 1, "run")
    fragments = fragments_of(options.config.model, options.config.protocol.P)
    store = Store(folder, fragments, 0)
    state, _ = store.load(1)
    return _Shell(options, Syncer(options.config, fragments, state, "run"), store, Tape(options.tape, "syncer", 0.0))


def served(shell: _Shell, *events: Received) -> int:
    """The exit code of a shell to which these events happen."""

    async def serve() -> int:
        for event in events:
            asyncio.get_running_loop().call_soon(shell.dispatch, event)
        async with asyncio.timeout(SHELL_DEADLINE_S):
            return await shell.serve(shell_syncer._listen(shell.config))

    return asyncio.run(serve())


def hello(shell: _Shell, learner: str = "learner-0") -> Hello:
    return Hello("run", learner, "process-1", 0, shell.config.digest())


def no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("place", ["members", "tape"])
def test_a_syncer_that_cannot_write_ends_with_1_and_tells_nobody_what_is_not_durable(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = syncer_shell(tmp_path)
    carried: list[object] = []
    carry_out = shell._carry_out
    monkeypatch.setattr(shell, "_carry_out", lambda effect: (carry_out(effect), carried.append(effect)))
    monkeypatch.setattr(*((shell.store, "persist_members") if place == "members" else (shell.tape, "write")), no_space)
    assert served(shell, Received(1, hello(shell)), Received(2, hello(shell, "learner-1"))) == 1
    assert not any(isinstance(effect, Send) for effect in carried)


def test_a_machine_that_raises_ends_the_syncer_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = syncer_shell(tmp_path)

    def raises(*_: Any) -> None:
        raise ValueError("a broken rule")

    monkeypatch.setattr(shell.machine, "handle", raises)
    assert served(shell) == 1


# ---- learner


class FakeNetwork:
    """Stands for a network thread that never gets a connection, or has died."""

    def __init__(self, alive: bool = True) -> None:
        self.alive = alive
        self.inbox: queue.Queue[Event] = queue.Queue()
        self.sent: list[object] = []

    def is_alive(self) -> bool:
        return self.alive

    def send(self, _connection: int, message: object, _payload: bytes) -> None:
        self.sent.append(message)

    def close(self, _connection: int, _why: str) -> None:
        pass


class FakeClock:
    """Every look at it takes `turn_s`."""

    def __init__(self, turn_s: float) -> None:
        self.turn_s, self.now = turn_s, 1000.0

    def monotonic(self) -> float:
        self.now += self.turn_s
        return self.now


def trainer_of(network: FakeNetwork, folder: Path) -> shell_learner._Trainer:
    config = toy_config()
    machine = Learner(config, fragments_of(config.model, config.protocol.P), "learner-0", "run", "process-1")
    tape = Tape(folder / "learner.jsonl", "learner-0", 0.0)
    return shell_learner._Trainer(config, machine, network, tape, Corpus(config, 1), 0)  # type: ignore[arg-type]


def joined(trainer: shell_learner._Trainer, connection: int = 1) -> None:
    """Hand the learner everything that a syncer would send to take it in."""
    trainer._dispatch(Opened(connection))
    fragments = trainer.machine.fragments
    trainer._dispatch(Received(connection, Welcome(connection, [0] * len(fragments), 0)))
    for fragment in fragments:
        trainer._dispatch(fragment_event(connection, initial_theta(fragment, 1), fragment.index, "join"))


def fragment_event(connection: int, theta: np.ndarray, index: int, cause: Cause) -> Received:
    message = Fragment(index, 0, digest_of(theta), cause, overwrite=cause == "reject")
    return Received(connection, message, theta.tobytes())


@pytest.mark.parametrize("had_state", [False, True])
def test_a_learner_that_no_syncer_takes_in_ends_with_1_and_says_which_deadline(
    had_state: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = FakeNetwork()
    trainer = trainer_of(network, tmp_path)
    if had_state:
        joined(trainer)
        trainer._dispatch(Closed(1, "closed by the peer"))
    monkeypatch.setattr(shell_learner, "time", FakeClock(turn_s=2.0))
    monkeypatch.setattr(shell_learner, "FIRST_STATE_POLL_S", 0.0)
    assert trainer.run([]) == 1
    assert ("timing.rejoin_s" if had_state else "timing.first_join_s") in caplog.text


def test_a_learner_without_its_network_thread_ends_with_1(tmp_path: Path) -> None:
    assert trainer_of(FakeNetwork(alive=False), tmp_path).run([]) == 1


@pytest.mark.parametrize("text", ["127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1", ":80"])
def test_a_malformed_address_in_the_environment_is_wrong_usage(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINER_SYNCER", text)
    with pytest.raises(ConfigError, match=r"TRAINER_SYNCER.*expected host:port"):
        shell_learner.run(RoleOptions(toy_config(), tmp_path, None, 1, "run"), "learner-0", 0)


@pytest.mark.parametrize("content", [b"\xff\xfe:1", b"127.0.0.1:99999", b"x" * 300 + b":80", b""])
def test_an_address_file_that_is_no_address_is_tried_again_and_ends_no_thread(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "syncer.address").write_bytes(content)
    network = shell_learner.Network(tmp_path, Timing(), 1000)
    assert asyncio.run(network._connect()) is None


def test_moments_that_are_not_finite_do_not_outlive_the_repair_of_the_parameters(tmp_path: Path) -> None:
    trainer = trainer_of(FakeNetwork(), tmp_path)
    joined(trainer)
    machine = trainer.machine
    machine.theta[machine.fragments[0].slice] = np.nan
    step(trainer)
    assert not np.isfinite(machine.theta).any()
    trainer._dispatch(fragment_event(1, initial_theta(machine.fragments[0], 1), 0, "reject"))
    step(trainer)
    assert machine.state == "detached"  # the other fragments are bad too: it joins anew
    joined(trainer, connection=2)
    step(trainer)
    assert machine.state == "ready"
    step(trainer)
    assert np.isfinite(machine.theta).all()
    kinds = TapeReader(tmp_path / "learner.jsonl").new()
    assert [record["optimiser"] for record in kinds if record["kind"] == "ready"] == ["fresh", "fresh"]


def test_a_copy_that_was_found_bad_is_replaced_together_with_its_moments(tmp_path: Path) -> None:
    trainer = trainer_of(FakeNetwork(), tmp_path)
    joined(trainer)
    step(trainer)
    assert trainer.optimiser.state
    trainer._dispatch(fragment_event(1, initial_theta(trainer.machine.fragments[0], 1), 0, "reject"))
    step(trainer)  # trains, and takes what has arrived at the step's end
    assert not trainer.optimiser.state
    adopted = [record for record in TapeReader(tmp_path / "learner.jsonl").new() if record["kind"] == "adopt"]
    assert (adopted[-1]["cause"], adopted[-1]["optimiser"]) == ("reject", "fresh")


def step(trainer: shell_learner._Trainer) -> None:
    batch = trainer.corpus.batch_for(0, trainer.machine.cursor)
    loss = train_step(trainer.transformer, trainer.optimiser, batch)
    trainer._dispatch(Stepped(loss, 0.01))
