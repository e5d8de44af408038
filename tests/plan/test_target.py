"""Targets: what a target file says, how roles and links unfold, and what `on` names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.errors import PlanError
from chaoskit.plan import SelectorError, Target, matches, read_target, resolve
from tests.plan.plan_samples import TARGET


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    path = tmp_path_factory.mktemp("target") / "target.toml"
    path.write_text(TARGET)
    return read_target(path)


def refused(folder: Path, text: str) -> list[str]:
    path = folder / "target.toml"
    path.write_text(text)
    with pytest.raises(PlanError) as error:
        read_target(path)
    return [problem.removeprefix(f"{path}:") for problem in error.value.problems]


def test_roles_unfold_by_their_count(target: Target) -> None:
    assert list(target.roles_by_name) == ["syncer", "learner-0", "learner-1", "learner-2", "learner-3"]
    role = target.roles_by_name["learner-2"]
    assert (role.index, role.spec.ready, role.spec.stop_signal, role.spec.env) == (
        2,
        "step",
        "SIGINT",
        {"THREADS": "1"},
    )
    assert target.roles_by_name["syncer"].index is None
    assert target.roles_by_name["syncer"].spec.stop_signal == "SIGTERM"
    assert (target.done_role, target.replay) == ("syncer", ("python", "-m", "replay"))


def test_links_unfold_to_both_directions(target: Target) -> None:
    assert len(target.links_expanded) == 4
    assert target.link_names()[:2] == ("learner-0 -> syncer", "syncer -> learner-0")


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("learner-1", ("learner-1",)),
        ("learner-[13]", ("learner-1", "learner-3")),
        ("learner-1 -> syncer", ("learner-1 -> syncer",)),
        ("syncer -> learner-1", ("syncer -> learner-1",)),
        ("syncer <-> learner-1", ("learner-1 -> syncer", "syncer -> learner-1")),
        ("* -> learner-*", tuple(f"syncer -> learner-{index}" for index in range(4))),
    ],
)
def test_a_selector_names_roles_or_directions(target: Target, selector: str, names: tuple[str, ...]) -> None:
    assert resolve([selector], target) == names


@given(selectors=st.lists(st.sampled_from(["syncer", "learner-*", "learner-1", "l*", "learner-0 <-> *"]), min_size=1))
def test_what_selectors_name_comes_once_and_in_the_order_of_the_target(target: Target, selectors: list[str]) -> None:
    names = resolve(selectors, target)
    every = [*target.roles_by_name, *target.link_names()]
    assert list(names) == [name for name in every if name in names]
    roles = [selector for selector in selectors if "->" not in selector]
    assert all(any(matches(name, role) for role in roles) for name in names if "->" not in name)


@given(selector=st.text(max_size=12) | st.from_regex(r"[a-z*?\[\]!-]{1,9} ?<?-> ?[a-z*]{1,5}", fullmatch=True))
def test_any_selector_names_something_or_is_refused(target: Target, selector: str) -> None:
    try:
        assert resolve([selector], target)
    except SelectorError:
        return


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('to = "syncer"', 'to = "sincer"', "21: to: 'sincer' is no role; expected one of syncer, learner-0"),
        ("count = 4", "count = 0", "13: count: 0 is too small; expected at least 1"),
        ("count = 4", "count = 1_000_000", "13: count: 1000000 is too large; expected at most 256"),
        ('name = "learner"', 'name = "syncer"', "20: from: 'learner-*' matches no role that could connect"),
        ("stop-signal", "stop_signal", "17: unknown key 'stop_signal' in [[role]]; expected one of name, count"),
        ('"SIGINT"', '"SIGKILL"', "17: stop-signal: 'SIGKILL' is no signal that asks a process to stop"),
        ('THREADS = "1"', "THREADS = 1", "15: THREADS: 1 has the wrong type; expected a text in quotes"),
        ('env = "SYNCER"', 'env = "a b"', "23: env: 'a b' is not allowed here; expected the name of an environment"),
        ('command = ["python", "-m", "syncer"]', "command = []", "8: command is empty; expected at least one"),
        ("{index}", "{indx}", "14: '{indx}' is no placeholder; expected one of {python}, {run}, {state}, {here}"),
        ('"syncer"]', '"{index}"]', "8: '{index}' has no meaning here; expected one of {python}, {run}"),
        ('address = "', 'address = "{tape}', "22: '{tape}' has no meaning here; expected one of {python}, {run}"),
        ('from = "learner-*"', 'from = "syncer"', "20: from: 'syncer' matches no role that could connect"),
    ],
)
def test_a_mistake_in_a_target_is_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in TARGET
    told = refused(tmp_path, TARGET.replace(old, new))
    assert len(told) == 1, told
    assert told[0].startswith(expected)


def test_two_roles_of_one_name_are_refused(tmp_path: Path) -> None:
    role = '[[role]]\nname = "learner-2"\ncommand = ["x"]\n'
    told = refused(tmp_path, TARGET + role)
    assert all(problem.endswith("name: the role 'learner-2' exists twice; expected another name") for problem in told)
    assert len(told) == 2


def test_a_target_without_roles_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, 'name = "x"\ndone = "x"\n') == ["1: the file has no key 'role'; expected role = ..."]
    assert refused(tmp_path, 'name = "x"\ndone = "x"\nrole = []\n') == ["3: role is empty; expected at least one"]
