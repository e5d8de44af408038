"""What the connections of one direction share: caps, counters, and the moment of a swap."""

from __future__ import annotations

import pytest

from chaoskit.links.counters import Tally
from chaoskit.links.direction import CLEAR, Direction
from chaoskit.links.settings import Bandwidth, Latency, Partition
from chaoskit.links.shaper import Cap


class Waiter:
    """A connection's direction that only counts how often it was woken."""

    def __init__(self, direction: Direction) -> None:
        self.tally = Tally()
        self.held_bytes = 0
        self.woken = 0
        direction.add(self)

    def wake(self) -> None:
        self.woken += 1


def reserve(direction: Direction, waiter: Waiter, size: int, now: float) -> float:
    reserved: dict[Cap, float] = {}
    return direction.reserve(waiter, direction.snapshot.caps, reserved, size, now)


def test_a_cap_is_shared_by_all_connections_of_a_direction() -> None:
    direction = Direction()
    direction.swap([Bandwidth("cap#1", rate_bit_s=8e6, burst_bytes=0)])
    one, other = Waiter(direction), Waiter(direction)
    releases = [reserve(direction, waiter, 1_000_000, 10.0) for waiter in (one, other, one, other)]
    assert releases == pytest.approx([11.0, 12.0, 13.0, 14.0])


def test_lateness_is_caught_up_while_bytes_wait_and_not_once_the_line_was_idle() -> None:
    direction = Direction()
    direction.swap([Bandwidth("cap#1", rate_bit_s=8e6, burst_bytes=0)])
    waiter = Waiter(direction)
    assert reserve(direction, waiter, 100_000, 10.0) == pytest.approx(10.1)
    assert reserve(direction, waiter, 100_000, 10.15) == pytest.approx(10.2)  # 50 ms late: made good
    direction.idle(waiter)
    assert reserve(direction, waiter, 100_000, 10.25) == pytest.approx(
        10.35
    )  # nothing had waited: nothing to make good


def test_of_several_caps_the_slowest_decides_and_takes_the_blame() -> None:
    direction = Direction()
    direction.swap(
        [Bandwidth("wide#1", rate_bit_s=8e9, burst_bytes=0), Bandwidth("narrow#1", rate_bit_s=8e6, burst_bytes=0)]
    )
    reserved: dict[Cap, float] = {}
    waiter = Waiter(direction)
    assert direction.reserve(waiter, direction.snapshot.caps, reserved, 1_000_000, 10.0) == pytest.approx(11.0)
    direction.throttled(reserved, 1.0)
    stats = direction.stats()
    assert stats.throttled_s == 1.0
    assert (stats.faults["narrow#1"].delay.total_s, stats.faults["wide#1"].delay.total_s) == (1.0, 0.0)


def test_a_cap_that_stays_keeps_its_clock_when_another_fault_comes() -> None:
    direction, cap = Direction(), Bandwidth("cap#1", rate_bit_s=8e6, burst_bytes=0)
    direction.swap([cap])
    waiter = Waiter(direction)
    reserve(direction, waiter, 1_000_000, 10.0)
    direction.swap([Latency("slow#1", delay_s=1.0), cap])
    assert reserve(direction, waiter, 1_000_000, 10.0) == pytest.approx(12.0)


def test_a_cap_with_other_settings_begins_anew() -> None:
    direction = Direction()
    direction.swap([Bandwidth("cap#1", rate_bit_s=8e3, burst_bytes=0)])
    waiter = Waiter(direction)
    reserve(direction, waiter, 1_000_000, 10.0)
    direction.swap([Bandwidth("cap#1", rate_bit_s=8e6, burst_bytes=0)])
    assert reserve(direction, waiter, 1_000_000, 10.0) == pytest.approx(11.0)


def test_latencies_add_up_and_share_what_was_measured_by_their_settings() -> None:
    direction, latencies = Direction(), (Latency("near#1", delay_s=1.0), Latency("far#1", delay_s=3.0))
    direction.swap(latencies)
    assert direction.snapshot.delay_s == 4.0
    direction.delayed(latencies, 4.4)
    faults = direction.stats().faults
    assert (faults["near#1"].delay.total_s, faults["far#1"].delay.total_s) == pytest.approx((1.1, 3.3))


def test_no_faults_is_the_one_clear_snapshot_that_the_fast_path_compares_with() -> None:
    direction = Direction()
    direction.swap([Partition("cut#1")])
    assert direction.snapshot is not CLEAR
    direction.swap([])
    assert direction.snapshot is CLEAR


def test_every_swap_wakes_every_connection() -> None:
    direction = Direction()
    waiter = Waiter(direction)
    direction.swap([Partition("cut#1")])
    direction.swap([])
    assert waiter.woken == 2


def test_a_fault_in_force_is_shown_before_it_has_hit_anything_and_remembered_after_it_was_lifted() -> None:
    direction = Direction()
    direction.swap([Partition("cut#1")])
    shown = direction.stats().faults["cut#1"]
    assert (shown.kind, shown.present, shown.bytes) == ("partition", True, 0)
    direction.hit([Partition("cut#1")], 7)
    direction.swap([])
    shown = direction.stats().faults["cut#1"]
    assert (shown.present, shown.bytes, shown.chunks) == (False, 7, 1)


def test_an_ended_connection_stays_counted_and_what_it_held_is_undelivered() -> None:
    direction = Direction()
    waiter = Waiter(direction)
    waiter.tally.bytes, waiter.tally.chunks = 100, 2
    direction.hold(waiter, 30)
    direction.let_go(waiter, 10, 0.5)
    direction.remove(waiter)
    stats = direction.stats()
    assert (stats.bytes, stats.chunks, stats.undelivered_bytes) == (100, 2, 20)
    assert (stats.held_bytes, stats.held_bytes_max) == (0, 30)
