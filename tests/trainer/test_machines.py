"""The two state machines together in virtual time: what must hold whatever the network and the processes do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.harness import RECONNECT_S, World, is_broadcast, toy_config
from tests.trainer.rules import broken
from trainer.effects import PersistMembers, PersistMerge, Received, Record, Send
from trainer.fragments import digest_of
from trainer.membership import SAMPLE_MAX, Average
from trainer.merge import merge
from trainer.messages import Fragment, Hello, Progress, Pull, Push, Welcome

ROUNDS = 40


def after_merges(world: World, count: int) -> World:
    return world.run_until(lambda: world.merges() >= count)


# ---- a clean run


def test_a_clean_run_merges_every_fragment_to_the_last_version_and_breaks_no_rule() -> None:
    world = World().run()
    assert world.finished
    assert world.merges() == ROUNDS
    assert world.records("reject") == []
    assert broken(world) == []


def test_the_same_seed_gives_the_same_history() -> None:
    assert World(seed=3).run().records() == World(seed=3).run().records()


def test_every_learner_with_work_is_pulled_not_only_a_quorum() -> None:
    world = World(toy_config(K=1))
    world.step_s["learner-3"] = 0.013
    world.run()
    counts = [len(record["contributions"]) for record in world.records("merge")]
    assert sum(count == 4 for count in counts) > len(counts) / 2


def test_training_brings_the_global_parameters_to_the_learners_common_target() -> None:
    """The sign of the outer step: against it the parameters run away."""
    world = World(toy_config(steps=400)).run()
    global_theta = np.concatenate(world.durable_state.theta)
    start = np.concatenate([merge_.theta for merge_ in world.contributions.values() if merge_.version == 1])
    assert np.abs(global_theta - 1.15).mean() < 0.1
    assert np.abs(start - 1.15).mean() > 0.5


def test_rounds_are_paced_by_the_steps_of_the_slowest() -> None:
    """About H steps lie between two merges of one fragment, though links and syncer could be a hundred times faster."""
    world = World(toy_config(steps=160)).run()
    steps = [part["steps"] for record in world.records("merge")[8:] for part in record["contributions"]]
    assert 6 <= np.mean(steps) <= 12


# ---- order of effects


def test_a_merge_is_durable_before_it_is_told_or_sent() -> None:
    world = World().run()
    durable: set[tuple[int, int]] = {(index, 0) for index in range(4)}
    for role, effect in world.effects:
        match effect:
            case PersistMerge(fragment, version):
                durable.add((fragment, version))
            case Record("merge" | "publish", fields) if role == "syncer":
                assert (fields["fragment"], fields["version"]) in durable
            case Send(_, Fragment(fragment, version)):
                assert (fragment, version) in durable


def test_an_incarnation_is_durable_before_it_is_handed_out() -> None:
    world = World().run()
    durable: dict[str, int] = {}
    for _, effect in world.effects:
        match effect:
            case PersistMembers(incarnations):
                durable = dict(incarnations)
            case Record("join", fields):
                assert durable[fields["learner"]] == fields["incarnation"]
            case Send(_, Welcome(incarnation)):
                assert incarnation in durable.values()


# ---- slow links


@pytest.mark.parametrize("K", [1, 2, 4])
def test_a_round_trip_of_twice_h_steps_slows_a_run_down_and_does_not_stop_it(K: int) -> None:
    world = World(toy_config(K=K))
    world.delay_s = lambda _link, _message: 0.08  # H steps take 0.08 s
    world.run()
    assert world.finished
    assert broken(world) == []
    merged = [part["learner"] for record in world.records("merge")[12:] for part in record["contributions"]]
    assert min(merged.count(f"learner-{index}") for index in range(4)) >= 5  # nobody is left out for good


def test_a_slow_learner_that_the_quorum_does_not_need_holds_nobody_back() -> None:
    world = World(toy_config(K=2, steps=160))
    world.delay_s = lambda link, _message: 0.08 if "learner-3" in link else 0.001
    fast = World(toy_config(K=2, steps=160)).run()
    world.run()
    assert world.finished
    assert world.now - 1000.0 < 2 * (fast.now - 1000.0)


def test_a_learner_that_never_answers_is_given_up_when_others_can_make_the_quorum() -> None:
    world = World(toy_config(K=3, steps=160))
    world.delay_s = lambda _link, _message: 0.08
    world.lost = lambda link, message: link == "learner-0->syncer" and isinstance(message, Push)
    world.run(until_s=120.0)
    assert world.finished
    assert broken(world) == []


def test_a_time_without_quorum_does_not_count_as_the_time_that_a_quorum_takes() -> None:
    world = after_merges(World(toy_config(K=2, steps=160)), 12)
    for index in range(1, 4):
        world.kill(f"learner-{index}")
        world.at(10.0, world.start_learner, f"learner-{index}")
    after_merges(world, 16)
    assert world.now > 1010.0
    assert world.syncer is not None
    assert world.syncer._xi_quorum.value < 0.1


def test_the_syncers_own_averages_grow_from_nothing_and_a_learners_take_no_long_pause_whole() -> None:
    syncers, learners = Average(0.25), Average(0.25, SAMPLE_MAX)
    for average in (syncers, learners):
        average.add(0.001)
        average.add(1.0)
    assert syncers.value > 0.2
    assert learners.value < 0.002


def test_a_silent_learner_does_not_set_the_pace() -> None:
    world = World(toy_config(K=1, steps=80_000))
    world.step_s["learner-3"] = 1.0
    world.run_until(lambda: world.syncer is not None and world.syncer.members.xi_step(world.now) == 1.0)
    assert world.syncer is not None
    members = world.syncer.members
    assert members.pace_s(world.now) == 2.0  # H xi_step / P
    assert members.pace_s(members.sessions["learner-3"].heard_at + world.config.timing.silent_s) < 0.1


# ---- death and rejoin


def test_a_killed_learner_comes_back_as_a_higher_incarnation_and_contributes_again() -> None:
    world = after_merges(World(toy_config(steps=240)), 10)
    world.kill("learner-1")
    after_merges(world, 20)
    world.start_learner("learner-1")
    world.run()
    joins = [r["incarnation"] for r in world.records("join") if r["learner"] == "learner-1"]
    parts = [part for record in world.records("merge") for part in record["contributions"]]
    merged = [part["incarnation"] for part in parts if part["learner"] == "learner-1"]
    assert joins == [1, 2]
    assert merged.count(2) > 10
    assert world.merges() == 3 * ROUNDS
    assert broken(world) == []


def test_nobody_waits_for_a_killed_learner() -> None:
    world = after_merges(World(), 8)
    world.kill("learner-2")
    world.run()
    times = [record["t"] for record in world.records("merge")]
    assert max(np.diff(times)) < 0.05
    assert broken(world) == []


def test_a_new_incarnation_counts_its_tokens_from_zero_and_goes_on_in_its_data() -> None:
    world = after_merges(World(), 12)
    world.kill("learner-1")
    world.start_learner("learner-1")
    world.run()
    welcome = world.records("welcome", "learner-1")[1]
    steps = [record for record in world.records("step", "learner-1") if record["incarnation"] == 2]
    assert steps[0]["tokens"] == world.config.tokens_per_step
    assert steps[0]["step"] == welcome["cursor"] + 1
    merged_steps = max(r["step"] for r in world.records("step", "learner-1") if r["incarnation"] == 1)
    assert 0 <= merged_steps - welcome["cursor"] <= 1  # at most the step whose counters died with the process


def test_a_learner_that_loses_its_connection_keeps_stepping_and_none_of_those_steps_count() -> None:
    world = after_merges(World(toy_config(steps=160)), 8)
    world.cut(world.pipe_of("learner-1").number)
    world.run()
    detached = world.records("detached-step", "learner-1")
    ready = world.records("ready", "learner-1")
    assert len(detached) >= RECONNECT_S / 0.01 - 1
    assert [record["optimiser"] for record in ready] == ["fresh", "kept"]
    first = next(r for r in world.records("step", "learner-1") if r["incarnation"] == 2)
    assert first["step"] == detached[-1]["step"] + 1  # no sample is used twice
    assert first["tokens"] == world.config.tokens_per_step
    assert broken(world) == []


def test_adoption_resets_the_counters_of_that_fragment_only() -> None:
    world = World().run()
    learner, tokens, lo = "learner-0", 0, [0] * 4
    for record in world.records(role=learner):
        if record["kind"] == "step":
            tokens = record["tokens"]
        if record["kind"] == "adopt":
            assert (record["lo"], record["at"]) == (lo[record["fragment"]], tokens)
            lo[record["fragment"]] = tokens
        if record["kind"] == "send":
            assert (record["lo"], record["hi"]) == (lo[record["fragment"]], tokens)
            assert record["steps"] * world.config.tokens_per_step == tokens - lo[record["fragment"]]


def test_nothing_is_sent_before_ready_even_when_the_state_comes_slowly() -> None:
    world = World()
    world.delay_s = lambda _link, message: 0.2 if isinstance(message, Fragment) and message.cause == "join" else 0.001
    world.run()
    assert world.finished
    assert broken(world) == []


def test_a_rejoin_that_takes_more_than_h_steps_starts_again() -> None:
    world = after_merges(World(toy_config(steps=320)), 8)
    slow = {"join": True}
    # The last fragment of the state is held back while the others go on being merged.
    world.lost = lambda link, m: (
        slow["join"]
        and link == "syncer->learner-1"
        and isinstance(m, Fragment)
        and m.fragment == 3
        and world.processes["learner-1"].machine.state != "ready"
    )
    world.kill("learner-1")
    world.start_learner("learner-1")
    world.run_until(lambda: bool(world.records("rejoin-restart")))
    slow["join"] = False
    world.run()
    assert world.records("ready", "learner-1")[-1]["incarnation"] >= 3
    assert broken(world) == []


# ---- quorum


def test_below_the_quorum_the_syncer_waits_and_says_so_once() -> None:
    world = after_merges(World(), 10)
    for learner in ("learner-0", "learner-1", "learner-2"):
        world.kill(learner)
    world.run(1.0)
    assert 10 <= world.merges() <= 12
    assert [(r["ready"], r["quorum"]) for r in world.records("below-quorum")] == [(1, 2)]
    world.start_learner("learner-0")
    world.run()
    assert world.merges() == ROUNDS
    assert broken(world) == []


def test_the_quorum_is_counted_again_at_the_merge_and_a_retry_has_a_new_attempt() -> None:
    """Two answer, one of them is gone before the last answer is in: its answer may not make up the quorum."""
    world = World(toy_config(M=3, K=3))
    after_merges(world, 8)
    world.delay_s = lambda link, m: 0.04 if isinstance(m, Push) and link.startswith("learner-2") else 0.001
    accepted = len(world.records("accept"))
    world.run_until(lambda: len(world.records("accept")) > accepted + 1)
    world.kill("learner-0")
    world.at(0.1, world.start_learner, "learner-0")
    world.delay_s = lambda _link, _message: 0.001
    world.run()
    assert max(record["attempt"] for record in world.records("round")) >= 2
    assert world.merges() == ROUNDS
    assert broken(world) == []


def test_a_paused_learner_costs_one_deadline_and_not_one_per_round() -> None:
    world = after_merges(World(toy_config(steps=160)), 16)
    world.pause("learner-2")
    before = world.now
    after_merges(world, 32)
    gaps = np.diff([record["t"] for record in world.records("merge") if record["t"] >= before])
    assert sum(gap > 0.05 for gap in gaps) <= world.config.protocol.tau
    world.resume("learner-2")
    world.run()
    last = [part["learner"] for record in world.records("merge")[-8:] for part in record["contributions"]]
    assert "learner-2" in last  # and it is asked again once it has been heard
    assert broken(world) == []


# ---- fencing


def test_a_zombie_update_is_rejected() -> None:
    """Its supervisor takes a learner for dead and starts a successor; then the old process's words arrive."""
    world = after_merges(World(toy_config(steps=160)), 8)
    held: list[Any] = []
    pipe = world.pipe_of("learner-1")
    world.lost = lambda link, m: isinstance(m, Push) and link.startswith("learner-1") and (held.append(m), True)[1]
    world.run_until(lambda: bool(held))
    world.lost = lambda _link, _message: False
    process = world.processes["learner-1"]
    payload = process.machine.theta[world.fragments[held[0].fragment].slice].tobytes()
    assert world.syncer is not None
    # The successor joins; the old connection is fenced, but not closed yet when the push comes in on it.
    hello = Hello("harness", "learner-1", "another process", 0, world.config.digest())
    world.syncer.handle(world.now, Received(10_000, hello))
    effects = world.syncer.handle(world.now, Received(pipe.number, held[0], payload))
    rejected = [e.fields["why"] for e in effects if isinstance(e, Record) and e.kind == "reject"]
    assert rejected == ["stale-incarnation"]


