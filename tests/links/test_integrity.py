"""Whatever faults come and go, the bytes that come out are those that went in: none lost, twice or out of order."""

from __future__ import annotations

import random
import socket
import threading
from collections import deque

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from xxhash import xxh3_64_hexdigest

from chaoskit.links.settings import Bandwidth, Latency, LinkFault, Partition

from .conftest import Ends, Wire, nothing_arrives, receive

pytestmark = pytest.mark.process

fault_lists = st.lists(
    st.sampled_from(
        [
            Latency("near#1", delay_s=0.001),
            Latency("far#1", delay_s=0.02),
            Bandwidth("wide#1", rate_bit_s=4e9),
            Bandwidth("narrow#1", rate_bit_s=2e8),
            Partition("cut#1"),
        ]
    ),
    unique=True,
    max_size=3,
)


def send_in_pieces(end: socket.socket, data: bytes, seed: int) -> None:
    """Small and large pieces, as a trainer's headers and payloads are; then the end of the stream."""
    pieces = random.Random(seed)
    start = 0
    while start < len(data):
        size = pieces.choice((1, 64, 1500, 70_000, 400_000))
        end.sendall(data[start : start + size])
        start += size
    end.shutdown(socket.SHUT_WR)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # no shrinking: what fails here depends on timing too
)
@given(st.lists(st.tuples(fault_lists, fault_lists), min_size=5, max_size=40), st.integers(0, 2**32))
def test_bytes_come_out_as_they_went_in_while_faults_come_and_go_under_load(
    shared_wire: Wire, changes: list[tuple[list[LinkFault], list[LinkFault]]], seed: int
) -> None:
    wire = shared_wire
    client, server = wire.connect()
    sent = {end: random.Random(seed + n).randbytes(6_000_000) for n, end in enumerate((client, server))}
    arrived: dict[socket.socket, bytes] = {}

    def collect(end: socket.socket) -> None:
        arrived[end] = receive(end, 7_000_000)

    senders = [threading.Thread(target=send_in_pieces, args=(end, data, seed)) for end, data in sent.items()]
    receivers = [threading.Thread(target=collect, args=(end,)) for end in (client, server)]
    try:
        for thread in senders + receivers:
            thread.start()
        for forward, backward in changes:
            wire.set(forward, backward)
            wire.stats()
        wire.set()
    finally:
        for thread in senders + receivers:
            thread.join()
    assert xxh3_64_hexdigest(arrived[server]) == xxh3_64_hexdigest(sent[client])
    assert xxh3_64_hexdigest(arrived[client]) == xxh3_64_hexdigest(sent[server])
    stats = wire.until(lambda stats: stats.open == 0)
    assert stats.forward.held_bytes == stats.backward.held_bytes == 0
    assert stats.forward.undelivered_bytes == stats.backward.undelivered_bytes == 0
    wire.close_ends()


class LinkModel(RuleBasedStateMachine):
    """A link beside the simplest model of one: a queue of bytes per direction, let through unless partitioned.

    Latency and bandwidth do not appear in the model: they may delay bytes, never change what arrives.
    """

    wire: Wire

    def __init__(self) -> None:
        super().__init__()
        self.ends: Ends | None = None
        self.way: deque[bytes] = deque()
        self.way_back: deque[bytes] = deque()
        self.cut = self.cut_back = False
        self.wire.set()

    @precondition(lambda self: self.ends is None and not (self.cut or self.cut_back))
    @rule()
    def connect(self) -> None:
        self.ends = self.wire.connect()

    @precondition(lambda self: self.ends is not None)
    @rule(data=st.binary(min_size=1, max_size=3000), back=st.booleans())
    def send(self, data: bytes, back: bool) -> None:
        assert self.ends is not None
        self.ends[back].sendall(data)
        (self.way_back if back else self.way).append(data)

    @rule(forward=fault_lists, backward=fault_lists)
    def swap(self, forward: list[LinkFault], backward: list[LinkFault]) -> None:
        self.drain()  # what was sent before may pass or be held; afterwards it is certain
        self.wire.set(forward, backward)
        self.cut = any(isinstance(fault, Partition) for fault in forward)
        self.cut_back = any(isinstance(fault, Partition) for fault in backward)

    @precondition(lambda self: self.ends is not None)
    @rule(who=st.booleans())
    def die(self, who: bool) -> None:
        """One side is gone, with whatever was on its way; the link must serve the next connection all the same."""
        assert self.ends is not None
        self.ends[who].close()
        self.wire.set()
        self.cut = self.cut_back = False
        self.ends[not who].settimeout(20.0)
        self.ends[not who].close()
        self.ends = None
        self.way.clear()
        self.way_back.clear()
        self.wire.until(lambda stats: stats.open == 0)

    @rule()
    def drain(self) -> None:
        """What may pass arrives, whole and in order."""
        if self.ends is None:
            return
        client, server = self.ends
        for end, way, cut in ((server, self.way, self.cut), (client, self.way_back, self.cut_back)):
            if not cut:
                expected = b"".join(way)
                assert receive(end, len(expected)) == expected
                way.clear()

    @invariant()
    def nothing_passes_a_partition(self) -> None:
        if self.ends is None:
            return
        client, server = self.ends
        assert not self.cut or nothing_arrives(server)
        assert not self.cut_back or nothing_arrives(client)

    def teardown(self) -> None:
        self.cut = self.cut_back = False
        self.wire.set()
        self.drain()
        if self.ends is not None:
            self.die(False)


def test_a_link_behaves_as_its_model_under_any_sequence_of_sends_swaps_and_deaths(shared_wire: Wire) -> None:
    LinkModel.wire = shared_wire
    run_state_machine_as_test(
        LinkModel,
        settings=settings(
            max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
