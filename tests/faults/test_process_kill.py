"""process.kill on real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaoskit.world.process import process_stat
from tests.conftest import Start
from tests.toy.runs import TARGET

pytestmark = pytest.mark.process


def test_the_role_dies_by_signal_9_and_comes_back_as_another_process(start: Start) -> None:
    run = start('[[fault]]\nkind = "process.kill"\non = "worker-1"\nat = "round 30"\nrestart-after = "100 ms"')
    run.end()
    run.assert_clean()
    journal = run.journal()
    (applied,) = [record for record in journal if record.kind == "applied"]
    (landed,) = [record for record in journal if record.kind == "landed"]
    (undone,) = [record for record in journal if record.kind == "undone"]
    (pid,), (start_time,) = applied["evidence"]["pids"], applied["evidence"]["start_times_ticks"]
    gone = process_stat(pid)
    assert gone is None or gone.start_time != start_time
    assert landed["landed"]
    assert landed["evidence"] == {"worker-1_ended_by": "signal 9", "gone_pids": [pid]}
    assert undone["clean"]
    assert undone["evidence"]["worker-1_new_pid"] != pid
    assert (run.run_dir / "tape" / "worker-1.2.jsonl").exists()


def test_what_the_role_had_started_dies_with_it(start: Start, tmp_path: Path) -> None:
    text = TARGET.read_text().replace('"worker", "--role"', '"worker", "--child", "near", "--role"')
    (tmp_path / "target.toml").write_text(text.replace("{here}", str(TARGET.parent)))
    kill = '[[fault]]\nkind = "process.kill"\non = "worker-1"\nat = "20 ms"\nrestart-after = "40 s"'
    run = start(kill, target=tmp_path / "target.toml")
    run.wait_for_kinds("landed")
    lines = (run.run_dir / "tape" / "worker-1.1.jsonl").read_text().splitlines()
    (child,) = [record["pid"] for record in map(json.loads, lines) if record["kind"] == "child"]
    stat = process_stat(child)
    assert stat is None or stat.state == "Z"
    run.runner.terminate()
    run.end()
    run.assert_clean()


def test_what_a_role_had_started_apart_does_not_outlive_the_run(start: Start, tmp_path: Path) -> None:
    text = TARGET.read_text().replace('"worker", "--role"', '"worker", "--child", "apart", "--role"')
    (tmp_path / "target.toml").write_text(text.replace("{here}", str(TARGET.parent)))
    kill = '[[fault]]\nkind = "process.kill"\non = "worker-1"\nat = "20 ms"\nrestart-after = "50 ms"'
    run = start(kill, target=tmp_path / "target.toml")
    run.end()
    for tape in (run.run_dir / "tape").glob("worker-*.jsonl"):
        (child,) = [r["pid"] for r in map(json.loads, tape.read_text().splitlines()) if r["kind"] == "child"]
        stat = process_stat(child)
        assert stat is None or stat.state == "Z", tape
    run.assert_clean()


def test_several_roles_die_at_once(start: Start) -> None:
    run = start(
        '[[fault]]\nkind = "process.kill"\non = ["worker-0", "worker-2"]\nat = "20 ms"\nrestart-after = "50 ms"'
    )
    run.end()
    run.assert_clean()
    deaths = [record["role"] for record in run.journal() if record.kind == "exit" and record["signal"] == 9]
    assert sorted(deaths) == ["worker-0", "worker-2"]


def test_more_roles_than_the_limit_allows_are_not_killed(start: Start) -> None:
    first = '[[fault]]\nkind = "process.kill"\non = "worker-0"\nat = "20 ms"\nrestart-after = "1 s"'
    second = '[[fault]]\nkind = "process.kill"\non = "worker-2"\nat = "100 ms"\nrestart-after = "1 s"'
    run = start(first + "\n" + second, limits="down-max = 1")
    code, output = run.end()
    (skipped,) = [record for record in run.journal() if record.kind == "skipped"]
    assert skipped["injection"] == "process.kill-2#1"
    assert "down-max" in skipped["why"]
    assert code == 2, output