def test_a_process_that_was_replaced_does_not_come_back() -> None:
    """Else the two would fence each other for ever."""
    world = after_merges(World(toy_config(steps=160)), 8)
    old = world.processes["learner-1"]
    world.pause("learner-1")
    world.start_learner("learner-1")
    after_merges(world, 16)
    old.paused = False
    held, old.held = old.held, []
    for event in held:
        world._give_learner(old, event)
    world.run()
    assert old.machine.stopped
    assert [r["incarnation"] for r in world.records("join") if r["learner"] == "learner-1"] == [1, 2]
    assert broken(world) == []


def test_a_learner_of_another_run_or_configuration_is_refused() -> None:
    world = after_merges(World(), 1)
    assert world.syncer is not None
    good = world.config.digest()
    for hello in (
        Hello("another run", "learner-1", "p", 0, good),
        Hello("harness", "learner-9", "p", 0, good),
        Hello("harness", "learner-1", "p", 0, "another configuration"),
    ):
        kinds = [e.kind for e in world.syncer.handle(world.now, Received(99_999, hello)) if isinstance(e, Record)]
        assert kinds[0] == "refuse"
    world.run()
    assert world.finished


# ---- the network


def test_delivering_everything_twice_changes_no_merge() -> None:
    once, twice = World(), World()
    twice.copies = lambda _link, message: 2 if isinstance(message, Push | Fragment | Pull | Progress) else 1
    once.run()
    twice.run()

    def digests(world: World) -> dict[tuple[int, int], str]:
        return {(r["fragment"], r["version"]): r["h_out"] for r in world.records("merge")}

    assert digests(once) == digests(twice)
    assert {record["why"] for record in twice.records("reject")} <= {"duplicate", "late"}
    assert broken(twice) == []


