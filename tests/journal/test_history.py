"""The merged history: one order by time, no file's own order ever changed, damage counted."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.errors import JournalError
from chaoskit.journal import AppendLog, Record, history, merge

TIMES = st.lists(st.floats(0, 100), max_size=8)


def tape(run_dir: Path, name: str, *lines: dict[str, Any] | bytes) -> None:
    (run_dir / "tape").mkdir(exist_ok=True)
    encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    (run_dir / "tape" / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in encoded))


def journal(run_dir: Path, *records: tuple[float, str, dict[str, Any]], header: bool = True) -> None:
    times = iter([0.0] * header + [t for t, _, _ in records])
    with AppendLog(run_dir / "journal.jsonl", clock=lambda: next(times)) as log:
        if header:
            log.append("journal", format=1, run="test")
        for _, kind, fields in records:
            log.append(kind, **fields)


@given(files=st.lists(TIMES, max_size=4))
def test_merging_keeps_every_record_and_the_order_of_each_file(files: list[list[float]]) -> None:
    told = [
        [Record(line, t, f"node-{number}", "x", {"line": line}) for line, t in enumerate(times)]
        for number, times in enumerate(files)
    ]
    merged = merge(told)
    assert [record.n for record in merged] == list(range(sum(map(len, files))))
    for number, file in enumerate(told):
        assert [(r["line"], r.t) for r in merged if r.node == f"node-{number}"] == [(r["line"], r.t) for r in file]


@given(files=st.lists(TIMES.map(sorted), max_size=4))
def test_merging_files_in_order_gives_an_order_by_time(files: list[list[float]]) -> None:
    merged = merge([[Record(0, t, "x", "x", {}) for t in times] for times in files])
    assert all(a.t <= b.t for a, b in itertools.pairwise(merged))


def test_journal_and_tapes_are_one_history(tmp_path: Path) -> None:
    journal(
        tmp_path, (1.0, "phase", {"phase": "steady"}), (3.0, "phase", {"phase": "chaos"}), (9.0, "end", {"why": ""})
    )
    tape(tmp_path, "syncer.1", {"t": 2, "kind": "config", "learners": 4})
    tape(tmp_path, "learner-2.10", {"t": 5.0, "kind": "ready"})
    tape(
        tmp_path,
        "learner-2.2",
        {"t": 4.0, "kind": "start", "role": "learner-2", "format": 1},
        {"t": 5.0, "kind": "step"},
    )
    told = history(tmp_path)
    assert [(r.n, r.node, r.kind) for r in told.records] == [
        (0, "daemon", "journal"),
        (1, "daemon", "phase"),
        (2, "syncer", "config"),
        (3, "daemon", "phase"),
        (4, "learner-2", "start"),
        (5, "learner-2", "step"),
        (6, "learner-2", "ready"),
        (7, "daemon", "end"),
    ]
    assert told.config is not None
    assert told.config["learners"] == 4
    assert told.phases == [("steady", 1.0, 3.0), ("chaos", 3.0, 9.0)]
    assert [r.n for r in told.of("step", "config", "step")] == [2, 5]
    assert told.nodes == ("daemon", "learner-2", "syncer")


def test_damaged_tape_lines_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    journal(tmp_path)
    good = {"t": 1.0, "kind": "step"}
    tape(tmp_path, "learner-0.1", good, b"{not json", b"\xff\xfe", b"[]", b'{"t":"1","kind":"step"}', b'{"t":1}', good)
    with (tmp_path / "tape" / "learner-0.1.jsonl").open("ab") as file:
        file.write(b'{"t":2.0,"kind":"cut')
    told = history(tmp_path)
    assert len(told.of("step")) == 2
    assert told.damaged == 5
    assert told.damaged_at[0] == "tape/learner-0.1.jsonl:2"


@given(content=st.binary(max_size=400))
def test_no_tape_can_break_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    journal(run_dir)
    tape(run_dir, "learner-0.1", content)
    assert history(run_dir).damaged <= content.count(b"\n") + 1


def test_an_injection_is_joined_from_all_its_records(tmp_path: Path) -> None:
    journal(
        tmp_path,
        (
            1.0,
            "intent",
            {
                "injection": "kill-one#1",
                "fault": "process.kill",
                "name": "kill-one",
                "targets": ["learner-2"],
                "settings": {"restart_after_s": 0.5},
                "trigger": "round 20",
                "due_t": 0.9,
            },
        ),
        (2.0, "applied", {"injection": "kill-one#1", "targets": ["learner-2"], "evidence": {"pid": 7}}),
        (2.5, "skipped", {"injection": "later#1", "why": "its trigger never came"}),
        (3.0, "landed", {"injection": "kill-one#1", "landed": True, "evidence": {"gone_after_ms": 3}}),
        (4.0, "undo", {"injection": "kill-one#1"}),
        (5.0, "undone", {"injection": "kill-one#1", "clean": False, "evidence": {}}),
    )
    kill, later = history(tmp_path).injections
    assert (kill.id, kill.name, kill.fault, kill.targets) == ("kill-one#1", "kill-one", "process.kill", ("learner-2",))
    assert (kill.t_due, kill.t_intent, kill.t_applied, kill.t_landed, kill.t_undo, kill.t_undone) == (
        0.9,
        1,
        2,
        3,
        4,
        5,
    )
    assert (kill.landed, kill.clean, kill.skipped, kill.window) == (True, False, None, (2.0, 5.0))
    assert kill.settings == {"restart_after_s": 0.5}
    assert len(kill.records) == 5
    assert (later.name, later.skipped, later.landed, later.window) == ("later", "its trigger never came", None, None)


def test_a_journal_of_another_format_is_refused(tmp_path: Path) -> None:
    journal(tmp_path, (1.0, "journal", {"format": 2}), header=False)
    with pytest.raises(JournalError, match=r"journal\.jsonl:1: the journal is of format 2; expected 1"):
        history(tmp_path)


def test_a_tape_of_another_format_is_refused(tmp_path: Path) -> None:
    journal(tmp_path)
    tape(tmp_path, "syncer.1", {"t": 1.0, "kind": "start", "role": "syncer", "format": 9})
    with pytest.raises(JournalError, match=r"syncer\.1\.jsonl:1: the tape is of format 9; expected 1"):
        history(tmp_path)


def test_a_log_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    journal(tmp_path, (1.0, "phase", {}), header=False)
    with pytest.raises(JournalError, match="found 'phase'; expected the record 'journal'"):
        history(tmp_path)
