"""process.pause on real processes."""

from __future__ import annotations

import json

import pytest

from chaoskit.world.process import process_stat
from tests.conftest import Start

pytestmark = pytest.mark.process


def test_the_role_stands_still_for_as_long_as_said_and_goes_on_as_the_same_process(start: Start) -> None:
    run = start('[[fault]]\nkind = "process.pause"\non = "worker-1"\nat = "round 30"\nfor = "600 ms"')
    run.wait_for_kinds("landed")
    stat = process_stat(run.pid_of("worker-1"))
    assert stat is not None
    assert stat.state == "T"
    run.end()
    run.assert_clean()
    journal = run.journal()
    times = {record.kind: record.t for record in journal if record.get("injection") == "process.pause-1#1"}
    tape = (run.run_dir / "tape" / "worker-1.1.jsonl").read_text().splitlines()
    steps = [record["t"] for record in map(json.loads, tape) if record["kind"] == "step"]
    assert not [t for t in steps if times["landed"] < t < times["undo"]]
    assert [t for t in steps if t > times["undone"]]
    (undone,) = [record for record in journal if record.kind == "undone"]
    assert undone["clean"]
    assert not (run.run_dir / "tape" / "worker-1.2.jsonl").exists()


def test_a_second_fault_on_a_role_that_is_still_paused_is_skipped(start: Start) -> None:
    pause = '[[fault]]\nkind = "process.pause"\non = "worker-0"\nat = "{at}"\nfor = "{hold}"\n'
    run = start(pause.format(at="10 ms", hold="600 ms") + pause.format(at="100 ms", hold="1 s"))
    code, output = run.end()
    assert code == 2, output
    (skipped,) = [record for record in run.journal() if record.kind == "skipped"]
    assert "worker-0 is still under process.pause-1#1" in skipped["why"]


def test_pausing_a_dead_role_is_skipped_and_ends_with_2(start: Start) -> None:
    kill = '[[fault]]\nkind = "process.kill"\non = "worker-1"\nat = "20 ms"\nrestart-after = "1 s"'
    pause = '[[fault]]\nkind = "process.pause"\non = "worker-1"\nat = "300 ms"\nfor = "300 ms"'
    run = start(kill + "\n" + pause)
    code, output = run.end()
    assert code == 2, output
    (skipped,) = [record for record in run.journal() if record.kind == "skipped"]
    assert "worker-1 is still under process.kill-1#1" in skipped["why"]
    run.assert_clean()