def test_a_lost_broadcast_is_sent_again() -> None:
    """Exactly-once acceptance and a lost broadcast together would shut the learner out of the fragment for ever."""
    world = World(toy_config(steps=160))
    dropped: list[int] = []
    world.lost = lambda link, m: (
        link == "syncer->learner-1" and is_broadcast(m, 2) and not dropped and (dropped.append(1), True)[1]
    )
    world.run()
    assert dropped
    parts = [p for r in world.records("merge")[-8:] if r["fragment"] == 2 for p in r["contributions"]]
    assert "learner-1" in {part["learner"] for part in parts}
    assert broken(world) == []


def test_a_learner_behind_a_slow_link_is_waited_for_up_to_h_steps_and_so_not_shut_out() -> None:
    world = World(toy_config(steps=240))
    world.delay_s = lambda link, _message: 0.03 if "learner-1" in link else 0.001
    world.run()
    merges = world.records("merge")
    parts = [part["learner"] for record in merges for part in record["contributions"]]
    assert parts.count("learner-1") > len(merges) / 3
    assert broken(world) == []


def test_a_corrupt_update_is_rejected_and_its_learner_contributes_again() -> None:
    world = after_merges(World(toy_config(steps=160)), 8)
    machine = world.processes["learner-1"].machine
    machine.theta[:] = np.nan
    world.run()
    assert {r["why"] for r in world.records("reject")} <= {"not-finite", "late"}
    assert "not-finite" in {r["why"] for r in world.records("reject")}
    assert all(np.isfinite(theta).all() for theta in world.durable_state.theta)
    assert "learner-1" in {part["learner"] for r in world.records("merge")[-8:] for part in r["contributions"]}
    assert broken(world) == []


