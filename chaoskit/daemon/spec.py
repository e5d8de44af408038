"""What the runner tells the daemon, and later reports, about a run: one file, written before anything starts.

A report is made from the run folder alone, so what it needs of the plan (expectations, description) stands here,
as it was when the run was made.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from chaoskit.errors import UsageError

SPEC = "run.json"


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One probe with its tolerances, in the units of code."""

    probe: str
    tolerance: dict[str, float | int | str]
    line: int | None
    """Where the plan names it; None for a default. What a plan names must be judged, or the run is inconclusive."""


class RunSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run to be made. The plan is named by its path and by the digest of what the runner read and validated."""

    plan: str
    plan_sha: str
    about: str
    seed: int
    with_faults: bool
    """False for a control run: the same plan and seed, no injection."""
    control: str | None
    """The control run's folder, relative to this run's; None for a control run itself."""
    command: str
    """The line that reproduces the run."""
    expects: list[Expectation]

    def write(self, run_dir: Path) -> None:
        """Write it into a run folder."""
        (run_dir / SPEC).write_bytes(msgspec.json.format(msgspec.json.encode(self)))


def read_spec(run_dir: Path) -> RunSpec:
    """The spec of a run folder. Raises UsageError when the folder is none."""
    try:
        return msgspec.json.decode((run_dir / SPEC).read_bytes(), type=RunSpec)
    except OSError as error:
        raise UsageError(
            f"{run_dir}: not a run folder ({SPEC}: {error.strerror}); expected one such as reports/NAME-s7-DATE"
        ) from error
    except msgspec.ValidationError as error:
        raise UsageError(f"{run_dir / SPEC}: written by another version of chaoskit: {error}") from error
