"""Following a file that grows: every whole line once, in order, however the bytes arrive."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.journal import AppendLog, Follower

LINES = st.lists(
    st.one_of(
        st.builds(lambda n: json.dumps({"t": 1.5, "kind": "step", "n": n}).encode(), st.integers(0, 10**6)),
        st.binary(max_size=20).filter(lambda line: b"\n" not in line),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(lines=LINES, cuts=st.lists(st.floats(0, 1), max_size=8), poll_bytes_max=st.integers(64, 300))
def test_lines_come_once_and_in_order_however_the_bytes_arrive(
    lines: list[bytes], cuts: list[float], poll_bytes_max: int
) -> None:
    content = b"".join(line + b"\n" for line in lines)
    good = [json.loads(line) for line in lines if line.startswith(b'{"t"')]
    places = [0, *sorted(int(len(content) * cut) for cut in cuts), len(content)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tape"
        follower = Follower(path, poll_bytes_max=poll_bytes_max)
        assert follower.poll() == []
        seen = []
        for start, end in itertools.pairwise(places):
            with path.open("ab") as file:
                file.write(content[start:end])
            seen += follower.poll()
        for _ in range(len(content) // poll_bytes_max + len(lines) + 1):
            seen += follower.poll()
        follower.close()
    assert seen == good
    assert follower.damaged == len(lines) - len(good)


def test_a_torn_tail_that_its_writer_cuts_later_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = Follower(path)
    with AppendLog(path) as log:
        log.append("a")
    with path.open("ab") as file:
        file.write(b'{"n":1,"t":2.0,"kind":"torn and much longer than what comes next')
    assert [record["kind"] for record in follower.poll()] == ["a"]
    with AppendLog(path) as log:
        assert log.torn == 1
        log.append("b")
        log.append("c")
    assert [record["kind"] for record in follower.poll()] == ["b", "c"]
    assert follower.damaged == 0


def test_an_endless_line_is_dropped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "tape"
    looks_like_a_line = b'{"t":1,"kind":"within"}'
    path.write_bytes(b"x" * 1000 + looks_like_a_line + b'\n{"t":1,"kind":"after"}\n')
    follower = Follower(path, poll_bytes_max=100)
    seen = [record for _ in range(20) for record in follower.poll()]
    assert [record["kind"] for record in seen] == ["after"]
    assert follower.damaged == 1


def test_a_journal_line_is_checked_and_shown_without_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with AppendLog(path) as log:
        log.append("phase", phase="chaos")
        log.append("phase", phase="heal")
    path.write_bytes(path.read_bytes().replace(b"heal", b"hell"))
    follower = Follower(path)
    (record,) = follower.poll()
    assert (record["phase"], record["n"], "sum" in record) == ("chaos", 0, False)
    assert follower.damaged == 1
