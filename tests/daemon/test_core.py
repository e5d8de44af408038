"""What the daemon says of itself."""

from __future__ import annotations

import os

from chaoskit.daemon.core import owners


def test_the_guardian_is_an_owner_and_whoever_adopted_the_daemon_is_not() -> None:
    parent = os.getppid()
    assert [owner["pid"] for owner in owners(parent)] == [os.getpid(), parent]
    # The guardian has died, and this parent is a stranger, whom a recovery must never kill.
    assert [owner["pid"] for owner in owners(parent + 1)] == [os.getpid()]
