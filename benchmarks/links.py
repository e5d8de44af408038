"""How fast and how exact the link proxy is on this machine: `python benchmarks/links.py [--rounds 5]`.

Everything is measured against raw loopback in the same run, in interleaved rounds, and medians are printed: on a
shared machine only ratios and medians mean something. Sender, receiver and proxy are processes of their own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chaoskit.links.control import LinkAddress, Proxy
from chaoskit.links.settings import Bandwidth, Latency, Partition

LINK = "learner-0 -> syncer"
FRAME_BYTES = 8 * 1024 * 1024
FRAMES = 64
SMALL_BYTES = 64
SMALL_COUNT = 2000


def serve(publish: Connection, buffer_bytes: int) -> None:
    """The accepting side, its own process. First byte of a connection: `e` echoes, `s` swallows and times a stream."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    publish.send(listener.getsockname()[1])
    view = memoryview(bytearray(1 << 20))
    while True:
        end, _ = listener.accept()
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        what = end.recv(1)
        if what == b"e":
            while size := end.recv_into(view):
                end.sendall(view[:size])
        else:
            total, first_at = 0, 0.0
            while size := end.recv_into(view):
                first_at = first_at or time.monotonic()
                total += size
            end.sendall(repr((total, first_at, time.monotonic())).encode())
        end.close()


def connect(port: int, what: bytes) -> socket.socket:
    end = socket.create_connection(("127.0.0.1", port))
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.sendall(what)
    return end


def stream_s(port: int, size: int) -> float:
    """Seconds from the first byte's arrival to the last byte's, for a stream of `size` bytes."""
    frame = bytes(min(size, FRAME_BYTES))
    with connect(port, b"s") as end:
        sent = 0
        while sent < size:
            end.sendall(frame[: size - sent])
            sent += len(frame)
        end.shutdown(socket.SHUT_WR)
        total, first_at, last_at = eval(end.recv(200).decode(), {}, {})  # noqa: S307 - written by `serve` above
    assert total == size
    return float(last_at - first_at)


def round_trips_s(port: int, count: int, pause_s: float = 0.0) -> list[float]:
    message, trips = bytes(SMALL_BYTES), []
    with connect(port, b"e") as end:
        for _ in range(count):
            if pause_s:
                time.sleep(pause_s)
            begun = time.perf_counter()
            end.sendall(message)
            received = 0
            while received < SMALL_BYTES:
                received += len(end.recv(SMALL_BYTES))
            trips.append(time.perf_counter() - begun)
    return trips


def rows(proxy: Proxy, raw_port: int, rounds: int) -> list[tuple[str, str, str]]:
    """(what, measured, bar) for every figure."""
    port = proxy.port(LINK)
    throughput, raw_throughput, trips, raw_trips = [], [], [], []
    for _ in range(rounds):
        raw_throughput.append(FRAMES * FRAME_BYTES / stream_s(raw_port, FRAMES * FRAME_BYTES) / 1e9)
        throughput.append(FRAMES * FRAME_BYTES / stream_s(port, FRAMES * FRAME_BYTES) / 1e9)
        raw_trips += round_trips_s(raw_port, SMALL_COUNT)
        trips += round_trips_s(port, SMALL_COUNT)
    share = statistics.median(a / b for a, b in zip(throughput, raw_throughput, strict=True))
    raw_us, us = statistics.median(raw_trips) * 1e6, statistics.median(trips) * 1e6
    table = [
        ("stream of 8 MiB frames, raw loopback", f"{statistics.median(raw_throughput):.2f} GB/s", ""),
        ("  through the idle proxy", f"{statistics.median(throughput):.2f} GB/s = {share:.2f} of raw", ">= 0.45"),
        ("64 B round trip, raw loopback", f"{raw_us:.1f} us", ""),
        (
            "  added by the idle proxy",
            f"{us - raw_us:.1f} us (p99 {sorted(trips)[-len(trips) // 100] * 1e6:.0f} us in all)",
            "<= 30 us",
        ),
    ]
    table += [delay_row(proxy, port, delay_s) for delay_s in (0.001, 0.02, 0.08)]
    table += [
        cap_row(proxy, port, rate, size) for rate, size in ((1e6, 250_000), (1e8, 25_000_000), (2e9, 500_000_000))
    ]
    table += [delayed_stream_row(proxy, port), swap_row(proxy, port)]
    return table


