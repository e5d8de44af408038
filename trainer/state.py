"""All that outlives a syncer process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trainer.fragments import Fragment, initial_theta


@dataclass
class SyncerState:
    """Lists are indexed by fragment; arrays are float32 of the fragment's size; dicts are keyed by learner.

    Nothing of a round in flight is here: versions alone tell the round numbers, and every learner joins anew.
    """

    theta: list[np.ndarray]
    momentum: list[np.ndarray]
    versions: list[int]
    incarnations: dict[str, int] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)

    @classmethod
    def fresh(cls, fragments: Sequence[Fragment], seed: int) -> SyncerState:
        theta = [initial_theta(fragment, seed) for fragment in fragments]
        return cls(theta, [np.zeros_like(values) for values in theta], [0] * len(theta))
