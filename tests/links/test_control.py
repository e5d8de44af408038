"""The daemon's side of the proxy: ports that outlive it, calls with deadlines, and nothing left behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from chaoskit.links.control import LinkAddress, Proxy
from chaoskit.links.settings import Latency, LinkError, Partition, ProxyError

from .conftest import LINK, SOCKET_DEADLINE_S, Wire, receive

pytestmark = pytest.mark.process

CUT = Partition("cut#1")


def gone(pid: int) -> bool:
    """Waits until a process has ended, whether or not somebody has collected its exit status."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], SOCKET_DEADLINE_S)[0])
    finally:
        os.close(process)


def test_a_killed_proxy_is_replaced_on_the_same_port_with_the_same_faults(wire: Wire) -> None:
    client, _ = wire.connect()
    wire.set(forward=[CUT], backward=[Latency("slow#1", delay_s=0.02)])
    port, pid = wire.proxy.port(LINK), wire.proxy.pid
    os.kill(pid, signal.SIGKILL)
    assert receive(client, 1) == b""
    assert gone(pid)
    assert not wire.proxy.alive()
    with pytest.raises(ProxyError, match=r"restart|gone"):
        wire.proxy.stats()
    waiting = wire.dial()  # the listening socket is the daemon's: this one waits in the backlog
    waiting.sendall(b"patience")
    wire.proxy.restart()
    assert wire.proxy.alive()
    assert wire.proxy.port(LINK) == port
    assert wire.proxy.pid != pid
    stats = wire.until(lambda stats: stats.forward.faults["cut#1"].connections == 1)
    assert stats.backward.faults["slow#1"].present
    wire.set()
    assert receive(wire.accept(), 8) == b"patience"


def test_faults_set_while_the_proxy_is_dead_are_in_force_after_its_restart(wire: Wire) -> None:
    os.kill(wire.proxy.pid, signal.SIGKILL)
    assert gone(wire.proxy.pid)
    with pytest.raises(ProxyError):
        wire.set(forward=[CUT])
    wire.proxy.restart()
    assert wire.stats().forward.faults["cut#1"].present
    wire.set()
    assert not wire.stats().forward.faults["cut#1"].present


def test_a_stopped_proxy_does_not_hang_its_daemon_and_can_be_replaced(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaoskit.links.control.CONTROL_DEADLINE_S", 0.1)
    os.kill(wire.proxy.pid, signal.SIGSTOP)
    with pytest.raises(ProxyError, match=r"set: the proxy \(pid \d+\) did not answer within 0.1 s"):
        wire.set(forward=[CUT])
    assert wire.proxy.alive()
    monkeypatch.undo()
    wire.proxy.restart()
    assert wire.stats().forward.faults["cut#1"].present


def test_a_stopped_proxy_is_ended_by_close(wire: Wire) -> None:
    pid = wire.proxy.pid
    os.kill(pid, signal.SIGSTOP)
    wire.proxy.close()
    assert gone(pid)
    assert not wire.proxy.alive()


def test_ctrl_c_in_the_terminal_does_not_reach_the_links(wire: Wire) -> None:
    os.kill(wire.proxy.pid, signal.SIGINT)
    client, server = wire.connect()
    client.sendall(b"still here")
    assert receive(server, 10) == b"still here"
    assert os.getsid(wire.proxy.pid) == wire.proxy.pid


def test_an_unknown_link_is_refused_with_the_nearest_name(wire: Wire) -> None:
    with pytest.raises(LinkError, match=f"unknown link 'learner-1 -> syncer'.*did you mean '{LINK}'"):
        wire.proxy.set_faults("learner-1 -> syncer", [CUT])
    with pytest.raises(LinkError, match="two faults have the id"):
        wire.set(forward=[CUT, CUT])
    assert wire.stats().forward.faults == {}


def test_two_links_of_one_name_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="two links are named"):
        Proxy.start([LinkAddress(LINK, tmp_path / "a"), LinkAddress(LINK, tmp_path / "b")])


def test_close_ends_the_process_frees_the_port_and_may_be_called_twice(wire: Wire) -> None:
    pid, port = wire.proxy.pid, wire.proxy.port(LINK)
    wire.proxy.close()
    wire.proxy.close()
    assert gone(pid)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with pytest.raises(ProxyError):
        wire.proxy.restart()


def test_links_have_settings_of_their_own(tmp_path: Path) -> None:
    other = "learner-1 -> syncer"
    proxy = Proxy.start([LinkAddress(LINK, tmp_path / "a"), LinkAddress(other, tmp_path / "a")])
    try:
        proxy.set_faults(other, backward=[CUT])
        stats = proxy.stats()
        assert proxy.port(LINK) != proxy.port(other)
        assert stats[LINK].backward.faults == {}
        assert stats[other].backward.faults["cut#1"].present
    finally:
        proxy.close()


def test_the_log_takes_what_the_process_says_and_the_environment_reaches_it(tmp_path: Path) -> None:
    log = tmp_path / "proxy.log"
    proxy = Proxy.start([], log=log, environment={"CHAOSKIT_TEST_MARK": "here"})
    try:
        assert b"CHAOSKIT_TEST_MARK=here" in Path(f"/proc/{proxy.pid}/environ").read_bytes().split(b"\0")
        assert log.exists()
    finally:
        proxy.close()


DAEMON = """
import sys
from pathlib import Path
from chaoskit.links.control import LinkAddress, Proxy
proxy = Proxy.start([LinkAddress("learner-0 -> syncer", Path("nowhere"))])
print(proxy.pid, flush=True)
sys.stdin.read()
"""


def test_the_proxy_exits_when_its_daemon_is_killed() -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-P", "-c", DAEMON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    pid = int(daemon.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    daemon.kill()
    daemon.communicate(timeout=SOCKET_DEADLINE_S)
    assert gone(pid)