def delay_row(proxy: Proxy, port: int, delay_s: float) -> tuple[str, str, str]:
    """Against round trips of the same pace without the fault: processors that have slept wake up late for both."""
    count = max(20, int(1 / delay_s) // 5)
    without = statistics.median(round_trips_s(port, count, pause_s=delay_s))
    proxy.set_faults(LINK, forward=[Latency(f"delay {delay_s}", delay_s=delay_s)])
    delayed = statistics.median(round_trips_s(port, count))
    own = proxy.stats()[LINK].forward.faults[f"delay {delay_s}"].delay
    proxy.set_faults(LINK)
    seen_ms = (delayed - without - delay_s) * 1e3
    counted_ms = (own.total_s / own.count - delay_s) * 1e3
    figure = f"{seen_ms:+.2f} ms; by its own count {counted_ms:+.2f} ms"
    return (f"latency {delay_s * 1e3:g} ms: error, median", figure, "<= 0.3 ms")


def cap_row(proxy: Proxy, port: int, rate_bit_s: float, size: int) -> tuple[str, str, str]:
    proxy.set_faults(LINK, forward=[Bandwidth(f"cap {rate_bit_s}", rate_bit_s=rate_bit_s)])
    fault = Bandwidth("default", rate_bit_s=rate_bit_s)
    measured = (size - fault.burst_bytes) * 8 / stream_s(port, size)
    proxy.set_faults(LINK)
    return (
        f"bandwidth {rate_bit_s / 1e6:g} Mbit/s: error",
        f"{(measured / rate_bit_s - 1) * 100:+.2f} %",
        "within 1 %",
    )


def delayed_stream_row(proxy: Proxy, port: int) -> tuple[str, str, str]:
    proxy.set_faults(LINK, forward=[Latency("delayed stream", delay_s=0.005)])
    gb_s = 16 * FRAME_BYTES / stream_s(port, 16 * FRAME_BYTES) / 1e9
    proxy.set_faults(LINK)
    return ("stream under 5 ms of latency", f"{gb_s:.2f} GB/s", "")


def swap_row(proxy: Proxy, port: int) -> tuple[str, str, str]:
    """How long a removed partition takes to let go: from the call to the first byte at the other side and back."""
    times = []
    with connect(port, b"e") as end:
        for number in range(50):
            proxy.set_faults(LINK, forward=[Partition(f"partition {number}")])
            end.sendall(b"x")
            begun = time.perf_counter()
            proxy.set_faults(LINK)
            end.recv(1)
            times.append(time.perf_counter() - begun)
    return ("partition lifted: until the held byte is back", f"{statistics.median(times) * 1e3:.2f} ms", "<= 5 ms")


def with_server(buffer_bytes: int, body: Callable[[int], Any]) -> Any:
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, buffer_bytes), daemon=True)
    server.start()
    try:
        return body(ours.recv())
    finally:
        server.kill()
        server.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds

    def measure(port: int) -> list[tuple[str, str, str]]:
        with tempfile.TemporaryDirectory() as folder:
            address = Path(folder) / "syncer.address"
            address.write_text(f"127.0.0.1:{port}\n")
            proxy = Proxy.start([LinkAddress(LINK, address)])
            try:
                return rows(proxy, port, rounds)
            finally:
                proxy.close()

    table = Table("measured", "figure", "bar", title=f"link proxy, medians of {rounds} interleaved rounds")
    for row in with_server(4 * 1024 * 1024, measure):
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
