"""link.bandwidth on a real link."""

from __future__ import annotations

import pytest

from tests.conftest import Start

pytestmark = pytest.mark.process


def test_no_more_bytes_pass_than_the_cap_allows_and_the_proxy_counted_them(start: Start) -> None:
    run = start(
        '[[fault]]\nkind = "link.bandwidth"\non = "worker-1 -> counter"\nat = "9 ms"\nfor = "2 s"\nrate = "100 kbit/s"'
    )
    run.end()
    run.assert_clean()
    (landed,) = [record for record in run.journal() if record.kind == "landed"]
    (undone,) = [record for record in run.journal() if record.kind == "undone"]
    assert landed["landed"]
    times = {record.kind: record.t for record in run.journal() if "injection" in record}
    evidence = undone["evidence"]["worker-1 -> counter"]
    burst_bytes = 16 * 1024
    # What the proxy has begun to act on: what the cap let pass, plus the chunk that still waits.
    allowed_bytes = 100e3 / 8 * (times["undone"] - times["intent"]) + burst_bytes + 1024
    assert 0 < evidence["bytes_hit"] <= allowed_bytes
    assert evidence["delay_total_s"] > 0
    assert undone["clean"]
    assert not evidence["still_imposed"]
