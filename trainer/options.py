"""What every role is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.config import Config


@dataclass(frozen=True)
class RoleOptions:
    """`state` is the run's state folder, shared by all roles; `tape` is this process's own file."""

    config: Config
    state: Path
    tape: Path | None
    seed: int
    run_id: str
