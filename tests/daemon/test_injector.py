"""An injection is undone whatever its fault does, and its intent is on disk before anything happens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from chaoskit.daemon.injector import UNDO_TRIES_MAX, Injector
from chaoskit.daemon.ledger import Ledger, read_ledger
from chaoskit.faults import FAULTS, Evidence, Fault, Landing, NotApplicableError, Undoing, World
from chaoskit.journal import AppendLog, Record, read_log
from chaoskit.plan import FaultSpec, TimeTrigger
from chaoskit.schedule import Injection


class Scripted(Fault):
    """Does what the test says, and notes what was called and what the ledger knew then."""

    kind = "test.scripted"
    acts_on = "role"
    stands_for = "nothing"
    does_not_certify = "anything"
    downs_role = True
    script: dict[str, Exception | bool]
    calls: list[str]
    ledger_at_apply: list[str]
    run_dir: Path

    def _do(self, what: str) -> bool:
        type(self).calls.append(what)
        answer = type(self).script.get(what, True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def apply(self, world: World) -> Evidence:
        type(self).ledger_at_apply = list(read_ledger(self.run_dir).open_injections)
        self._do("apply")
        return {}

    async def landed(self, world: World) -> Landing:
        return Landing(self._do("landed"))

    async def undo(self, world: World) -> Undoing:
        return Undoing(self._do("undo"))


class Outcome:
    def __init__(self, injector: Injector, journal: list[Record], run_dir: Path) -> None:
        self.injector = injector
        self.kinds = [record.kind for record in journal]
        self.journal = journal
        self.open = read_ledger(run_dir).open_injections


@pytest.fixture
def inject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """inject(script) runs one injection to its end."""
    monkeypatch.setitem(FAULTS, Scripted.kind, Scripted)

    def run(script: dict[str, Exception | bool]) -> Outcome:
        Scripted.script, Scripted.calls, Scripted.run_dir = script, [], tmp_path
        return asyncio.run(_inject(tmp_path))

    return run


async def _inject(run_dir: Path) -> Outcome:
    ledger = Ledger(run_dir)
    journal = AppendLog(run_dir / "journal.jsonl")
    injector = Injector(cast(World, None), ledger, journal)
    spec = FaultSpec("f", Scripted.kind, "role", True, ("a",), ("a",), TimeTrigger(0, "0 s"), 60.0, {}, 1)
    injector.start(Injection("f#1", spec, ("a",), "0 s", 60.0), due_t=0.0)
    injector.undo_soon()
    await injector.undo_all()
    assert not injector.busy
    assert injector.ended == {"f#1"}
    assert injector.active() == []
    return Outcome(injector, read_log(journal.path)[0], run_dir)


def test_the_intent_is_on_disk_before_the_fault_is_applied(inject: Any) -> None:
    outcome = inject({})
    assert Scripted.ledger_at_apply == ["f#1"]
    assert outcome.kinds == ["intent", "applied", "landed", "undo", "undone"]
    assert outcome.open == {}
    assert outcome.injector.residue == []
    assert outcome.injector.crashes == []


@pytest.mark.parametrize("step", ["apply", "landed"])
def test_a_fault_that_raises_is_undone_all_the_same_and_poisons_the_run(inject: Any, step: str) -> None:
    outcome = inject({step: RuntimeError("boom")})
    assert Scripted.calls[-1] == "undo"
    assert outcome.injector.crashes == ["f#1: RuntimeError: boom"]
    assert outcome.open == {}


def test_an_undo_that_raises_is_tried_again_and_left_open_as_a_residue(inject: Any) -> None:
    outcome = inject({"undo": RuntimeError("boom")})
    assert Scripted.calls.count("undo") == UNDO_TRIES_MAX
    assert len(outcome.injector.residue) == 1
    assert "boom" in outcome.injector.residue[0]
    assert set(outcome.open) == {"f#1"}


def test_an_undo_that_cannot_be_verified_is_a_residue(inject: Any) -> None:
    outcome = inject({"undo": False})
    assert len(outcome.injector.residue) == 1
    assert set(outcome.open) == {"f#1"}
    assert not outcome.journal[-1]["clean"]


def test_a_fault_that_did_not_land_is_said_and_undone(inject: Any) -> None:
    outcome = inject({"landed": False})
    (landed,) = [record for record in outcome.journal if record.kind == "landed"]
    assert landed["landed"] is False
    assert outcome.open == {}


def test_a_fault_that_cannot_be_applied_is_skipped_with_its_reason(inject: Any) -> None:
    outcome = inject({"apply": NotApplicableError("a is not alive")})
    (skipped,) = [record for record in outcome.journal if record.kind == "skipped"]
    assert skipped["why"] == "a is not alive"
    assert outcome.injector.crashes == []
    assert outcome.open == {}
