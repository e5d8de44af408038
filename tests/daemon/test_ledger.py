"""The ledger folds to what must still be undone, wherever its writer was killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.daemon.ledger import LEDGER, Ledger, fold, read_ledger
from chaoskit.daemon.recover import end_run, needs_recovery, recover
from chaoskit.errors import UsageError
from chaoskit.journal import Record
from chaoskit.world.process import RUN_MARK, is_alive, kill_exactly, process_stat

ids = st.sampled_from(["a#1", "b#1", "c#1"])
events = st.lists(st.tuples(st.sampled_from(["intent", "undone", "unclean"]), ids), max_size=12)


def records_of(story: list[tuple[str, str]]) -> list[Record]:
    data = {
        "intent": lambda name: {"injection": name, "fault": "process.pause", "until_t": 0.0},
        "undone": lambda name: {"injection": name, "clean": True},
        "unclean": lambda name: {"injection": name, "clean": False},
    }
    kinds = {"intent": "intent", "undone": "undone", "unclean": "undone"}
    return [Record(n, 0.0, "daemon", kinds[kind], data[kind](name)) for n, (kind, name) in enumerate(story)]


@given(story=events)
def test_an_injection_is_open_from_its_intent_to_its_clean_undoing(story: list[tuple[str, str]]) -> None:
    expected: set[str] = set()
    for kind, name in story:
        if kind == "intent":
            expected.add(name)
        elif kind == "undone":
            expected.discard(name)
    assert set(fold(records_of(story)).open_injections) == expected


def test_a_run_without_a_closed_ledger_needs_recovery_and_one_with_does_not(tmp_path: Path) -> None:
    assert not needs_recovery(tmp_path)
    ledger = Ledger(tmp_path)
    assert not needs_recovery(tmp_path)
    ledger.write("open", owners=[])
    assert needs_recovery(tmp_path)
    ledger.write("closed", residue=[])
    assert not needs_recovery(tmp_path)


def test_a_run_closed_with_a_residue_still_needs_recovery(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.write("closed", residue=["learner-1 (pid 7) is still alive"])
    assert needs_recovery(tmp_path)


def test_a_torn_intent_has_had_no_effect_and_is_left_out(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.write("intent", injection="a#1", fault="process.pause", until_t=1.0)
    ledger.write("intent", injection="b#1", fault="process.pause", until_t=1.0)
    ledger.close()
    path = tmp_path / LEDGER
    path.write_bytes(path.read_bytes()[:-10])
    state = read_ledger(tmp_path)
    assert set(state.open_injections) == {"a#1"}
    assert state.torn


def test_a_ledger_that_cannot_be_read_is_not_clean_until_it_was_recovered_twice(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.write("open", owners=[])
    ledger.write("spawn", role="learner-1", pid=1, start_time=1)
    ledger.close()
    path = tmp_path / LEDGER
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert needs_recovery(tmp_path)
    first = end_run(tmp_path, "test")
    assert "cannot be read" in first.unproved[0]
    assert needs_recovery(tmp_path)
    assert end_run(tmp_path, "test").unproved == ()
    assert not needs_recovery(tmp_path)


def test_a_later_process_of_the_same_pid_is_not_touched_and_ending_twice_is_fine(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        stat = process_stat(stranger.pid)
        assert stat is not None
        ledger = Ledger(tmp_path)
        ledger.write("spawn", role="learner-1", pid=stranger.pid, start_time=stat.start_time - 1)
        ledger.write("intent", injection="a#1", fault="process.pause", until_t=1.0)
        ledger.close()
        for _ in range(2):
            recovery = end_run(tmp_path, "test")
            assert recovery.killed == ()
            assert recovery.unproved == ()
            assert not needs_recovery(tmp_path)
        assert is_alive(stranger.pid, stat.start_time)
        stranger.kill()


def test_ending_a_run_that_never_had_a_ledger_is_no_crash(tmp_path: Path) -> None:
    assert end_run(tmp_path, "test").unproved == ()
    assert not needs_recovery(tmp_path)


def test_recovering_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a run folder"):
        recover(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_daemon_is_ended_with_its_run(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as daemon:
        stat = process_stat(daemon.pid)
        assert stat is not None
        os.kill(daemon.pid, signal.SIGSTOP)
        ledger = Ledger(tmp_path)
        ledger.write("open", owners=[{"pid": daemon.pid, "start_time": stat.start_time}])
        ledger.close()
        (tmp_path / "run.json").write_text("{}")
        try:
            assert recover(tmp_path).unproved == ()
            assert not is_alive(daemon.pid, stat.start_time)
        finally:
            # A stopped child is waited for when the block is left: a failure here must not hang.
            daemon.kill()


def test_a_kill_needs_the_right_start_time() -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        stat = process_stat(stranger.pid)
        assert stat is not None
        kill_exactly(stranger.pid, stat.start_time - 1)
        assert is_alive(stranger.pid, stat.start_time)
        kill_exactly(stranger.pid, stat.start_time)
        assert stranger.wait(timeout=10) == -signal.SIGKILL


def test_a_listed_and_a_marked_process_are_both_ended(tmp_path: Path) -> None:
    marked = subprocess.Popen(["sleep", "60"], env={**os.environ, RUN_MARK: str(tmp_path)})
    listed = subprocess.Popen(["sleep", "60"])
    stat = process_stat(listed.pid)
    assert stat is not None
    ledger = Ledger(tmp_path)
    ledger.write("spawn", role="learner-1", pid=listed.pid, start_time=stat.start_time)
    ledger.close()
    recovery = end_run(tmp_path, "test")
    assert set(recovery.killed) == {f"learner-1 (pid {listed.pid})", f"marked process (pid {marked.pid})"}
    assert recovery.unproved == ()
