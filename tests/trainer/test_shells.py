"""The shells around the state machines, in this process: what they do when the world outside them fails."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.harness import toy_config
from trainer import shell_syncer
from trainer.durable import Store
from trainer.effects import Received, Send
from trainer.fragments import fragments_of
from trainer.messages import Hello
from trainer.options import RoleOptions
from trainer.shell_syncer import _Shell
from trainer.syncer import Syncer
from trainer.tape import Tape

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
