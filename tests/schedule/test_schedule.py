"""The schedule: every fault due once, never early, the same however often one asks; limits refuse with a
reason."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from chaoskit.plan import At, FaultSpec, Limits, Plan, RoundTrigger, RunSettings, TimeTrigger
from chaoskit.schedule import Injection, Moment, allowed, due, injections

ROLES = ("syncer", "learner-0", "learner-1", "learner-2")

TRIGGERS: st.SearchStrategy[At] = st.one_of(
    st.floats(0, 100).map(lambda after_s: TimeTrigger(after_s, f"{after_s} s")),
    st.integers(1, 50).map(lambda number: RoundTrigger(number, f"round {number}")),
)


def fault(index: int, at: At, targets: tuple[str, ...] = ("learner-1",), *, acts_on: str = "role") -> FaultSpec:
    return FaultSpec(
        name=f"fault-{index}",
        kind="process.kill" if acts_on == "role" else "link.latency",
        acts_on="role" if acts_on == "role" else "link",
        downs_role=acts_on == "role",
        on=targets,
        targets=targets,
        at=at,
        hold_s=None,
        settings={},
        line=index + 1,
    )


def plan_of(*faults: FaultSpec, down_max: int = 1, keep: tuple[str, ...] = ()) -> Plan:
    return Plan(
        name="plan",
        about="",
        path="plan.toml",
        source_sha="",
        target="target.toml",
        run=RunSettings(seed=0, steady_s=1, heal_s=1, deadline_s=1000),
        limits=Limits(down_max, keep),
        faults=faults,
        expects=(),
        defaulted=True,
    )


PLANS = st.lists(TRIGGERS, max_size=6).map(lambda triggers: plan_of(*(fault(i, at) for i, at in enumerate(triggers))))


@st.composite
def courses(draw: st.DrawFn) -> list[Moment]:
    """A run as a fine clock sees it: time and rounds only go forward, and end beyond every trigger."""
    steps = draw(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 20)), max_size=12))
    moments = [Moment(0.0, 0)]
    for wait_s, rounds in steps:
        moments.append(Moment(moments[-1].elapsed_s + wait_s, moments[-1].round + rounds))
    return [*moments, Moment(moments[-1].elapsed_s + 100, moments[-1].round + 50)]


def follow(plan: Plan, course: list[Moment]) -> list[tuple[Moment, Injection]]:
    """What a daemon that asks at these moments starts, and when."""
    started: list[tuple[Moment, Injection]] = []
    for moment in course:
        seen = replace(moment, started=frozenset(injection.id for _, injection in started))
        started += [(moment, injection) for injection in due(plan, seen)]
    return started


def has_come(at: At, moment: Moment) -> bool:
    if isinstance(at, TimeTrigger):
        return moment.elapsed_s >= at.after_s
    return moment.round >= at.round


@given(plan=PLANS, course=courses())
def test_every_fault_is_due_exactly_once(plan: Plan, course: list[Moment]) -> None:
    started = [injection.id for _, injection in follow(plan, course)]
    assert sorted(started) == sorted(injection.id for injection in injections(plan))


@given(plan=PLANS, course=courses())
def test_a_fault_is_due_at_the_first_moment_after_its_trigger(plan: Plan, course: list[Moment]) -> None:
    for moment, injection in follow(plan, course):
        assert moment == next(one for one in course if has_come(injection.fault.at, one))


@given(plan=PLANS, course=courses(), data=st.data())
def test_asking_less_often_only_delays(plan: Plan, course: list[Moment], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(course) - 1, max_size=len(course) - 1))
    coarse = [moment for moment, keep in zip(course, [*kept, True], strict=True) if keep]
    fine_by_id = {injection.id: (moment, injection) for moment, injection in follow(plan, course)}
    for moment, injection in follow(plan, coarse):
        fine_moment, fine_injection = fine_by_id[injection.id]
        assert injection == fine_injection
        assert moment == next(
            one for one in coarse if one.elapsed_s >= fine_moment.elapsed_s and one.round >= fine_moment.round
        )


@given(plan=PLANS, elapsed_s=st.floats(0, 200), round_=st.integers(0, 60), data=st.data())
def test_what_is_due_comes_in_plan_order_and_nothing_twice(
    plan: Plan, elapsed_s: float, round_: int, data: st.DataObject
) -> None:
    every = injections(plan)
    started = frozenset(data.draw(st.sets(st.sampled_from([one.id for one in every] or ["none#1"]))))
    moment = Moment(elapsed_s, round_, started)
    found = due(plan, moment)
    assert found == due(plan, moment)
    assert list(found) == [one for one in every if one.id not in started and has_come(one.fault.at, moment)]


def test_an_injection_says_what_the_plan_says() -> None:
    (injection,) = injections(plan_of(fault(0, RoundTrigger(20, "round 20"), ("learner-0", "learner-1"))))
    assert (injection.id, injection.trigger_text, injection.hold_s) == ("fault-0#1", "round 20", None)
    assert injection.targets == ("learner-0", "learner-1")


@given(
    targets=st.sets(st.sampled_from(ROLES), min_size=1),
    down=st.frozensets(st.sampled_from(ROLES)),
    down_max=st.integers(0, 4),
    keep=st.frozensets(st.sampled_from(ROLES)),
)
def test_no_allowed_injection_breaks_a_limit(
    targets: set[str], down: frozenset[str], down_max: int, keep: frozenset[str]
) -> None:
    plan = plan_of(fault(0, TimeTrigger(0, "0 s"), tuple(sorted(targets))), down_max=down_max, keep=tuple(sorted(keep)))
    refusal = allowed(plan, injections(plan)[0], down)
    breaks = bool(targets & keep) or len(down | targets) > down_max
    assert (refusal is not None) == breaks


@given(down=st.frozensets(st.sampled_from(ROLES)))
def test_faults_on_links_take_no_role_down(down: frozenset[str]) -> None:
    plan = plan_of(fault(0, TimeTrigger(0, "0 s"), ("learner-1 -> syncer",), acts_on="link"), down_max=0, keep=ROLES)
    assert allowed(plan, injections(plan)[0], down) is None


def test_a_refusal_names_the_roles_and_the_limit() -> None:
    plan = plan_of(fault(0, TimeTrigger(0, "0 s")))
    assert allowed(plan, injections(plan)[0], {"learner-2"}) == (
        "2 roles would be down at once (learner-1, learner-2); [limits] down-max allows 1"
    )
    kept = plan_of(fault(0, TimeTrigger(0, "0 s")), keep=("learner-1",))
    assert allowed(kept, injections(kept)[0], ()) == "learner-1 must be kept, by [limits] keep"
