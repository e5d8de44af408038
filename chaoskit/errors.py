"""Every class of failure, its exception and its exit code: one table, for code, command line and
documentation."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """What `chaoskit` exits with. Continuous integration may rely on these numbers."""

    PASSED = 0
    PROBE_FAILED = 1
    INCONCLUSIVE = 2
    """The steady state was never reached, a probe is unknown, or a fault did not land."""
    RESIDUE = 3
    """An undo could not be verified."""
    ABORTED = 4
    """A safety condition ended the run."""
    INVALID = 5
    """The plan, the target file or the command line is wrong; nothing was started."""
    INTERNAL = 6
    """A part of chaoskit itself failed; the run proves nothing."""
    TARGET_DIED = 7
    """The trainer died outside any fault."""
    INTERRUPTED = 130
    """Interrupted by the user, and healed."""


class ChaoskitError(Exception):
    """Base of all errors that chaoskit raises on purpose. `exit_code` says how the command line ends."""

    exit_code = ExitCode.INTERNAL


class UsageError(ChaoskitError):
    """The command line, a path or a setting is wrong; nothing was started."""

    exit_code = ExitCode.INVALID


class PlanError(ChaoskitError):
    """A plan or target file is invalid. Carries every problem found, each as "path:line: what happened;
    expected ..."."""

    exit_code = ExitCode.INVALID

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class PreflightError(ChaoskitError):
    """Something the run needs is not there (a port, a folder, a right). No side effect has happened."""

    exit_code = ExitCode.INCONCLUSIVE


class JournalError(ChaoskitError):
    """A journal cannot be read: wrong format version, or damaged before its last line."""

    exit_code = ExitCode.INVALID


class ResidueError(ChaoskitError):
    """Something of a run could not be proved undone."""

    exit_code = ExitCode.RESIDUE


def nearest(name: str, valid: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the valid name closest to `name`, or an empty string where none is
    close."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
