"""Reading plans: what a right plan says, and every way in which one can be wrong, with its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaoskit.errors import ExitCode, PlanError
from chaoskit.plan import Plan, RoundTrigger, TimeTrigger, read_plan, read_target
from tests.plan.plan_samples import KINDS, PLAN, PROBES, TARGET, write_plan


def read(folder: Path, plan: str, target: str = TARGET) -> Plan:
    return read_plan(write_plan(folder, plan, target), kinds=KINDS, probes=PROBES)


def problems(folder: Path, plan: str, target: str = TARGET) -> list[str]:
    """The problems of a plan as "line: message", or of another file with its name in front."""
    with pytest.raises(PlanError) as refused:
        read(folder, plan, target)
    assert refused.value.exit_code is ExitCode.INVALID
    told = [problem.removeprefix(f"{folder}/") for problem in refused.value.problems]
    assert str(refused.value) == "\n".join(refused.value.problems)
    return [problem.removeprefix("plan.toml:") for problem in told]


def test_the_short_plan_has_every_default(tmp_path: Path) -> None:
    plan = read(tmp_path, PLAN)
    (fault,) = plan.faults
    assert (fault.name, fault.kind, fault.targets, fault.line) == ("process.kill-1", "process.kill", ("learner-2",), 7)
    assert fault.at == RoundTrigger(20, "round 20")
    assert fault.settings == {"restart_after_s": 1.0}
    assert fault.hold_s is None
    assert (plan.run.seed, plan.run.steady_s, plan.run.heal_s, plan.run.deadline_s) == (0, 2, 60, 600)
    assert (plan.limits.down_max, plan.limits.keep) == (1, ("syncer",))
    assert Path(plan.target) == tmp_path / "target.toml"


def test_a_plan_without_expectations_gets_all_probes_and_says_so(tmp_path: Path) -> None:
    plan = read(tmp_path, PLAN)
    assert plan.defaulted
    assert [(expect.probe, dict(expect.tolerance), expect.line) for expect in plan.expects] == [
        ("loss", {"within_share": 0.02}, None),
        ("rejoin", {"within_s": 30.0}, None),
        ("no-fork", {}, None),
    ]


def test_an_expectation_changes_a_tolerance_and_drops_no_other_probe(tmp_path: Path) -> None:
    plan = read(tmp_path, PLAN + '[[expect]]\nprobe = "rejoin"\nwithin = "2 min"\n')
    assert not plan.defaulted
    assert [(expect.probe, expect.line) for expect in plan.expects] == [
        ("rejoin", 11),
        ("loss", None),
        ("no-fork", None),
    ]
    assert plan.expects[0].tolerance == {"within_s": 120.0}


def test_the_daemon_reads_a_plan_without_knowing_any_probe(tmp_path: Path) -> None:
    path = write_plan(tmp_path, PLAN + '[[expect]]\nprobe = "loss"\nwithin = "6 %"\n')
    plan = read_plan(path, kinds=KINDS, probes=None)
    assert plan.expects == ()
    assert [fault.name for fault in plan.faults] == ["process.kill-1"]


def test_a_full_plan_is_read_in_units_of_code(tmp_path: Path) -> None:
    plan = read(
        tmp_path,
        """
