"""What a user sees of a run: exit codes and errors, on a target that is not a trainer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaoskit.daemon.recover import needs_recovery
from chaoskit.errors import ExitCode
from tests.conftest import Start
from tests.toy.runs import TARGET, ToyRun, plan_text, start_run

pytestmark = pytest.mark.process

KILL_LATE = '[[fault]]\nkind = "process.kill"\non = "worker-1"\nat = "10 ms"\nrestart-after = "50 s"'
KILL = '[[fault]]\nkind = "process.kill"\non = "worker-1"\nat = "round 60"\nrestart-after = "200 ms"'
PAUSE = '[[fault]]\nkind = "process.pause"\non = "worker-0"\nat = "round 90"\nfor = "300 ms"'


def chaoskit(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "chaoskit.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_faults_land_and_are_undone_and_the_journal_tells_it_in_order(start: Start) -> None:
    run = start(KILL + "\n" + PAUSE)
    code, output = run.end()
    run.assert_clean()
    journal = run.journal()
    for injection in ("process.kill-1#1", "process.pause-1#1"):
        mine = [record for record in journal if record.get("injection") == injection]
        story = [record.kind for record in mine if record.kind != "exit"]
        assert story == ["intent", "applied", "landed", "undo", "undone"], output
        assert mine[-1]["clean"]
    landed = {record["injection"]: record for record in journal if record.kind == "landed"}
    assert landed["process.kill-1#1"]["landed"]
    assert landed["process.kill-1#1"]["evidence"]["worker-1_ended_by"] == "signal 9"
    (death,) = [record for record in journal if record.kind == "exit" and record["signal"] == 9]
    assert death["expected"]
    restarted = [record for record in journal if record.kind == "spawn" and record["cause"] == "restart"]
    assert [record["role"] for record in restarted] == ["worker-1"]
    assert restarted[0]["pid"] != death["pid"]
    assert [record["phase"] for record in journal if record.kind == "phase"] == [
        "preflight",
        "steady",
        "chaos",
        "heal",
        "stop",
    ]
    assert (run.run_dir / "report.html").exists()
    assert code == ExitCode.PASSED, output


def test_a_fault_whose_trigger_never_comes_ends_with_2(start: Start) -> None:
    run = start('[[fault]]\nkind = "process.pause"\non = "worker-1"\nat = "round 100000"\nfor = "1 s"')
    code, output = run.end()
    assert code == ExitCode.INCONCLUSIVE, output
    assert "round 100000" in output or "Never injected" in output
    assert [record.kind for record in run.journal()].count("skipped") == 1
    run.assert_clean()


def test_a_role_that_is_down_when_the_target_ends_does_not_hold_the_run_up(start: Start) -> None:
    run = start('[[fault]]\nkind = "process.kill"\non = "worker-1"\nat = "round 199"\nrestart-after = "50 s"')
    run.end()
    run.assert_clean()
    (end,) = [record for record in run.journal() if record.kind == "end"]
    assert end["outcome"] == "finished"
    (undone,) = [record for record in run.journal() if record.kind == "undone"]
    assert undone["clean"]
    assert "the run is ending" in undone["evidence"]["why"]


def test_a_fault_on_a_link_that_carries_nothing_has_not_landed(start: Start) -> None:
    # The worker is dead while its link is slow: no byte passes, so there is nothing that could have been slowed.
    slow = (
        '[[fault]]\nkind = "link.bandwidth"\non = "worker-1 -> counter"\nat = "500 ms"\nfor = "1 s"\nrate = "1 kbit/s"'
    )
    kill = '[[fault]]\nkind = "process.kill"\non = "worker-1"\nat = "10 ms"\nrestart-after = "2 s"'
    run = start(kill + "\n" + slow)
    code, output = run.end()
    assert code == ExitCode.INCONCLUSIVE, output
    landed = {record["injection"]: record["landed"] for record in run.journal() if record.kind == "landed"}
    assert landed == {"process.kill-1#1": True, "link.bandwidth-1#1": False}


def test_an_unknown_key_ends_with_5_before_anything_starts(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text(PAUSE.replace("for =", "fro =")))
    done = chaoskit("run", plan, "--reports", tmp_path / "reports")
    assert done.returncode == ExitCode.INVALID
    assert f"{plan}:" in done.stderr
    assert "'fro'" in done.stderr
    assert "'for'" in done.stderr
    assert not (tmp_path / "reports").exists()


def test_a_role_that_dies_at_start_ends_with_7_and_shows_its_last_words(tmp_path: Path) -> None:
    text = TARGET.read_text().replace('"worker", "--role"', '"dies", "--role"').replace("{here}", str(TARGET.parent))
    (tmp_path / "target.toml").write_text(text)
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text(PAUSE, target=tmp_path / "target.toml"))
    done = chaoskit("run", plan, "--reports", tmp_path / "reports")
    assert done.returncode == ExitCode.TARGET_DIED, done.stderr
    assert "this role dies at start, as it was asked to" in done.stderr
    (run_dir,) = (tmp_path / "reports" / "control").iterdir()
    assert not needs_recovery(run_dir)


def test_a_role_that_ends_before_the_steady_state_ends_with_2_at_once(tmp_path: Path) -> None:
    text = TARGET.read_text().replace('"worker", "--role"', '"leaves", "--role"').replace("{here}", str(TARGET.parent))
    (tmp_path / "target.toml").write_text(text)
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text(PAUSE, target=tmp_path / "target.toml"))
    done = chaoskit("run", plan, "--reports", tmp_path / "reports")
    assert done.returncode == ExitCode.INCONCLUSIVE, done.stderr
    assert "ended by itself before the steady state" in done.stderr
    assert "no worker has written a tape record of kind 'step'" in done.stderr


def test_a_command_that_does_not_exist_is_named_with_its_line_and_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "target.toml").write_text(TARGET.read_text().replace("{python}", "no-such-python"))
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text(PAUSE, target=tmp_path / "target.toml"))
    done = chaoskit("run", plan, "--reports", tmp_path / "reports")
    assert done.returncode == ExitCode.INVALID
    assert "no-such-python" in done.stderr
    assert chaoskit("validate", plan).returncode == ExitCode.INVALID
    assert "target.toml:" in done.stderr
    assert not (tmp_path / "reports").exists()


def test_a_reports_folder_that_cannot_be_made_ends_with_5(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file where a folder should be")
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text(PAUSE))
    done = chaoskit("run", plan, "--reports", tmp_path / "reports")
    assert done.returncode == ExitCode.INVALID
    assert "--reports" in done.stderr


def test_a_daemon_that_cannot_start_ends_with_6_and_names_its_log(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'chaoskit.daemon.core' in sys.orig_argv:\n    sys.exit('no daemon today')\n"
    )
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text(PAUSE))
    command = [sys.executable, "-P", "-m", "chaoskit.cli", "run", str(plan), "--reports", str(tmp_path / "reports")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitCode.INTERNAL, done.stderr
    assert "Traceback" not in done.stderr
    assert "daemon.log" in done.stderr
    (log,) = (tmp_path / "reports").glob("control/*/logs/daemon.log")
    assert "no daemon today" in log.read_text()


def test_a_replay_command_may_name_what_lies_beside_the_target_file(tmp_path: Path) -> None:
    line = '{"fragment": 0, "version": 1, "digest": "abc"}'
    (tmp_path / "replay.py").write_text(f"import sys; print({line!r}) if sys.argv[1:] == ['1'] else sys.exit(3)")
    text = TARGET.read_text().replace("{here}", str(TARGET.parent))
    replay = 'done = "counter"\nreplay = ["{python}", "{here}/replay.py", "{seed}"]'
    (tmp_path / "target.toml").write_text(text.replace('done = "counter"', replay))
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text(PAUSE, target=tmp_path / "target.toml", name="replayed"))
    run = start_run(plan, tmp_path / "reports", "replayed", rounds=120)
    _, output = run.end()
    kinds = [record.kind for record in run.journal()]
    assert kinds.count("replay") == 1, output
    assert "replay-failed" not in kinds


def test_a_plan_that_was_changed_during_the_control_run_is_not_injected(tmp_path: Path) -> None:
    plan, reports = tmp_path / "plan.toml", tmp_path / "reports"
    plan.write_text(plan_text(PAUSE, name="changed"))
    run = start_run(plan, reports, "changed", rounds=120)
    # The control's own folder is there once its daemon has been told which plan was validated.
    control = ToyRun(run.runner, reports / "control", "toy")
    control.wait_for(lambda seen: any(record["kind"] == "phase" and record["phase"] == "chaos" for record in seen))
    plan.write_text(plan_text(PAUSE.replace("worker-0", "worker-2"), name="changed"))
    code, output = run.end()
    assert code == ExitCode.INTERNAL, output
    assert "changed since the run began" in (run.run_dir / "logs" / "daemon.log").read_text()
    assert not (run.run_dir / "journal.jsonl").exists()


def test_an_interrupt_before_the_daemon_listens_is_not_lost(start: Start) -> None:
    run = start(KILL_LATE, rounds=5000)
    run.wait_for_folder()
    run.runner.send_signal(signal.SIGINT)
    code, output = run.end()
    assert code == ExitCode.INTERRUPTED, output
    run.assert_clean()


def test_status_tells_and_stop_heals(start: Start) -> None:
    run = start(KILL_LATE)
    run.wait_for_kinds("landed")
    told = json.loads(chaoskit("status", run.run_dir).stdout)
    assert told["phase"] == "chaos"
    assert told["active"] == ["process.kill-1#1"]
    assert told["roles"]["worker-1"] == "down"
    assert (run.run_dir / "control.sock").stat().st_mode & 0o777 == 0o600
    assert chaoskit("stop", run.run_dir).returncode == 0
    code, output = run.end()
    assert code == ExitCode.INTERRUPTED, output
    run.assert_clean()
    over = chaoskit("status", run.run_dir)
    assert over.returncode == ExitCode.INVALID
    assert "no run is on here" in over.stderr


def _kill_everybody(run: ToyRun) -> None:
    """Runner, guardian and daemon at once: nobody is left to heal."""
    run.runner.send_signal(signal.SIGSTOP)
    daemon, guardian = run.owner_pids()
    for pid in (guardian, daemon, run.runner.pid):
        os.kill(pid, signal.SIGKILL)
    run.runner.wait()


def test_recover_ends_what_a_dead_run_left_and_may_be_called_again(start: Start) -> None:
    run = start(PAUSE.replace('"round 90"', '"10 ms"').replace("300 ms", "50 s"))
    run.wait_for_kinds("landed")
    _kill_everybody(run)
    assert needs_recovery(run.run_dir)
    done = chaoskit("recover", run.run_dir)
    assert done.returncode == 0, done.stderr
    assert "worker-0" in done.stdout
    run.assert_clean()
    again = chaoskit("recover", run.run_dir)
    assert again.returncode == 0
    assert "nothing was left" in again.stdout


def test_the_next_run_ends_what_a_dead_run_left(start: Start, reports: Path, tmp_path: Path) -> None:
    run = start(PAUSE.replace('"round 90"', '"10 ms"').replace("300 ms", "50 s"))
    run.wait_for_kinds("landed")
    _kill_everybody(run)
    assert needs_recovery(run.run_dir)
    plan = tmp_path / "next.toml"
    plan.write_text(plan_text(PAUSE, name="after-the-dead"))
    start_run(plan, reports, "after-the-dead").end()
    run.assert_clean()


def test_recover_refuses_a_run_that_is_on(start: Start) -> None:
    run = start(KILL_LATE)
    run.wait_for_kinds("landed")
    done = chaoskit("recover", run.run_dir)
    assert done.returncode == ExitCode.INVALID
    assert "chaoskit stop" in done.stderr
    chaoskit("stop", run.run_dir)
    run.end()
