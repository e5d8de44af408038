"""The outer step as pure functions of arrays: weights, Radial-Directional Averaging, Nesterov.

    theta_m ── v_m = Theta - theta_m ──┐
    theta_n ── v_n = Theta - theta_n ──┼─ per tensor: RDA or direct average ── Delta ── m <- mu m + Delta
    ...                                ┘      (w = c_tokens^2 / c_steps)      Theta <- Theta - lr (Delta + mu m)

Everything accumulates in float64 over contributions sorted by learner, with element-wise sums only (no BLAS), so that a
replay of the recorded contributions gives the same bits in any process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from trainer.fragments import Placed

CANCELLED = 1e-3
"""Where the weighted mean of unit directions is shorter than this, the directions cancel."""


@dataclass(frozen=True)
class Contribution:
    """One learner's update of one fragment: theta after `steps` steps over tokens (lo, hi] from version `base`."""

    learner: str
    incarnation: int
    id: str
    base: int
    lo: int
    hi: int
    steps: int
    digest: str
    theta: np.ndarray
    """float32, the size of the fragment."""

    @property
    def tokens(self) -> int:
        return self.hi - self.lo


@dataclass(frozen=True)
class Merged:
    """The result of one outer step; `weights`, `cosines` and `norm_ratios` are in the order of the contributions."""

    theta: np.ndarray
    momentum: np.ndarray
    weights: tuple[float, ...]
    cosines: tuple[float, ...]
    norm_ratios: tuple[float, ...]


def in_canonical_order(contributions: Sequence[Contribution]) -> list[Contribution]:
    """Sorted by learner: the order in which every merge and every replay accumulates."""
    return sorted(contributions, key=lambda c: c.learner)


def weights_of(contributions: Sequence[Contribution]) -> np.ndarray:
    """`w = c_tokens^2 / c_steps` (quantity times quality), normalised to sum 1, float64; 0 where steps or tokens are 0.

    Raises:
        ValueError: when nobody has done any work.
    """
    raw = np.array([c.tokens**2 / c.steps if c.steps > 0 else 0.0 for c in contributions], dtype=np.float64)
    total = raw.sum()
    if not total > 0:
        raise ValueError("no contribution has both tokens and steps: a round must not merge nothing")
    normalised: np.ndarray = raw / total
    return normalised


def length(values: np.ndarray) -> float:
    """Euclidean norm in float64. Not finite exactly when an element is not: the finite check rides on it."""
    wide = values.astype(np.float64)
    return float(np.sqrt(np.sum(wide * wide)))


def outer_gradient(theta: np.ndarray, contribution: Contribution) -> np.ndarray:
    """`v_m = Theta_p - theta_{m,p}` in float64, against the syncer's own value.

    [?] The alternative is base-relative: against the version that the learner last received.
    """
    return theta.astype(np.float64) - contribution.theta.astype(np.float64)


def direct_average(gradients: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """`sum(w v) / sum(w)`; the weights are normalised already."""
    total = np.zeros_like(gradients[0])
    for gradient, weight in zip(gradients, weights, strict=True):
        total += weight * gradient
    return total


def radial_directional_average(gradients: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """`[sum(w |v|) / sum(w)] * phi(sum(w phi(v)) / sum(w))` with `phi(x) = x / |x|`, `phi(0) = 0`: the mean length in
    the mean direction.

    [?] Where the directions cancel (the mean direction is shorter than `CANCELLED`) it falls back to the direct
    average; the paper does not say what happens there, and phi of rounding noise would be a random direction of full
    length.
    """
    if len(gradients) == 1:
        return gradients[0].copy()  # the identity for one learner, to the last bit
    radius = 0.0
    direction = np.zeros_like(gradients[0])
    for gradient, weight in zip(gradients, weights, strict=True):
        norm = length(gradient)
        radius += float(weight) * norm
        if norm > 0:
            direction += (weight / norm) * gradient
    norm = length(direction)
    if norm < CANCELLED:
        return direct_average(gradients, weights)
    return (radius / norm) * direction


def nesterov(
    theta: np.ndarray, momentum: np.ndarray, delta: np.ndarray, lr: float, mu: float
) -> tuple[np.ndarray, np.ndarray]:
    """`m <- mu m + Delta; Theta <- Theta - lr (Delta + mu m)`: float32 in, float32 out, float64 inside.

    Delta is an outer *gradient* (old minus new), so the step is subtracted: with lr 1 and mu 0 Theta becomes the
    learners' mean.
    """
    updated = mu * momentum.astype(np.float64) + delta
    moved = theta.astype(np.float64) - lr * (delta + mu * updated)
    return moved.astype(np.float32), updated.astype(np.float32)


def norm_ratios(gradients: Sequence[np.ndarray]) -> list[float]:
    """Each outer gradient's length over the median length of its peers (1.0 for a lone one, inf above peers of length
    0).

    Against the peers of the same round, never a running mean: that one locked itself out for good.
    """
    norms = [length(gradient) for gradient in gradients]
    ratios = []
    for index, norm in enumerate(norms):
        peers = norms[:index] + norms[index + 1 :]
        middle = median(peers) if peers else norm
        ratios.append(norm / middle if middle > 0 else (1.0 if norm == 0 else float("inf")))
    return ratios


def merge(
    theta: np.ndarray,
    momentum: np.ndarray,
    contributions: Sequence[Contribution],
    tensors: Sequence[Placed],
    *,
    lr: float,
    mu: float,
) -> Merged:
    """One outer step of one fragment.

    Args:
        theta, momentum: float32 of the fragment's size.
        contributions: at least one; any order, the result does not depend on it.
        tensors: where each tensor lies in the fragment, and which are embedding-like.

    Raises:
        ValueError: when no contribution has done any work.
    """
    ordered = in_canonical_order(contributions)
    weights = weights_of(ordered)
    gradients = [outer_gradient(theta, contribution) for contribution in ordered]
    delta = np.empty(theta.shape, dtype=np.float64)
    for placed in tensors:
        part = slice(placed.start, placed.stop)
        average = direct_average if placed.spec.embedding else radial_directional_average
        delta[part] = average([gradient[part] for gradient in gradients], weights)
    moved, updated = nesterov(theta, momentum, delta, lr, mu)
    return Merged(
        theta=moved,
        momentum=updated,
        weights=tuple(float(weight) for weight in weights),
        cosines=tuple(_cosine(gradient, delta) for gradient in gradients),
        norm_ratios=tuple(norm_ratios(gradients)),
    )


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    product = length(one) * length(other)
    return float(np.sum(one * other)) / product if product > 0 else 0.0
