"""Faults as they travel to the proxy: read strictly, and refused with the nearest name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.links.settings import (
    Bandwidth,
    Latency,
    LinkError,
    LinkFault,
    Partition,
    decode_fault,
    decode_faults,
)

ids = st.text(min_size=1, max_size=20)
faults = st.one_of(
    st.builds(Latency, ids, st.floats(1e-6, 600.0)),
    st.builds(Bandwidth, ids, st.floats(1e3, 1e12), st.integers(0, 1 << 30)),
    st.builds(Partition, ids),
)


@given(faults)
def test_a_fault_comes_out_of_json_as_it_went_in(fault: LinkFault) -> None:
    assert decode_fault(msgspec.json.decode(msgspec.json.encode(fault))) == fault


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"id": "slow#1", "kind": "latencyy", "delay_s": 1}, "unknown kind 'latencyy'.*did you mean 'latency'"),
        ({"id": "slow#1", "kind": "latency", "delay_ms": 1}, "unknown key 'delay_ms'.*did you mean 'delay_s'"),
        ({"id": "slow#1", "kind": "latency"}, "delay_s"),
        ({"id": "slow#1", "kind": "latency", "delay_s": "1"}, "delay_s"),
        ({"id": "slow#1", "kind": "latency", "delay_s": 0}, "above 0"),
        ({"id": "slow#1", "kind": "latency", "delay_s": -1}, "above 0"),
        ({"id": "slow#1", "kind": "latency", "delay_s": float("nan")}, "above 0"),
        ({"id": "slow#1", "kind": "latency", "delay_s": 50_000}, "at most 600"),
        ({"id": "slow#1", "kind": "bandwidth", "rate_bit_s": 0}, "use a partition"),
        ({"id": "slow#1", "kind": "bandwidth", "rate_bit_s": 1e6, "burst_bytes": -1}, "0 or more"),
        ({"id": "", "kind": "partition"}, "1 to 200"),
        ({"kind": "partition"}, "id"),
        ({"id": "slow#1"}, "unknown kind None"),
        ("partition", "expected an object"),
    ],
)
def test_a_fault_that_is_not_quite_right_is_refused_and_the_error_says_what_was_expected(raw: Any, said: str) -> None:
    with pytest.raises(LinkError, match=f"(?s)somewhere.*{said}"):
        decode_fault(raw, "somewhere")


def test_two_faults_of_one_direction_need_two_ids() -> None:
    with pytest.raises(LinkError, match="two faults have the id 'cut#1'"):
        decode_faults([{"id": "cut#1", "kind": "partition"}, {"id": "cut#1", "kind": "partition"}], "forward")


def test_too_many_faults_at_once_are_refused() -> None:
    with pytest.raises(LinkError, match="at most 64"):
        decode_faults([{"id": f"cut#{n}", "kind": "partition"} for n in range(65)], "forward")
