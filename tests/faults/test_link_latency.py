"""link.latency on a real link."""

from __future__ import annotations

import pytest

from tests.conftest import Start

pytestmark = pytest.mark.process


def test_the_measured_delay_is_at_least_the_one_asked_for(start: Start) -> None:
    run = start(
        '[[fault]]\nkind = "link.latency"\non = "counter -> worker-1"\nat = "100 ms"\nfor = "800 ms"\ndelay = "30 ms"'
    )
    run.end()
    run.assert_clean()
    (landed,) = [record for record in run.journal() if record.kind == "landed"]
    (undone,) = [record for record in run.journal() if record.kind == "undone"]
    assert landed["landed"]
    assert landed["evidence"]["counter -> worker-1"]["delay_median_ms"] >= 0.97 * 30
    assert undone["clean"]


def test_a_link_that_nobody_uses_meanwhile_is_not_landed(start: Start) -> None:
    # The worker stands still, so that nothing passes its link that could be late.
    pause = '[[fault]]\nkind = "process.pause"\non = "worker-1"\nat = "20 ms"\nfor = "2 s"'
    slow = (
        '[[fault]]\nkind = "link.latency"\non = "worker-1 -> counter"\nat = "400 ms"\nfor = "500 ms"\ndelay = "30 ms"'
    )
    run = start(pause + "\n" + slow)
    code, output = run.end()
    assert code == 2, output
    landed = {record["injection"]: record["landed"] for record in run.journal() if record.kind == "landed"}
    assert landed == {"process.pause-1#1": True, "link.latency-1#1": False}
