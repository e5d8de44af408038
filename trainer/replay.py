"""`python -m trainer replay --run DIR`: fold every recorded contribution from theta_0 on, and print what each merge
gives.

One JSON object a line, {fragment, version, digest}, from version 0. Equal to the syncer's tape bit for bit, or some
outer state has changed behind the tape's back (S11).
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import msgspec
import numpy as np

from trainer.config import Config
from trainer.durable import DurableError, read_contributions, read_fragment, read_run
from trainer.fragments import Fragment, digest_of, fragments_of, initial_theta
from trainer.merge import merge

log = logging.getLogger("trainer.replay")


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
    """Replay a whole run; 1 when a digest differs from the durable state, 0 otherwise. `prune`: then delete the
    contributions, if they lead to the durable state."""
    state_dir = find_state(run_dir)
    about = read_run(state_dir)
    config = about.config
    agrees, differs = True, False
    for fragment in fragments_of(config.model, config.protocol.P):
        last = None
        for last in replay_fragment(state_dir, config, fragment, about.seed):
            out.write(msgspec.json.encode(last).decode() + "\n")
        stored = read_fragment(state_dir, fragment)
        if last is None or last.version != stored.version:
            recorded = last.version if last else "none"
            agrees = False
            log.warning(
                "fragment %d: recorded contributions end at version %s, the durable one is %d",
                fragment.index, recorded, stored.version,
            )  # fmt: skip
        elif last.digest != digest_of(stored.theta):
            agrees, differs = False, True
            log.error(
                "fragment %d, version %d: the replay gives %s, the durable state is %s",
                fragment.index, stored.version, last.digest, digest_of(stored.theta),
            )  # fmt: skip
    out.flush()
    if prune and agrees:
        shutil.rmtree(state_dir / "contributions", ignore_errors=True)
    return 1 if differs else 0
