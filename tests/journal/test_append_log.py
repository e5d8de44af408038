"""The append-only log: what was written is read, a kill costs at most the last line, damage is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaoskit.errors import JournalError
from chaoskit.journal import AppendLog, read_log
from chaoskit.journal.lines import RESERVED_FIELDS

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.text(max_size=8).filter(lambda name: name not in RESERVED_FIELDS), JSON, max_size=4)
RECORDS = st.lists(st.tuples(st.text(max_size=8), FIELDS), min_size=1, max_size=6)

per_example = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path: Path, records: list[tuple[str, dict[str, Any]]]) -> None:
    path.unlink(missing_ok=True)
    with AppendLog(path) as log:
        for kind, fields in records:
            log.append(kind, **fields)


@per_example
@given(records=RECORDS)
def test_what_is_appended_is_read_back(tmp_path: Path, records: list[tuple[str, dict[str, Any]]]) -> None:
    write(tmp_path / "log", records)
    read, torn = read_log(tmp_path / "log")
    assert not torn
    assert [(record.kind, record.data) for record in read] == records
    assert [record.n for record in read] == list(range(len(records)))


@per_example
@given(records=RECORDS, share=st.floats(0, 1))
def test_a_log_cut_anywhere_keeps_every_whole_line(
    tmp_path: Path, records: list[tuple[str, dict[str, Any]]], share: float
) -> None:
    path = tmp_path / "log"
    write(path, records)
    whole = path.read_bytes()
    cut = int(len(whole) * share)
    path.write_bytes(whole[:cut])
    read, torn = read_log(path)
    assert len(read) == whole[:cut].count(b"\n")
    assert torn == (cut > 0 and whole[cut - 1 : cut] != b"\n")


@per_example
@given(records=RECORDS, share=st.floats(0, 1))
def test_appending_to_a_torn_log_cuts_the_tail_and_goes_on_counting(
    tmp_path: Path, records: list[tuple[str, dict[str, Any]]], share: float
) -> None:
    path = tmp_path / "log"
    write(path, records)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    kept, torn = read_log(path)
    with AppendLog(path) as log:
        assert log.torn == int(torn)
        record = log.append("next")
    assert record.n == len(kept)
    read, torn = read_log(path)
    assert not torn
    assert [r.n for r in read] == list(range(len(kept) + 1))


@per_example
@given(records=RECORDS, place=st.integers(0), bit=st.integers(0, 7))
def test_one_flipped_bit_is_never_read_as_a_record(
    tmp_path: Path, records: list[tuple[str, dict[str, Any]]], place: int, bit: int
) -> None:
    path = tmp_path / "log"
    write(path, records)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    written, _ = read_log(path)
    path.write_bytes(content)
    try:
        read, torn = read_log(path)
    except JournalError:
        return
    assert torn
    assert read == written[: len(read)]


def test_a_missing_line_is_told_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, [("a", {}), ("b", {}), ("c", {})])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(JournalError, match=r":2: record 2 comes after record 0; expected 1"):
        read_log(path)


def test_a_second_writer_continues_where_the_first_is(tmp_path: Path) -> None:
    daemon, guardian = AppendLog(tmp_path / "log"), AppendLog(tmp_path / "log", sync=True)
    numbers = [log.append("x").n for log in (daemon, guardian, guardian, daemon, guardian)]
    assert numbers == [0, 1, 2, 3, 4]
    assert len(read_log(tmp_path / "log")[0]) == 5


def test_a_field_that_every_line_has_is_refused(tmp_path: Path) -> None:
    with AppendLog(tmp_path / "log") as log, pytest.raises(ValueError, match="field 'sum'"):
        log.append("x", sum=3)


def test_a_value_that_json_cannot_say_leaves_the_log_whole(tmp_path: Path) -> None:
    with AppendLog(tmp_path / "log") as log:
        with pytest.raises(TypeError, match="holds a object"):
            log.append("x", value=object())
        assert log.append("y").n == 0
    assert [record.kind for record in read_log(tmp_path / "log")[0]] == ["y"]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    log = AppendLog(path)
    log.append("a")
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, line: real_write(fd, line[:10]))
    with pytest.raises(JournalError, match=r"only 10 of \d+ bytes were written\); is the disk full\?"):
        log.append("b")
    monkeypatch.undo()
    records, torn = read_log(path)
    assert ([record.kind for record in records], torn) == (["a"], False)
    log.append("c")
    assert [record.kind for record in read_log(path)[0]] == ["a", "c"]


def test_a_log_in_a_folder_that_is_not_there_is_a_journal_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be opened for appending"):
        AppendLog(tmp_path / "none" / "log")
    with pytest.raises(JournalError, match="cannot be read"):
        read_log(tmp_path / "none" / "log")


def test_appending_after_the_end_is_an_error(tmp_path: Path) -> None:
    log = AppendLog(tmp_path / "log")
    log.close()
    log.close()
    with pytest.raises(JournalError, match="after the log was closed"):
        log.append("late")
