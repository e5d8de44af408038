"""Every check of the trainer is taken away once, by monkeypatch, and something must notice. The trainer itself has no
switch for any of this."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.trainer.harness import World, is_broadcast, toy_config
from tests.trainer.rules import broken
from trainer import membership, syncer
from trainer.acceptance import CHECKS
from trainer.effects import Received, Record
from trainer.fragments import digest_of
from trainer.learner import Counters, Learner
from trainer.membership import Members, Session
from trainer.merge import Contribution
from trainer.messages import Hello, Ping, Push, Welcome
from trainer.syncer import Syncer


def waiting_for_a_push() -> tuple[World, Push, bytes]:
    """A world in which learner-1's good answer to a pull is on its way, and that answer."""
    world = World(toy_config(steps=160))
    world.run_until(lambda: world.merges() >= 12)
    held: list[tuple[Push, bytes]] = []
    send = world._send

    def keep(pipe: Any, link: str, message: Any, payload: bytes) -> None:
        if isinstance(message, Push) and link == "learner-1->syncer" and not held:
            held.append((message, payload))
            return
        send(pipe, link, message, payload)

    world._send = keep  # type: ignore[method-assign]
    world.run_until(lambda: bool(held))
    return world, *held[0]


def verdict(world: World, push: Push, payload: bytes, connection: int | None = None) -> str:
    """ "accept", or why not."""
    assert world.syncer is not None
    number = world.pipe_of("learner-1").number if connection is None else connection
    for effect in world.syncer.handle(world.now, Received(number, push, payload)):
        if isinstance(effect, Record) and effect.kind in ("accept", "reject"):
            return str(effect.fields.get("why", "accept"))
    return "nothing"


def _bad_push(name: str, world: World, push: Push, payload: bytes) -> tuple[Push, bytes]:
    """The same push, spoilt so that the check `name` is the first to object."""
    assert world.syncer is not None
    sessions = world.syncer.members.sessions
    session = sessions["learner-1"]
    change: dict[str, Any] = {}
    match name:
        case "unknown-learner":
            del sessions["learner-1"]
        case "stale-incarnation":
            change = {"incarnation": push.incarnation - 1}
        case "not-ready":
            session.ready = False
        case "duplicate":
            session.pushes_seen[push.fragment] = 10_000
        case "late":
            change = {"round": 1}
        case "wrong-round":
            change = {"round": push.round + 4}
        case "wrong-base":
            change = {"base": push.base + 1}
        case "too-stale":
            change = {"base": push.base - 2}
        case "tokens-merged":
            change = {"lo": 0}
        case "no-work":
            change = {"steps": 0}
        case "bad-digest":
            payload = bytes(reversed(payload))
        case "not-finite":
            values = np.frombuffer(payload, dtype="<f4").copy()
            values[0] = np.inf
            payload, change = values.tobytes(), {"digest": digest_of(values)}
    return msgspec.structs.replace(push, **change), payload


def test_a_good_push_passes_every_check() -> None:
    world, push, payload = waiting_for_a_push()
    assert verdict(world, push, payload) == "accept"


@pytest.mark.parametrize("name", CHECKS)
def test_each_check_is_the_one_that_refuses_its_own_bad_push(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, push, payload = waiting_for_a_push()
    assert verdict(world, *_bad_push(name, world, push, payload)) == name
    world, push, payload = waiting_for_a_push()
    monkeypatch.delitem(CHECKS, name)
    assert verdict(world, *_bad_push(name, world, push, payload)) != name


def test_a_merge_that_would_not_be_finite_is_not_committed_and_the_round_starts_again() -> None:
    world = World(toy_config(M=1, K=1))
    world.run_until(lambda: world.merges() >= 8)
    assert world.syncer is not None
    theta = world.syncer.state.theta
    theta[0][:] = -3e38  # finite, and so is every update: their difference is too long for float32
    process = world.processes["learner-0"]
    process.machine.theta[process.machine.fragments[0].slice] = 3e38
    world.run_until(lambda: any(r["why"] == "not-finite" for r in world.records("reject")))
    assert max(r["attempt"] for r in world.records("round") if r["fragment"] == 0) == 2
    assert np.isfinite(theta[0]).all()
    world.run()
    assert all(np.isfinite(values).all() for values in world.durable_state.theta)


def test_a_payload_of_the_wrong_size_is_refused() -> None:
    world, push, payload = waiting_for_a_push()
    assert verdict(world, push, payload[:-4]) == "bad-digest"


def test_a_refused_push_is_followed_by_the_current_fragment() -> None:
    world, push, _payload = waiting_for_a_push()
    values = np.full(5, np.nan, dtype="<f4")
    bad = msgspec.structs.replace(push, digest=digest_of(values))
    assert verdict(world, bad, values.tobytes()) == "not-finite"
    effects = world.syncer.handle(world.now, Received(world.pipe_of("learner-1").number, bad, values.tobytes()))  # type: ignore[union-attr]
    sent = [effect for effect in effects if getattr(getattr(effect, "message", None), "cause", "") == "reject"]
    assert sent


# ---- mutants: one rule of the protocol gone, one rule of the history broken


def lose_a_broadcast(world: World) -> World:
    """learner-1 never sees one version of fragment 1 until it is sent again, and is pulled meanwhile."""
    world.lost = lambda link, m: link == "syncer->learner-1" and is_broadcast(m, 1)
    world.run_until(lambda: world.merges() >= 16)
    world.lost = lambda _link, _message: False
    return world.run()


def kill_and_rejoin(world: World) -> World:
    world.run_until(lambda: world.merges() >= 8)
    world.kill("learner-1")
    world.start_learner("learner-1")
    return world.run()


def lose_an_answer_to_a_death(world: World) -> World:
    """learner-0 answers and dies; learner-2's answer comes when learner-0 has a successor."""
    world.run_until(lambda: world.merges() >= 8)
    accepted = len(world.records("accept"))
    world.delay_s = lambda link, m: 0.08 if isinstance(m, Push) and link.startswith("learner-2") else 0.001
    world.run_until(lambda: len(world.records("accept")) > accepted + 1)
    world.kill("learner-0")
    world.start_learner("learner-0")
    return world.run()


def restart_the_syncer(world: World) -> World:
    world.run_until(lambda: world.merges() >= 10)
    world.kill("syncer")
    world.start_syncer()
    return world.run()


def same_incarnation_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "next_incarnation", lambda newest, _hello: max(newest, 1))