def test_an_update_far_longer_than_its_peers_is_rejected_and_the_guard_lets_its_learner_back_in() -> None:
    world = after_merges(World(toy_config(steps=160)), 8)
    world.processes["learner-1"].machine.theta *= 1000
    world.run()
    assert "norm" in {r["why"] for r in world.records("reject")}
    assert np.abs(np.concatenate(world.durable_state.theta)).max() < 10
    assert "learner-1" in {part["learner"] for r in world.records("merge")[-8:] for part in r["contributions"]}
    assert world.finished
    assert broken(world) == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_happens_no_rule_is_broken_and_the_run_ends(data: st.DataObject) -> None:
    """Deaths, pauses, cuts, restarts of the syncer, slow links, lost and doubled messages, at any time."""
    world = World(toy_config(steps=64), seed=data.draw(st.integers(0, 3), label="seed"))
    learners = st.integers(0, 3).map(lambda index: f"learner-{index}")
    ticks = st.integers(0, 60).map(lambda tick: tick / 100)
    for _ in range(data.draw(st.integers(0, 5), label="faults")):
        at_s, learner, hold_s = data.draw(ticks), data.draw(learners), data.draw(ticks)
        match data.draw(st.sampled_from(["kill", "pause", "cut", "syncer", "slow", "lose"])):
            case "kill":
                world.at(at_s, lambda name=learner: name in world.processes and world.kill(name))
                world.at(at_s + hold_s, lambda name=learner: name in world.processes or world.start_learner(name))
            case "pause":
                world.at(at_s, lambda name=learner: name in world.processes and world.pause(name))
                world.at(at_s + hold_s, lambda name=learner: name in world.processes and world.resume(name))
            case "cut":
                world.at(at_s, lambda name=learner: _cut(world, name))
            case "syncer":
                world.at(at_s, lambda: world.syncer and world.kill("syncer"))
                world.at(at_s + hold_s, lambda: world.syncer or world.start_syncer())
            case "slow":
                world.delay_s = lambda link, _m, name=learner, s=hold_s: s / 5 if name in link else 0.001
            case "lose":
                world.lost = lambda link, m, name=learner: name in link and is_broadcast(m, 1)
                world.at(at_s, lambda: setattr(world, "lost", lambda _link, _message: False))
    world.run(120.0)
    assert world.finished, f"stuck after {world.merges()} merges"
    assert broken(world) == []


