"""What a connection through a real proxy process goes through: faults, ends, and what the counters say of them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from chaoskit.links.counters import LinkStats
from chaoskit.links.proxy import CONNECTIONS_PER_LINK_MAX
from chaoskit.links.settings import Bandwidth, Latency, LinkFault, Partition

from .conftest import Wire, nothing_arrives, receive

pytestmark = pytest.mark.process

CUT = Partition("cut#1")
SLOW = Latency("slow#1", delay_s=0.02)
AGES = Latency("ages#1", delay_s=600.0)
TRICKLE = Bandwidth("trickle#1", rate_bit_s=1_000.0, burst_bytes=0)


def reset(end: socket.socket) -> None:
    """Ends a connection as a crash with unread bytes does: with a reset."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


def send_all_of(end: socket.socket, chunks: Iterator[bytes]) -> None:
    for chunk in chunks:
        end.sendall(chunk)


def held_end(stats: LinkStats) -> bool:
    return stats.backward.faults["cut#1"].connections == 1


def sees_a_reset(end: socket.socket) -> bool:
    try:
        return end.recv(1) == b"?"
    except ConnectionResetError:
        return True


def test_without_faults_both_directions_pass_and_are_counted(wire: Wire) -> None:
    client, server = wire.connect()
    client.sendall(b"push")
    assert receive(server, 4) == b"push"
    server.sendall(b"broadcast")
    assert receive(client, 9) == b"broadcast"
    stats = wire.until(lambda stats: (stats.forward.bytes, stats.backward.bytes) == (4, 9))
    assert (stats.accepted, stats.open, stats.forward.chunks) == (1, 1, 1)
    assert stats.forward.faults == stats.backward.faults == {}


def test_a_partition_holds_one_direction_and_lets_go_in_order(wire: Wire) -> None:
    client, server = wire.connect()
    wire.set(forward=[CUT])
    for word in (b"one ", b"two ", b"three"):
        client.sendall(word)
    wire.until(lambda stats: stats.forward.faults["cut#1"].bytes > 0)
    server.sendall(b"the other way")
    assert receive(client, 13) == b"the other way"
    assert nothing_arrives(server)
    wire.set()
    assert receive(server, 13) == b"one two three"
    stats = wire.stats().forward
    assert (stats.held_bytes, stats.faults["cut#1"].present) == (0, False)
    assert stats.faults["cut#1"].delay.count > 0


def test_a_connection_made_during_a_partition_is_held_and_reaches_the_other_side_afterwards(wire: Wire) -> None:
    wire.set(backward=[CUT])
    client = wire.dial()
    client.sendall(b"hello")
    stats = wire.until(lambda stats: stats.backward.faults["cut#1"].connections == 1)
    assert (stats.accepted, stats.forward.bytes) == (1, 0)
    wire.listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        wire.listener.accept()
    wire.listener.settimeout(20.0)
    wire.set()
    assert receive(wire.accept(), 5) == b"hello"


def test_the_end_of_a_stream_is_held_by_a_partition_too(wire: Wire) -> None:
    client, server = wire.connect()
    wire.set(forward=[CUT])
    client.sendall(b"last words")
    client.shutdown(socket.SHUT_WR)
    wire.until(lambda stats: stats.forward.faults["cut#1"].bytes == 10)
    assert nothing_arrives(server)
    wire.set()
    assert receive(server, 99) == b"last words"


@pytest.mark.parametrize("faults", [[], [SLOW]], ids=["clear", "delayed"])
def test_a_half_close_passes_and_the_other_direction_goes_on(wire: Wire, faults: list[Latency]) -> None:
    wire.set(forward=list(faults), backward=list(faults))
    client, server = wire.connect()
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)
    assert receive(server, 99) == b"question"
    server.sendall(b"answer")
    server.close()
    assert receive(client, 99) == b"answer"
    wire.until(lambda stats: stats.open == 0)


def test_each_fault_is_credited_with_the_bytes_it_hit_and_the_delay_it_added(wire: Wire) -> None:
    client, server = wire.connect()
    wire.set(forward=[SLOW, Bandwidth("narrow#1", rate_bit_s=8e6, burst_bytes=0)])
    client.sendall(bytes(50_000))
    assert receive(server, 50_000) == bytes(50_000)
    stats = wire.stats().forward
    slow, narrow = stats.faults["slow#1"], stats.faults["narrow#1"]
    assert slow.bytes == narrow.bytes == 50_000
    assert slow.delay.least_s >= 0.02
    assert stats.delay.least_s >= 0.02
    assert stats.throttled_s == pytest.approx(narrow.delay.total_s)
    assert narrow.delay.total_s > 0
    assert wire.stats().backward.faults == {}


def test_a_removed_latency_lets_go_at_once_in_order(wire: Wire) -> None:
    client, server = wire.connect()
    wire.set(forward=[AGES])
    sent = bytes(range(256)) * 1000
    client.sendall(sent)
    wire.until(lambda stats: stats.forward.faults["ages#1"].bytes == len(sent))
    assert nothing_arrives(server)
    wire.set()
    client.sendall(b"after")
    assert receive(server, len(sent) + 5) == sent + b"after"


def test_a_removed_cap_lets_go_of_all_senders_that_wait_in_its_line(wire: Wire) -> None:
    pairs = [wire.connect() for _ in range(5)]
    wire.set(forward=[TRICKLE])
    for client, _ in pairs:
        client.sendall(bytes(1024))  # 8 s each on such a line: the last would wait for longer than a test waits
    wire.until(lambda stats: stats.forward.faults["trickle#1"].bytes == 5 * 1024)
    wire.set()
    for _, server in pairs:
        assert len(receive(server, 1024)) == 1024