def counters_kept_on_adoption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CHECKS, "tokens-merged")
    setter = Counters.__setattr__

    def keep_lo(self: Counters, name: str, value: Any) -> None:
        if name != "lo" or "lo" not in self.__dict__:
            setter(self, name, value)

    monkeypatch.setattr(Counters, "__setattr__", keep_lo)


def tokens_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both guards gone: a learner that has not seen the version with its work gives that work again."""
    monkeypatch.delitem(CHECKS, "tokens-merged")
    monkeypatch.setattr(Session, "eligible", lambda self, fragment: self.ready and self.c_steps[fragment] >= 1)


def quorum_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Syncer, "_is_current", lambda _self, _answer: True)


def quorum_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def eligible(self: Members, fragment: int) -> list[Session]:
        return sorted((s for s in self.sessions.values() if s.eligible(fragment)), key=lambda s: s.learner)[:1] * 2

    monkeypatch.setattr(Members, "eligible", eligible)
    monkeypatch.setattr(
        Syncer, "_standing", lambda self, _now, r: ([], [a for a in r.answers.values() if self._is_current(a)] * 2)
    )


def contribution_digest_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit flips between two memories, behind the frame's checksum, and nobody looks."""
    monkeypatch.delitem(CHECKS, "bad-digest")
    create = syncer.Contribution

    def flipped(*parts: Any) -> Contribution:
        *head, _digest, theta = parts
        return create(*head, digest_of(theta + 1), theta)

    monkeypatch.setattr(syncer, "Contribution", flipped)


def sends_before_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that takes itself for ready as soon as it is welcome."""
    welcomed = Learner._welcomed

    def at_once(self: Learner, welcome: Welcome) -> Any:
        out = welcomed(self, welcome)
        incarnation = self._live()
        incarnation.counters = [Counters(version) for version in welcome.versions]
        self.state, self.has_state = "ready", True
        return out

    monkeypatch.setattr(Learner, "_welcomed", at_once)


MUTANTS = [
    (same_incarnation_again, kill_and_rejoin, "fencing"),
    (counters_kept_on_adoption, World.run, "tokens_once"),
    (tokens_counted_again, lose_a_broadcast, "tokens_once"),
    (quorum_not_checked_again, lose_an_answer_to_a_death, "fencing"),
    (quorum_of_one, World.run, "distinct_quorum"),
    (contribution_digest_unchecked, World.run, "integrity"),
    (sends_before_ready, World.run, "silence_before_ready"),
]


@pytest.mark.parametrize(("mutate", "scenario", "rule"), MUTANTS, ids=lambda item: getattr(item, "__name__", item))
def test_a_protocol_with_one_rule_taken_away_breaks_the_history(
    mutate: Any, scenario: Any, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = World(toy_config(steps=160, K=3) if scenario is lose_an_answer_to_a_death else toy_config(steps=160))
    scenario(whole)
    assert broken(whole) == []
    assert whole.finished
    mutate(monkeypatch)
    mutant = World(whole.config)
    with contextlib.suppress(Exception):  # a mutant may also crash; what counts is what its history shows
        scenario(mutant)
    assert any(case.startswith(rule) for case in broken(mutant)), broken(mutant)


def test_a_restart_that_forgets_the_momentum_is_told_by_the_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    def momentum_told(world: World) -> list[str]:
        return [record["momentum"] for record in world.records("merge")[-4:]]

    whole = restart_the_syncer(World())
    persist = World._persist

    def forget(self: World, merge: Any) -> None:
        persist(self, merge)
        self.durable_state.momentum[merge.fragment] = np.zeros_like(merge.momentum)

    monkeypatch.setattr(World, "_persist", forget)
    assert momentum_told(restart_the_syncer(World())) != momentum_told(whole)


def test_words_of_a_stranger_close_its_connection_and_nothing_else() -> None:
    world = World()
    world.run_until(lambda: world.merges() >= 4)
    assert world.syncer is not None
    for message in (Ping(), Welcome(1, [0], 0), Push(1, 1, 1, 0, 1, 0, 0, 1, 1, "x.1.0.1", "0")):
        effects = world.syncer.handle(world.now, Received(77_777, message))
        assert any(type(effect).__name__ == "Close" for effect in effects)
    again = Hello("harness", "learner-1", "process-2", 1, world.config.digest())
    effects = world.syncer.handle(world.now, Received(world.pipe_of("learner-1").number, again))
    assert any(type(effect).__name__ == "Close" for effect in effects)
    world.run()
    assert world.finished