name = "full"
about = "everything"
target = "target.toml"
run = { seed = 9, steady = "500 ms", heal = "1 min", deadline = "0.5 h" }
[limits]
down-max = 2
[[fault]]
name = "odd"
kind = "link.odd"
on = ["learner-[01] -> syncer", "learner-3 <-> syncer"]
at = "12 s"
for = "4 s"
share = "0 %"
messages-max = 3
order = "last"
burst = "4 MiB"
""",
    )
    (fault,) = plan.faults
    assert fault.at == TimeTrigger(12.0, "12 s")
    assert fault.hold_s == 4.0
    assert fault.settings == {"share_share": 0.0, "messages_max": 3, "order": "last", "burst_bytes": 4 * 1024**2}
    assert fault.targets == (
        "learner-0 -> syncer",
        "learner-1 -> syncer",
        "learner-3 -> syncer",
        "syncer -> learner-3",
    )
    assert (plan.run.seed, plan.run.steady_s, plan.run.heal_s, plan.run.deadline_s) == (9, 0.5, 60, 1800)


def fault(**keys: str) -> str:
    """The short plan with a [[fault]] on line 11 whose keys are these, on lines from 12 on."""
    return PLAN + "[[fault]]\n" + "".join(f"{key.rstrip('_')} = {value}\n" for key, value in keys.items())


PAUSE = {"kind": '"process.pause"', "on": '"learner-1"', "at": '"3 s"', "for_": '"4 s"'}


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (
            PLAN.replace("keep", "kep"),
            "5: unknown key 'kep' in [limits]; expected one of down-max, keep; did you mean 'keep'?",
        ),
        (
            fault(**PAUSE).replace("process.pause", "process.pauze"),
            "12: unknown kind of fault 'process.pauze'; expected one of link.bandwidth, link.odd, process.kill,"
            " process.pause; did you mean 'process.pause'?",
        ),
        (
            PLAN + 'restart_after = "1 s"\n',
            "11: unknown key 'restart_after' for process.kill; expected one of restart-after, name, kind, on, at;"
            " did you mean 'restart-after'?",
        ),
        (
            PLAN + '[[expect]]\nprobe = "los"\n',
            "12: unknown probe 'los'; expected one of loss, no-fork, rejoin; did you mean 'loss'?",
        ),
        (fault(**PAUSE | {"for_": '"20"'}), "15: for: '20' has no unit; expected a duration such as '20 s'"),
        (
            fault(**PAUSE | {"for_": '"20 parsecs"'}),
            "15: for: '20 parsecs' has the unit 'parsecs', which no duration has; expected a duration such as"
            " '20 s'; the units are us, ms, s, min, h",
        ),
        (fault(**PAUSE | {"for_": '"-4 s"'}), "15: for: '-4 s' is negative; expected a duration such as '20 s'"),
        (
            fault(**PAUSE | {"for_": '"0 s"'}),
            "15: for: '0 s' is zero; expected a duration such as '20 s', or leave the key out",
        ),
        (
            fault(**PAUSE | {"for_": "inf"}),
            "15: for: inf is not a text with a number and a unit; expected a duration such as '20 s'",
        ),
        (
            fault(**PAUSE | {"kind": '"link.bandwidth"', "on": '"learner-1 => syncer"', "rate": '"1 Mbit/s"'}),
            "13: on: 'learner-1 => syncer' is not a link; expected a link such as 'learner-1 -> syncer' or"
            " 'learner-1 <-> syncer'; did you mean 'learner-1 -> syncer'?",
        ),
        (
            fault(**PAUSE | {"on": '"learner-1 -> syncer"'}),
            "13: on: 'learner-1 -> syncer' is a link, but the fault acts on roles; expected a role such as"
            " 'learner-1' or 'learner-*'; did you mean 'learner-1'?",
        ),
        (
            fault(**PAUSE | {"kind": '"link.odd"', "on": '"learner-1 -> learner-2"'}),
            "13: on: 'learner-1 -> learner-2' matches no link of the target; expected one of learner-0 -> syncer,"
            " syncer -> learner-0, learner-1 -> syncer, syncer -> learner-1, learner-2 -> syncer,"
            " syncer -> learner-2, learner-3 -> syncer, syncer -> learner-3; did you mean 'syncer -> learner-2'?",
        ),
        (
            fault(**PAUSE | {"on": '"learner"'}),
            "13: on: 'learner' matches no role of the target; expected one of syncer, learner-0, learner-1,"
            " learner-2, learner-3; did you mean 'learner-*'?",
        ),
        (fault(**PAUSE | {"on": "[]"}), "13: on is empty; expected at least one"),
        (
            fault(**PAUSE | {"at": '"round 0"'}),
            "14: at: 'round 0' never comes: rounds count from 1; expected a time after chaos begins such as '12 s',"
            " or a round such as 'round 120'",
        ),
        (
            fault(**PAUSE | {"at": '"11 min"'}),
            "14: at: '11 min' never comes; expected less than 598 s, which [run] deadline less steady leaves for chaos",
        ),
        (
            fault(**PAUSE | {"for_": '"599 s"'}),
            "15: for: process.pause-1 would end 602 s after chaos begins; expected less than 598 s, which [run]"
            " deadline less steady leaves for chaos",
        ),
        (
            PLAN + 'restart-after = "1 h"\n',
            "11: restart-after: 3600 s is longer than the run; expected less than 598 s, which [run] deadline less"
            " steady leaves for chaos",
        ),
        (
            fault(name='"process.kill-1"', **PAUSE),
            "12: name 'process.kill-1' is used already, by the [[fault]] of line 7; expected another",
        ),
        (
            fault(**PAUSE | {"on": '"syncer"'}),
            "13: on: process.pause-1 touches syncer, which [limits] keep protects; expected other roles, or keep"
            " without them",
        ),
        (
            fault(**PAUSE | {"on": '"learner-*"'}),
            "13: on: process.pause-1 takes 4 roles down at once, but [limits] down-max is 1; expected fewer roles,"
            " or down-max = 4",
        ),
        (
            PLAN.replace("keep", "down-max = 0\nkeep"),
            "10: on: process.kill-1 takes 1 roles down at once, but [limits] down-max is 0; expected fewer roles,"
            " or down-max = 1",
        ),
        (PLAN + 'for = "4 s"\n', "11: process.kill takes no 'for': it ends by restart-after; expected no such key"),
        (
            PLAN + "on = 3\n",
            "11: not valid TOML: Cannot overwrite a value (column 7); expected key = value lines under [table] headers",
        ),
        (
            PLAN.replace('["syncer"]', '["sincer"]'),
            "5: keep: 'sincer' matches no role of the target; expected one of syncer, learner-0, learner-1,"
            " learner-2, learner-3; did you mean 'syncer'?",
        ),
        (
            PLAN + '[run]\nsteady = "10 s"\ndeadline = "10 s"\n',
            "12: steady: the gate holds for 10 s, but the run's deadline is 10 s; expected less than the deadline",
        ),
        (
            PLAN + "[run]\nseed = -1\n",
            "12: seed: -1 is too small; expected at least 0",
        ),
        (
            PLAN.replace("[[fault]]", "[fault]"),
            "7: fault is a table; expected tables headed [[fault]], in double brackets, one for each",
        ),
        (PLAN.replace('name = "first"', ""), "1: the file has no key 'name'; expected name = ..."),
    ],
)
def test_a_mistake_is_refused_with_line_expectation_and_nearest_name(tmp_path: Path, plan: str, expected: str) -> None:
    told = problems(tmp_path, plan)
    assert len(told) == 1, told
    assert told[0] == expected


def test_a_missing_setting_is_told_with_what_it_is(tmp_path: Path) -> None:
    plan = fault(**PAUSE | {"kind": '"link.bandwidth"', "on": '"learner-1 -> syncer"'})
    assert problems(tmp_path, plan) == [
        "11: link.bandwidth needs the key 'rate'; expected rate = ... (bits per second)"
    ]


def test_all_mistakes_are_told_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    told = problems(
        tmp_path,
        fault(kind='"process.pause"', on='["learner-9", "learner-1"]', at='"rond 12"', fro='"4 s"')
        + '[[fault]]\nkind = "process.kil"\non = "learner-0"\nat = "1 s"\n[runn]\n',
    )
    assert [problem.split(":")[0] for problem in told] == ["11", "13", "14", "15", "17", "20"]


def test_a_mistake_in_a_value_over_several_lines_has_the_line_of_the_part(tmp_path: Path) -> None:
    about = 'about = """\n[[fault]]\nkind = "x"\n"""\n'
    told = problems(tmp_path, about + fault(**PAUSE | {"on": '[ # "a]"\n"learner-1",\n"learner-7",\n]'}))
    assert [problem.split(":")[0] for problem in told] == ["19"]


def test_mistakes_of_the_target_file_are_told_too(tmp_path: Path) -> None:
    target = TARGET.replace('done = "syncer"', 'done = "sincer"').replace("learner-*", "lerner-*")
    assert problems(tmp_path, PLAN, target) == [
        f"2: target: {tmp_path}/target.toml is no usable target file; see the next lines",
        "target.toml:3: done: 'sincer' is no role; expected one of syncer, learner-0, learner-1, learner-2,"
        " learner-3; did you mean 'syncer'?",
        "target.toml:20: from: 'lerner-*' matches no role that could connect; expected a role or a glob such as"
        " 'learner-*'",
    ]


def test_a_target_file_that_is_not_there_is_told_with_its_neighbour(tmp_path: Path) -> None:
    told = problems(tmp_path, PLAN.replace("target.toml", "targets.toml"))
    assert told[1] == (
        "targets.toml:1: cannot be read (No such file or directory); expected a target file in TOML;"
        " did you mean 'target.toml'?"
    )


def test_a_copy_of_a_plan_takes_the_copy_of_its_target(tmp_path: Path) -> None:
    path = write_plan(tmp_path, PLAN.replace("target.toml", "../elsewhere/no.toml"))
    plan = read_plan(path, kinds=KINDS, probes=PROBES, target=tmp_path / "target.toml")
    assert plan.target == str(tmp_path / "target.toml")
    assert read_target(plan.target).name == "small"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            b"x" * (10 << 20),
            ":1: the file is larger than 256 KiB; expected a fault plan in TOML, which people can read",
        ),
        (b'name = "a"\nabout = "\xff"\n', ":2: byte 0xff is not UTF-8; expected a text file in UTF-8"),
        (b"\xef\xbb\xbfname = 1", ":1: the file begins with a byte order mark; expected UTF-8 without one"),
        (b"a = " + b"[" * 50_000, ":1: arrays or tables are nested too deep; expected a fault plan in TOML"),
        (b"a = " + b"9" * 5000, ":1: not valid TOML: "),
        (b'name = "a"\nx == 3\n', ":2: not valid TOML: Invalid value (column 4); expected key = value lines"),
        (b'name = "a"\nabout = "', ":2: not valid TOML: "),
        (b"", ":1: the file has no key 'name'; expected name = ..."),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(content)
    with pytest.raises(PlanError) as refused:
        read_plan(path, kinds=KINDS, probes=PROBES)
    assert refused.value.problems[0].startswith(f"{path}{expected}")


@pytest.mark.parametrize("name", ["", "none.toml", "a\0b", "x" * 300])
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError, match="expected a fault plan in TOML"):
        read_plan(f"{tmp_path}/{name}", kinds=KINDS, probes=PROBES)