def test_a_partition_stops_what_a_latency_has_in_flight(wire: Wire) -> None:
    client, server = wire.connect()
    wire.set(forward=[AGES])
    client.sendall(b"in flight")
    wire.until(lambda stats: stats.forward.faults["ages#1"].bytes == 9)
    wire.set(forward=[CUT])
    wire.until(lambda stats: stats.forward.faults["cut#1"].bytes == 9)
    assert nothing_arrives(server)
    wire.set()
    assert receive(server, 9) == b"in flight"


def test_a_killed_accepting_side_closes_the_connecting_one(wire: Wire) -> None:
    client, server = wire.connect()
    server.close()
    assert client.recv(1) == b""
    client.close()
    wire.until(lambda stats: stats.open == 0)


def test_a_reset_is_passed_on_as_a_reset_behind_the_bytes_before_it(wire: Wire) -> None:
    client, server = wire.connect()
    wire.set(backward=[SLOW])
    server.sendall(b"last words")
    wire.until(lambda stats: stats.backward.faults["slow#1"].bytes == 10)
    reset(server)
    assert receive(client, 10) == b"last words"
    assert sees_a_reset(client)
    stats = wire.until(lambda stats: stats.open == 0)
    assert stats.reset == 1


def test_the_end_of_a_silent_stream_is_held_by_a_partition_too(wire: Wire) -> None:
    client, server = wire.connect()
    wire.set(forward=[CUT])
    client.close()
    wire.until(lambda stats: stats.forward.faults["cut#1"].connections == 1)
    assert nothing_arrives(server)
    wire.set()
    assert server.recv(1) == b""


def test_a_sender_learns_of_its_dead_receiver_only_when_no_partition_keeps_the_news(wire: Wire) -> None:
    client, server = wire.connect()
    server.close()
    assert client.recv(1) == b""
    wire.set(backward=[CUT])
    for number in range(1, 100):  # the first bytes make the dead peer's kernel answer, later ones meet that answer
        client.sendall(b"?")
        stats = wire.until(lambda stats, number=number: stats.forward.bytes == number or held_end(stats))
        if held_end(stats):
            break
    assert held_end(stats)
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert (stats.open, stats.reset) == (1, 0)
    wire.set()
    stats = wire.until(lambda stats: stats.open == 0)
    assert stats.reset == 1


def test_a_sender_whose_receiver_has_gone_for_good_is_reset(wire: Wire) -> None:
    client, server = wire.connect()
    server.close()
    assert client.recv(1) == b""  # the backward stream has ended; from now on only sending can tell
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        send_all_of(client, iter(lambda: bytes(1000), None))
    wire.until(lambda stats: stats.open == 0)


def test_a_peer_that_is_killed_during_a_partition_wedges_nothing_and_its_successor_starts_clean(wire: Wire) -> None:
    client, server = wire.connect()
    wire.set(forward=[CUT], backward=[CUT])
    client.sendall(b"from the dead")
    wire.until(lambda stats: stats.forward.faults["cut#1"].bytes == 13)
    reset(client)
    reset(server)
    successor = wire.dial()
    successor.sendall(b"I am new")
    wire.until(lambda stats: stats.forward.faults["cut#1"].connections == 1)
    wire.set()
    assert receive(wire.accept(), 8) == b"I am new"
    stats = wire.until(lambda stats: stats.open == 1)
    assert stats.forward.held_bytes == 0


def test_without_an_accepting_side_the_connection_is_closed_until_one_is_published_again(wire: Wire) -> None:
    wire.listener.close()
    assert wire.dial().recv(1) == b""
    wire.address.unlink()
    assert wire.dial().recv(1) == b""
    stats = wire.stats()
    assert stats.no_upstream == 2
    assert "syncer.address" in stats.upstream_error
    wire.listener = wire.listen()
    client, server = wire.connect()
    client.sendall(b"back")
    assert receive(server, 4) == b"back"


@pytest.mark.parametrize("faults", [[CUT], [SLOW, CUT]], ids=["cut", "delayed and cut"])
def test_a_saturated_black_hole_swallows_little_and_no_control_call_waits_for_it(
    wire: Wire, faults: list[LinkFault]
) -> None:
    client, _ = wire.connect()
    wire.set(forward=faults)
    client.settimeout(1.0)  # nobody reads: this send must block, and end in a timeout
    chunks = iter([bytes(65536)] * 1024)
    with pytest.raises(TimeoutError):
        send_all_of(client, chunks)
    swallowed = (1024 - len(list(chunks))) * 65536
    stats = wire.stats()  # every call has a deadline of its own and raises beyond it
    wire.set(forward=[CUT, AGES])
    wire.set(forward=[CUT, TRICKLE])
    wire.set(forward=[CUT])
    # A chunk in the reader's hand, and with a delay one more at the end of its queue.
    assert 0 < stats.forward.held_bytes <= len(faults) * 256 * 1024
    # Besides that, only kernel buffers: the client's own (unbounded by us, 4 MiB by default) and the proxy's.
    assert swallowed <= 8 * 1024 * 1024


def test_more_connections_than_a_link_may_have_are_refused_and_counted(wire: Wire) -> None:
    wire.set(forward=[CUT])
    clients = [wire.dial() for _ in range(CONNECTIONS_PER_LINK_MAX)]
    wire.until(lambda stats: stats.open == CONNECTIONS_PER_LINK_MAX)
    assert wire.dial().recv(1) == b""
    stats = wire.stats()
    assert (stats.accepted, stats.refused) == (CONNECTIONS_PER_LINK_MAX, 1)
    wire.set()
    for client in clients:
        client.close()
        wire.accept().close()
    wire.until(lambda stats: stats.open == 0)
    client, server = wire.connect()
    client.sendall(b"room again")
    assert receive(server, 10) == b"room again"
