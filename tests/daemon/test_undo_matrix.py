"""Every way a run can end, with every kind of fault active: nothing is left within 5 s.

The plan is made from the registry, so a new fault cannot escape the matrix: it must be added to `EXAMPLES`, or the
first test fails.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from chaoskit.daemon.ledger import Ledger
from chaoskit.errors import ExitCode
from chaoskit.faults import FAULTS
from tests.conftest import Start
from tests.toy.runs import ToyRun

pytestmark = pytest.mark.process

EXAMPLES = {
    "process.kill": 'on = "worker-1"\nrestart-after = "40 s"',
    "process.pause": 'on = "worker-0"\nfor = "40 s"',
    "link.bandwidth": 'on = "worker-2 -> counter"\nfor = "40 s"\nrate = "100 kbit/s"',
    "link.latency": 'on = "counter -> worker-2"\nfor = "40 s"\ndelay = "20 ms"',
    "link.partition": 'on = "worker-0 <-> counter"\nfor = "40 s"',
}
ALL_FAULTS = "\n".join(f'[[fault]]\nkind = "{kind}"\nat = "10 ms"\n{text}' for kind, text in EXAMPLES.items())


def kill_runner(run: ToyRun) -> None:
    run.runner.kill()


def kill_daemon(run: ToyRun) -> None:
    os.kill(run.owner_pids()[0], signal.SIGKILL)


def kill_daemon_and_runner(run: ToyRun) -> None:
    run.runner.kill()
    kill_daemon(run)


def hang_daemon(run: ToyRun) -> None:
    os.kill(run.owner_pids()[0], signal.SIGSTOP)


def hang_daemon_and_kill_guardian(run: ToyRun) -> None:
    hang_daemon(run)
    kill_guardian(run)
    # Nobody watches the daemon any more: only the runner can end it, after the time it gives a daemon that still heals.
    run.runner.wait(timeout=60)


def kill_guardian(run: ToyRun) -> None:
    os.kill(run.owner_pids()[1], signal.SIGKILL)


def kill_daemon_and_guardian(run: ToyRun) -> None:
    for pid in run.owner_pids():
        os.kill(pid, signal.SIGKILL)


def let_a_lease_run_out(run: ToyRun) -> None:
    Ledger(run.run_dir).write("intent", injection="late#1", fault="process.pause", until_t=0.0)


def kill_the_done_role(run: ToyRun) -> None:
    os.kill(run.pid_of("counter"), signal.SIGKILL)


def kill_proxy_then_interrupt(run: ToyRun) -> None:
    os.kill(run.pid_of("proxy"), signal.SIGKILL)
    interrupt_runner(run)


def interrupt_runner(run: ToyRun) -> None:
    run.runner.send_signal(signal.SIGINT)


def interrupt_runner_twice(run: ToyRun) -> None:
    run.runner.send_signal(signal.SIGINT)
    run.runner.send_signal(signal.SIGINT)


def terminate_runner(run: ToyRun) -> None:
    run.runner.send_signal(signal.SIGTERM)


ENDS: list[tuple[Callable[[ToyRun], None], ExitCode | None]] = [
    (interrupt_runner, ExitCode.INTERRUPTED),
    (kill_proxy_then_interrupt, ExitCode.INTERRUPTED),
    (interrupt_runner_twice, ExitCode.INTERRUPTED),
    (terminate_runner, ExitCode.INTERRUPTED),
    (kill_runner, None),
    (kill_daemon, ExitCode.INTERNAL),
    (kill_daemon_and_runner, None),
    (hang_daemon, ExitCode.INTERNAL),
    (hang_daemon_and_kill_guardian, ExitCode.INTERNAL),
    (kill_guardian, ExitCode.INTERNAL),
    (kill_daemon_and_guardian, ExitCode.INTERNAL),
    (let_a_lease_run_out, ExitCode.INTERNAL),
    (kill_the_done_role, ExitCode.TARGET_DIED),
]


def test_every_kind_of_fault_is_in_the_matrix() -> None:
    assert EXAMPLES.keys() == FAULTS.keys()


@pytest.mark.parametrize(("end", "code"), ENDS, ids=[end.__name__ for end, _ in ENDS])
def test_nothing_is_left_however_the_run_ends(
    start: Start, end: Callable[[ToyRun], None], code: ExitCode | None
) -> None:
    # Far longer than the bar: what ends within it was ended by us, and not by the target itself.
    run = start(ALL_FAULTS, rounds=5000)
    run.wait_for_kinds("applied", injections=len(EXAMPLES))
    end(run)
    run.assert_clean()
    if code is not None:
        found, output = run.end()
        assert found == code, output
        assert ("Ctrl-C" in output) == (found == ExitCode.INTERRUPTED)
    kinds = [record.kind for record in run.journal()]
    assert kinds.count("undone") == len(EXAMPLES) + (end is let_a_lease_run_out)


def test_a_killed_proxy_comes_back_on_the_same_ports_with_the_same_faults(start: Start) -> None:
    run = start(
        '[[fault]]\nkind = "link.latency"\non = "worker-2 -> counter"\nat = "10 ms"\nfor = "1500 ms"\ndelay = "5 ms"'
    )
    run.wait_for_kinds("landed")
    os.kill(run.pid_of("proxy"), signal.SIGKILL)
    run.wait_for(lambda seen: any(r["kind"] == "proxy" and r["event"] == "restart" for r in seen))
    run.end()
    run.assert_clean()
    undone = [record for record in run.journal() if record.kind == "undone"]
    assert [record["clean"] for record in undone] == [True]
