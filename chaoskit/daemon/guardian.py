"""The guardian: a small process that starts the daemon, outlives it, and ends everything when the daemon cannot.

    runner ──▶ guardian ──▶ daemon ──▶ roles, proxy
                  ▲   │
       heartbeat ─┘   └─ on the daemon's death, on a missed heartbeat, on a lease that ran out: SIGKILL to every process
                         of the run, proof that they are gone, ledger and journal closed

It is the *subreaper* of the run: when the daemon dies, its orphans become children of the guardian and not of init, so
none can slip away. It imports little, keeps no state but the ledger's, and never talks to the target.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from chaoskit.daemon.ledger import LEDGER, fold
from chaoskit.daemon.recover import end_run, needs_recovery
from chaoskit.errors import ExitCode
from chaoskit.journal import Follower, Record

PR_SET_CHILD_SUBREAPER = 36
HEARTBEAT_DEADLINE_S = 3.0
"""A loop that has not turned for so long is taken for hung: with the kill and its proof, 5 s in all."""
START_DEADLINE_S = 60.0
"""Until the first heartbeat: a loaded machine takes its time to import."""
POLL_S = 0.2
OVERSLEPT_S = 1.0
"""When our own poll was so late, the machine stood still, and the daemon is given its time again."""


class Guardian:
    """Watches one daemon."""

    def __init__(self, run_dir: Path, life_fd: int) -> None:
        self._run_dir = run_dir
        self._ledger = Follower(run_dir / LEDGER)
        self._records: list[Record] = []
        self._heartbeat_fd, heartbeat_in = os.pipe()
        guardian_out, self._guardian_fd = os.pipe()
        os.set_blocking(heartbeat_in, False)
        os.set_blocking(self._heartbeat_fd, False)
        self._daemon = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "chaoskit.daemon.core", str(run_dir)),
                *("--life-fd", str(life_fd), "--heartbeat-fd", str(heartbeat_in), "--guardian-fd", str(guardian_out)),
                *("--guardian-pid", str(os.getpid())),
            ],
            pass_fds=(life_fd, heartbeat_in, guardian_out),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        # Our copies must go: the daemon's end of the life pipe is the only one that may keep it open.
        for fd in (heartbeat_in, guardian_out, life_fd):
            os.close(fd)

    def watch(self) -> ExitCode:
        """Until the daemon has ended by itself or had to be ended. Returns what the guardian exits with."""
        deadline = time.monotonic() + START_DEADLINE_S
        why = None
        while self._daemon.poll() is None and why is None:
            begun = time.monotonic()
            ready, _, _ = select.select([self._heartbeat_fd], [], [], POLL_S)
            now = time.monotonic()
            if ready and os.read(self._heartbeat_fd, 65536):
                deadline = now + HEARTBEAT_DEADLINE_S
            elif ready:
                # The other end is closed: the daemon is dying, and poll() will say so in a moment.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._daemon.wait(timeout=POLL_S)
            if now > begun + POLL_S + OVERSLEPT_S:
                deadline = max(deadline, now + HEARTBEAT_DEADLINE_S)
            elif now > deadline:
                why = f"no heartbeat of the daemon for {HEARTBEAT_DEADLINE_S:g} s"
            else:
                why = self._overdue_lease(now)
        return self._finish(why)

    def interrupt(self, *_: object) -> None:
        """Pass the wish to end on to the daemon, which heals in good order."""
        self._daemon.terminate()

    def _overdue_lease(self, now: float) -> str | None:
        for line in self._ledger.poll():
            kind = str(line.pop("kind"))
            self._records.append(Record(line.pop("n"), line.pop("t"), "daemon", kind, line))
        for injection, intent in fold(self._records).open_injections.items():
            if now > intent["until_t"]:
                return f"the lease of {injection} ran out"
        return None

    def _finish(self, why: str | None) -> ExitCode:
        if why is not None:
            self._daemon.kill()
        code = self._daemon.wait()
        if code == 0 and not needs_recovery(self._run_dir):
            return ExitCode.PASSED
        recovery = end_run(self._run_dir, f"guardian ({why or f'the daemon died with code {code}'})")
        return ExitCode.RESIDUE if recovery.unproved else ExitCode.INTERNAL


def main() -> None:
    """Entry point of the guardian's process."""
    parser = argparse.ArgumentParser(prog="chaoskit-guardian")
    parser.add_argument("run", type=Path)
    parser.add_argument("--life-fd", type=int, required=True)
    arguments = parser.parse_args()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    guardian = Guardian(arguments.run, arguments.life_fd)
    signal.signal(signal.SIGTERM, guardian.interrupt)
    signal.signal(signal.SIGINT, guardian.interrupt)
    sys.exit(guardian.watch())


if __name__ == "__main__":
    main()
