"""The arithmetic of caps and delays, on a clock that the test turns."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.links.counters import Delays
from chaoskit.links.settings import Bandwidth
from chaoskit.links.shaper import (
    CATCH_UP_S_MAX,
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    HELD_BYTES_MAX,
    HELD_CHUNKS_MAX,
    Cap,
    DelayQueue,
    Held,
)

rates_bit_s = st.floats(1e4, 1e10)
shares = st.floats(0.0, 1.0)


def chunk_sizes(rate_bit_s: float, durations_s: list[float]) -> list[int]:
    """Sizes that take about these durations on such a line."""
    return [max(1, int(duration_s * rate_bit_s / 8)) for duration_s in durations_s]


@given(rates_bit_s, st.lists(st.tuples(st.floats(1e-4, 0.2), shares), min_size=1, max_size=60), st.integers(0, 65536))
def test_a_cap_holds_its_rate_whatever_the_chunking_and_however_late_the_sender_wakes(
    rate_bit_s: float, chunks: list[tuple[float, float]], burst_bytes: int
) -> None:
    cap = Cap(Bandwidth("cap", rate_bit_s=rate_bit_s, burst_bytes=burst_bytes))
    sizes = chunk_sizes(rate_bit_s, [duration_s for duration_s, _ in chunks])
    now = start = 1000.0
    release = start
    for position, (size, (_, lateness)) in enumerate(zip(sizes, chunks, strict=True)):
        release = cap.reserve(now, size, backlogged=position > 0)
        # Late, but by less than the chunk takes: a thread that is later on average cannot keep up with any cap.
        now = max(now, release) + 0.9 * lateness * size / (rate_bit_s / 8)
    wanted_s = (sum(sizes) - burst_bytes) / (rate_bit_s / 8)
    assert release - start == pytest.approx(wanted_s, rel=0.01, abs=1e-6)


@given(rates_bit_s, st.lists(st.tuples(st.floats(1e-4, 0.2), st.floats(0, 1.0)), min_size=2, max_size=40))
def test_no_window_passes_more_than_the_rate_and_one_burst(
    rate_bit_s: float, chunks: list[tuple[float, float]]
) -> None:
    rate_bytes_s = rate_bit_s / 8
    cap = Cap(Bandwidth("cap", rate_bit_s=rate_bit_s))
    sizes = chunk_sizes(rate_bit_s, [duration_s for duration_s, _ in chunks])
    arrival = left = 0.0
    passed: list[tuple[float, int]] = []
    for size, (_, gap_s) in zip(sizes, chunks, strict=True):
        arrival = max(arrival + gap_s, left)
        left = max(arrival, cap.reserve(arrival, size, backlogged=arrival == left))
        passed.append((left, size))
    for first, last in itertools.combinations(range(len(passed)), 2):
        window_s = passed[last][0] - passed[first][0]
        after_first = sum(size for _, size in passed[first + 1 : last + 1])
        assert after_first <= window_s * rate_bytes_s + cap.fault.burst_bytes + 1 + 1e-6 * rate_bytes_s


def test_an_idle_line_earns_its_burst_and_nothing_more() -> None:
    cap = Cap(Bandwidth("cap", rate_bit_s=8e6, burst_bytes=1000))
    cap.reserve(0.0, 1_000_000, backlogged=False)
    assert cap.reserve(3600.0, 1000, backlogged=False) == pytest.approx(3600.0)
    assert cap.reserve(3600.0, 1000, backlogged=True) == pytest.approx(3600.001)


def test_a_stalled_receiver_earns_no_more_than_the_bounded_credit() -> None:
    cap = Cap(Bandwidth("cap", rate_bit_s=8e6, burst_bytes=0))
    cap.reserve(0.0, 1000, backlogged=False)
    credit_bytes = int(CATCH_UP_S_MAX * 1e6)
    assert cap.reserve(60.0, credit_bytes, backlogged=True) == pytest.approx(60.0)
    assert cap.reserve(60.0, 1_000_000, backlogged=True) == pytest.approx(61.0)


def test_a_new_cap_has_no_lateness_to_catch_up() -> None:
    cap = Cap(Bandwidth("cap", rate_bit_s=8e6, burst_bytes=0))
    assert cap.reserve(5.0, 1_000_000, backlogged=True) == pytest.approx(6.0)


@given(rates_bit_s)
def test_a_slice_is_short_at_every_rate_but_never_tiny(rate_bit_s: float) -> None:
    size = Cap(Bandwidth("cap", rate_bit_s=rate_bit_s)).chunk_bytes
    assert CHUNK_BYTES_MIN <= size <= CHUNK_BYTES_MAX
    assert size == CHUNK_BYTES_MIN or size / (rate_bit_s / 8) <= 0.005


@given(st.lists(st.tuples(st.binary(max_size=9), shares), max_size=40), st.lists(shares, max_size=80))
def test_a_delay_queue_keeps_order_and_lets_nothing_out_early(
    arrivals: list[tuple[bytes, float]], delays_s: list[float]
) -> None:
    queue, now, left = DelayQueue(), 0.0, []
    for data, gap_s in arrivals:
        now += gap_s
        queue.push(Held(data, read_at=now, entered=now))
    for delay_s in [*delays_s, 0.0]:  # the delay is changed again and again, and removed at the end
        while (wait_s := queue.wait_s(now, delay_s)) is not None and wait_s <= 0:
            held = queue.pop()
            assert now >= held.entered + delay_s - 1e-9
            left.append(held.data)
        now += 0.05
    assert left == [data for data, _ in arrivals]
    assert queue.bytes == 0
    assert queue.head() is None


def test_a_delay_queue_is_bounded_in_bytes_and_in_chunks_but_an_empty_one_takes_any_chunk() -> None:
    queue = DelayQueue()
    assert queue.has_room(HELD_BYTES_MAX + 1)
    queue.push(Held(bytes(CHUNK_BYTES_MAX), 0.0, 0.0))
    assert queue.has_room(HELD_BYTES_MAX - CHUNK_BYTES_MAX)
    assert not queue.has_room(HELD_BYTES_MAX - CHUNK_BYTES_MAX + 1)
    for _ in range(HELD_CHUNKS_MAX - 1):
        queue.push(Held(b"x", 0.0, 0.0))
    assert not queue.has_room(1)


@given(st.lists(st.floats(1e-6, 900.0), min_size=1, max_size=60))
def test_the_histogram_knows_the_median_within_a_bucket(delays_s: list[float]) -> None:
    histogram = Delays()
    for delay_s in delays_s:
        histogram.add(delay_s)
    stats = histogram.stats()
    assert stats.count == len(delays_s)
    assert stats.total_s == pytest.approx(sum(delays_s))
    assert (stats.least_s, stats.max_s) == (min(delays_s), max(delays_s))
    assert stats.median_s == pytest.approx(statistics.median_low(delays_s), rel=0.023)


def test_a_histogram_of_nothing_is_all_zeros() -> None:
    stats = Delays().stats()
    assert (stats.count, stats.total_s, stats.least_s, stats.max_s, stats.median_s) == (0, 0.0, 0.0, 0.0, 0.0)
