"""Planted defects: each breaks a correct run in one way, as a broken trainer (or a broken network) would.

The run they are planted in has 4 learners, 3 fragments and quorum 2; learner-2 is killed and comes back,
learner-1 is paused, learner-0's updates are late for a while, and learner-3 is cut off and comes back.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.probes.histories import Fault, Line, Run, digest, make_run

ROUNDS = 60
FAULTS = (
    Fault("kill", 2, 0, rounds=4),
    Fault("pause", 1, 6, rounds=4),
    Fault("slow", 0, 12, rounds=4),
    Fault("cut", 3, 18, rounds=4),
)


def correct_run() -> Run:
    return make_run(faults=FAULTS, rounds=ROUNDS, quorum=2)


def correct_control() -> Run:
    return make_run(rounds=ROUNDS, quorum=2)


def window(run: Run, fault: str) -> tuple[float, float]:
    """(start, end) of the one injection of this kind, in seconds."""
    return run.of("intent", fault=fault)[0].t, run.of("undone", injection=_name(run, fault))[0].t


def _name(run: Run, fault: str) -> str:
    name = run.of("intent", fault=fault)[0].data["injection"]
    assert isinstance(name, str)
    return name


def _some_merge(run: Run, version: int = 4, fragment: int = 1) -> Line:
    return run.of("merge", fragment=fragment, version=version)[0]


# --- versions


def merge_starts_from_another_digest(run: Run) -> None:
    _some_merge(run).data["h_in"] = "h-of-nothing"


def merge_left_out(run: Run) -> None:
    run.drop([_some_merge(run)])


def last_merge_misnumbered(run: Run) -> None:
    run.of("merge")[-1].data["version"] += 1


def syncer_comes_back_older(run: Run) -> None:
    merge = _some_merge(run, version=6)
    versions = [3, 3, 3]
    run.insert_after(merge, "restore", versions=versions, digests=[digest(p, 3) for p in range(3)])


def version_published_twice_with_other_content(run: Run) -> None:
    run.of("publish", fragment=1, version=4)[0].data["digest"] = "h-fork"


def broadcast_corrupted(run: Run) -> None:
    run.of("adopt", fragment=1, version=4)[0].data["digest"] = "h-flipped"


def replay_differs(run: Run) -> None:
    run.of("replay", fragment=2, version=5)[0].data["digest"] = "h-hidden-change"


def old_broadcast_adopted(run: Run) -> None:
    late = run.of("adopt", node="learner-0", fragment=1, version=4, cause="broadcast")[0]
    data = late.data | {"version": 3, "digest": digest(1, 3), "lo": late.data["at"]}
    run.insert_after(late, "adopt", **data)


# --- updates


def merge_below_quorum(run: Run) -> None:
    del _some_merge(run).data["contributions"][1:]


def quorum_counted_by_messages(run: Run) -> None:
    contributions = _some_merge(run).data["contributions"]
    contributions[1:] = [contributions[0]]


def learner_twice_in_a_full_merge(run: Run) -> None:
    contributions = _some_merge(run).data["contributions"]
    contributions.append(contributions[0])


def zombie_merged(run: Run) -> None:
    """The update that learner-2 sent before it was killed is accepted after its new incarnation has joined."""
    joined = run.of("join", learner="learner-2", incarnation=2)[0]
    sent = run.of("send", node="learner-2", incarnation=1)[-1]
    merge = next(m for m in run.of("merge", fragment=sent.data["fragment"]) if m.t > joined.t)
    contributions = merge.data["contributions"]
    contributions[:] = [u for u in contributions if u["learner"] != "learner-2"]
    contributions.append({"learner": "learner-2", **sent.data, "tokens": 1})


def zombie_accepted(run: Run) -> None:
    joined = run.of("join", learner="learner-2", incarnation=2)[0]
    sent = run.of("send", node="learner-2", incarnation=1)[-1]
    run.insert_after(joined, "accept", learner="learner-2", **sent.data)


def incarnation_handed_out_again(run: Run) -> None:
    run.of("join", learner="learner-2")[1].data["incarnation"] = 1


def two_live_copies(run: Run) -> None:
    middle = run.of("step", node="learner-1")[50]
    run.insert_after(middle, "start", role="learner-1", pid=999, format=1)


def welcomed_twice(run: Run) -> None:
    welcome = run.of("welcome", node="learner-1")[0]
    run.insert_after(welcome, "welcome", **welcome.data)


def counters_not_reset(run: Run) -> None:
    update = run.of("send", node="learner-0", fragment=1)[3].data
    before = run.of("send", node="learner-0", fragment=1)[2].data
    for told in run.update(update["id"]):
        told["lo"] = before["lo"]


def tokens_claimed_before_they_are_processed(run: Run) -> None:
    """In the last update of all, so that no later one overlaps it."""
    update = run.of("send", node="learner-0")[-1].data
    for told in run.update(update["id"]):
        told["hi"] += 1000


def tokens_lost_at_adoption(run: Run) -> None:
    run.of("adopt", node="learner-0", fragment=1, version=4)[0].data["lo"] += 32


def tokens_counted_backwards(run: Run) -> None:
    run.of("step", node="learner-0")[20].data["tokens"] = 1


def corrupt_update_merged(run: Run) -> None:
    _some_merge(run).data["contributions"][0]["digest"] = "u-flipped"


def corrupt_update_accepted(run: Run) -> None:
    run.of("accept", learner="learner-1")[7].data["digest"] = "u-flipped"


def update_from_nowhere(run: Run) -> None:
    run.drop(run.of("send", id=_some_merge(run).data["contributions"][0]["id"]))


def update_too_stale(run: Run) -> None:
    for told in run.update(_some_merge(run, version=8).data["contributions"][0]["id"]):
        told["base"] = 3


def update_from_the_future(run: Run) -> None:
    for told in run.update(_some_merge(run).data["contributions"][0]["id"]):
        told["base"] = 4


def update_before_ready(run: Run) -> None:
    ready = run.of("ready", node="learner-2", incarnation=2)[0]
    ready.t = run.of("send", node="learner-2", incarnation=2)[1].t + 0.0001


def update_merged_again(run: Run) -> None:
    first = _some_merge(run).data["contributions"]
    again = _some_merge(run, version=5).data["contributions"]
    again[:] = [u for u in again if u["learner"] != first[0]["learner"]] + [first[0]]


# --- liveness and outcome


def stall_after_the_heal(run: Run) -> None:
    heal = run.of("phase", phase="heal")[0].t
    _stall(run, heal + 2.0, 30.0)


def stall_in_a_quiet_stretch_of_chaos(run: Run) -> None:
    _stall(run, window(run, "cut")[1] + 1.0, 30.0)


def neighbours_slowed_by_a_pause(run: Run) -> None:
    run.warp(*window(run, "pause"), 4.0)


def neighbours_stall_during_a_pause(run: Run) -> None:
    _stall(run, window(run, "pause")[0] + 0.3, 6.0)


def _stall(run: Run, at_s: float, stall_s: float) -> None:
    """Nothing happens anywhere for a while."""
    for line in run.lines:
        if line.t > at_s:
            line.t += stall_s


def learner_never_merged(run: Run) -> None:
    """learner-0 works, is pulled, and is left out of every merge."""
    _leave_out(run, "learner-0", 1)


def rejoiner_ignored(run: Run) -> None:
    _leave_out(run, "learner-2", 2)


def _leave_out(run: Run, learner: str, incarnation: int) -> None:
    for merge in run.of("merge"):
        merge.data["contributions"] = [
            update
            for update in merge.data["contributions"]
            if (update["learner"], update["incarnation"]) != (learner, incarnation)
        ]
    run.drop(run.of("accept", learner=learner, incarnation=incarnation))


def rejoiner_slow_to_be_ready(run: Run) -> None:
    """The new process of learner-2 takes 30 s more to join; the others wait for it as in a pause of the world."""
    _stall(run, run.of("spawn", role="learner-2", cause="restart")[0].t, 30.0)


def rejoiner_never_ready(run: Run) -> None:
    """Everything that the second incarnation of learner-2 did from its ready on did not happen."""
    ready = run.of("ready", node="learner-2", incarnation=2)[0]
    gone = [line for line in run.lines if line.node == "learner-2" and line.t >= ready.t and line.kind != "stop"]
    _leave_out(run, "learner-2", 2)
    run.drop(gone)


def loss_of(factor: float) -> Callable[[Run], None]:
    def plant(run: Run) -> None:
        for line in run.of("eval"):
            line.data["loss"] *= factor

    return plant


def loss_not_a_number(run: Run) -> None:
    run.of("eval")[10].data["loss"] = None
