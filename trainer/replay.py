"""`python -m trainer replay --run DIR`: fold every recorded contribution from theta_0 on, and print what each merge
gives.

One JSON object a line, {fragment, version, digest}, from version 0. Equal to the syncer's tape bit for bit, or some
outer state has changed behind the tape's back (S11).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import msgspec
import numpy as np

from trainer.config import Config, from_mapping
from trainer.durable import DurableError, read_contributions, read_fragment
from trainer.fragments import Fragment, digest_of, fragments_of, initial_theta
from trainer.merge import merge


@dataclass(frozen=True)
class Replayed:
    fragment: int
    version: int
    digest: str


def find_state(run: Path) -> Path:
    """The state folder of a run folder (RUN/target), or `run` itself when it is one.

    Raises:
        DurableError: neither is.
    """
    for candidate in (run / "target", run):
        if (candidate / "run.json").is_file():
            return candidate
    raise DurableError(f"{run}: no run.json in it or in its folder target/; expected a run folder of this trainer")


def replay_fragment(state_dir: Path, config: Config, fragment: Fragment, seed: int) -> Iterator[Replayed]:
    """Every version of one fragment in turn; ends where the recorded contributions end."""
    theta = initial_theta(fragment, seed)
    momentum = np.zeros_like(theta)
    yield Replayed(fragment.index, 0, digest_of(theta))
    for version in range(1, config.versions_total + 1):
        try:
            contributions = read_contributions(state_dir, fragment, version)
        except FileNotFoundError:
            return
        merged = merge(
            theta, momentum, contributions, fragment.tensors,
            lr=config.protocol.outer_lr, mu=config.protocol.outer_momentum,
        )  # fmt: skip
        theta, momentum = merged.theta, merged.momentum
        yield Replayed(fragment.index, version, digest_of(theta))


def run(run_dir: Path, *, prune: bool = False, out: TextIO = sys.stdout) -> int:
    """Replay a whole run. `prune`: then delete the contributions, if the durable state agrees."""
    state_dir = find_state(run_dir)
    about = msgspec.json.decode((state_dir / "run.json").read_bytes())
    config = from_mapping(about["config"], str(state_dir / "run.json"))
    agrees = True
    for fragment in fragments_of(config.model, config.protocol.P):
        last = None
        for last in replay_fragment(state_dir, config, fragment, about["seed"]):
            out.write(msgspec.json.encode(last).decode() + "\n")
        stored = read_fragment(state_dir, fragment)
        newest = (stored.version, digest_of(stored.theta))
        agrees = agrees and last is not None and (last.version, last.digest) == newest
    out.flush()
    if prune and agrees:
        shutil.rmtree(state_dir / "contributions", ignore_errors=True)
    return 0
