"""link.partition on a real link."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Start

pytestmark = pytest.mark.process


def test_nothing_passes_and_everything_held_arrives_afterwards(start: Start) -> None:
    run = start('[[fault]]\nkind = "link.partition"\non = "worker-1 <-> counter"\nat = "round 30"\nfor = "800 ms"')
    run.end()
    run.assert_clean()
    journal = run.journal()
    (landed,) = [record for record in journal if record.kind == "landed"]
    (undone,) = [record for record in journal if record.kind == "undone"]
    assert landed["landed"]
    assert undone["clean"]
    times = {record.kind: record.t for record in journal if "injection" in record}
    tape = (run.run_dir / "tape" / "worker-1.1.jsonl").read_text().splitlines()
    steps = [record["t"] for record in map(json.loads, tape) if record["kind"] == "step"]
    # The worker waits for each answer, so from the moment bytes are held it stands until the link is whole again.
    assert not [t for t in steps if times["landed"] < t < times["undo"]]
    assert [t for t in steps if t > times["undone"]]