def _cut(world: World, name: str) -> None:
    if name in world.processes and (pipe := world.processes[name].pipe):
        world.cut(pipe.number)


# ---- restart of the syncer


@pytest.mark.parametrize("merges", [0, 1, 7, 20, 39])
def test_a_restarted_syncer_goes_on_bit_for_bit_where_it_was(merges: int) -> None:
    """M6: parameters, momentum, versions and incarnations are those of before, and the chain goes on."""
    world = after_merges(World(), merges)
    assert world.syncer is not None
    before = world.syncer.state
    world.kill("syncer")
    world.start_syncer()
    after = world.syncer.state
    assert after is not before
    assert [digest_of(theta) for theta in after.theta] == [digest_of(theta) for theta in before.theta]
    assert [digest_of(values) for values in after.momentum] == [digest_of(values) for values in before.momentum]
    assert (after.versions, after.incarnations, after.processes) == (
        before.versions, before.incarnations, before.processes
    )  # fmt: skip
    world.run()
    assert world.merges() == ROUNDS
    assert broken(world) == []


@pytest.mark.parametrize("kind", ["merge", "publish"])
def test_a_syncer_killed_between_the_durable_merge_and_its_record_tells_it_after_the_restart(kind: str) -> None:
    world = after_merges(World(), 10)
    tape = world._tape

    def die_instead(role: str, record_kind: str, fields: Any) -> None:
        if role == "syncer" and record_kind == kind and world.syncer is not None:
            world.kill("syncer")
            world._tape = tape  # type: ignore[method-assign]
            world.at(0.05, world.start_syncer)
            return
        tape(role, record_kind, fields)

    world._tape = die_instead  # type: ignore[method-assign]
    world.run()
    assert world.finished
    assert world.records("restore")
    assert world.merges() == ROUNDS
    assert len(world.records("publish")) == ROUNDS
    assert broken(world) == []


def test_a_syncer_restarted_after_the_last_merge_tells_the_learners_of_the_end() -> None:
    world = after_merges(World(), ROUNDS)
    world.kill("syncer")
    world.start_syncer()
    world.run()
    assert world.finished
    assert {record["reason"] for record in world.records("stop") if record["role"] != "syncer"} == {"complete"}


# ---- replay


def test_folding_the_recorded_contributions_gives_every_version_bit_for_bit() -> None:
    """S11, and with the contributions in any order."""
    world = after_merges(World(), 20)
    world.kill("learner-1")
    world.run()
    protocol = world.config.protocol
    told = {(r["fragment"], r["version"]): r["h_out"] for r in world.records("merge")}
    fresh = World().durable_state
    for fragment in world.fragments:
        theta, momentum = fresh.theta[fragment.index], fresh.momentum[fragment.index]
        for version in range(1, world.config.versions_total + 1):
            parts = world.contributions[fragment.index, version].contributions[::-1]
            merged = merge(theta, momentum, parts, fragment.tensors, lr=protocol.outer_lr, mu=protocol.outer_momentum)
            theta, momentum = merged.theta, merged.momentum
            assert digest_of(theta) == told[fragment.index, version]
