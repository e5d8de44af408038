"""The outer step against a second, naive computation in float64, and the properties that the paper gives it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.trainer.harness import toy_fragments
from trainer.merge import (
    Contribution,
    direct_average,
    merge,
    nesterov,
    norm_ratios,
    radial_directional_average,
    weights_of,
)

TENSORS = toy_fragments(1)[0].tensors
SIZE = 5
values = st.floats(-8, 8, width=32)
thetas = hnp.arrays(np.float32, SIZE, elements=values)


def contribution(learner: str, theta: np.ndarray, tokens: int = 16, steps: int = 2) -> Contribution:
    return Contribution(learner, 1, f"{learner}.1.0.1", 0, 0, tokens, steps, "", theta)


@st.composite
def contributions(draw: st.DrawFn, least: int = 1) -> list[Contribution]:
    count = draw(st.integers(least, 5))
    return [
        contribution(f"learner-{i}", draw(thetas), draw(st.integers(1, 10**7)), draw(st.integers(1, 500)))
        for i in range(count)
    ]


def naive_merge(
    theta: np.ndarray, momentum: np.ndarray, parts: list[Contribution], lr: float, mu: float
) -> tuple[np.ndarray, np.ndarray]:
    """The paper's formulas written down once more, tensor by tensor, with plain loops."""
    w = [part.tokens**2 / part.steps for part in parts]
    delta = np.zeros(SIZE)
    for placed in TENSORS:
        part = slice(placed.start, placed.stop)
        v = [theta.astype(float)[part] - p.theta.astype(float)[part] for p in parts]
        mean = sum(wi * vi for wi, vi in zip(w, v, strict=True)) / sum(w)
        if not placed.spec.embedding and len(parts) > 1:
            unit = [vi / np.linalg.norm(vi) if np.any(vi) else vi for vi in v]
            direction = sum(wi * ui for wi, ui in zip(w, unit, strict=True)) / sum(w)
            radius = sum(wi * np.linalg.norm(vi) for wi, vi in zip(w, v, strict=True)) / sum(w)
            if np.linalg.norm(direction) >= 1e-3:
                mean = radius * direction / np.linalg.norm(direction)
        delta[part] = mean
    m = mu * momentum.astype(float) + delta
    return theta.astype(float) - lr * (delta + mu * m), m


@given(theta=thetas, momentum=thetas, parts=contributions(), lr=st.floats(0.1, 1.5), mu=st.floats(0, 0.95))
def test_a_merge_equals_the_formulas_written_down_once_more(
    theta: np.ndarray, momentum: np.ndarray, parts: list[Contribution], lr: float, mu: float
) -> None:
    merged = merge(theta, momentum, parts, TENSORS, lr=lr, mu=mu)
    expected_theta, expected_momentum = naive_merge(theta, momentum, parts, lr, mu)
    # Directions that all but cancel magnify the last bit; elsewhere float32 rounding is all that differs.
    np.testing.assert_allclose(merged.momentum, expected_momentum, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(merged.theta, expected_theta, rtol=1e-5, atol=1e-4)


@given(theta=thetas, momentum=thetas, parts=contributions(least=2), order=st.randoms(use_true_random=False))
def test_the_order_of_contributions_does_not_change_a_bit(
    theta: np.ndarray, momentum: np.ndarray, parts: list[Contribution], order: object
) -> None:
    shuffled = list(parts)
    order.shuffle(shuffled)  # type: ignore[attr-defined]  # a random.Random
    one = merge(theta, momentum, parts, TENSORS, lr=0.7, mu=0.5)
    other = merge(theta, momentum, shuffled, TENSORS, lr=0.7, mu=0.5)
    assert one.theta.tobytes() == other.theta.tobytes()
    assert one.momentum.tobytes() == other.momentum.tobytes()


@given(theta=thetas, learned=thetas)
def test_one_learner_with_lr_1_and_no_momentum_is_taken_over_whole(theta: np.ndarray, learned: np.ndarray) -> None:
    """RDA is the identity for one learner, and the sign is right: the global parameters move towards the learner's."""
    merged = merge(theta, np.zeros_like(theta), [contribution("learner-0", learned)], TENSORS, lr=1.0, mu=0.0)
    np.testing.assert_allclose(merged.theta, learned, rtol=1e-6, atol=1e-6)


@given(theta=thetas, learned=thetas, lr=st.floats(0.05, 1.0))
def test_an_outer_step_goes_towards_the_learners_and_never_away(
    theta: np.ndarray, learned: np.ndarray, lr: float
) -> None:
    merged = merge(theta, np.zeros_like(theta), [contribution("learner-0", learned)], TENSORS, lr=lr, mu=0.0)
    wide = learned.astype(float)
    assert np.linalg.norm(merged.theta - wide) <= np.linalg.norm(theta.astype(float) - wide) + 1e-5


@given(parts=contributions())
def test_weights_are_a_distribution_and_follow_tokens_squared_over_steps(parts: list[Contribution]) -> None:
    weights = weights_of(parts)
    assert weights.dtype == np.float64
    assert np.all(weights >= 0)
    assert np.sum(weights) == pytest.approx(1.0, abs=1e-12)
    raw = [part.tokens**2 / part.steps for part in parts]
    np.testing.assert_allclose(weights, np.array(raw) / sum(raw), rtol=1e-12)


def test_a_learner_without_steps_weighs_nothing_and_nobody_with_work_is_an_error() -> None:
    idle = replace(contribution("learner-0", np.zeros(SIZE, np.float32)), steps=0)
    worker = contribution("learner-1", np.zeros(SIZE, np.float32))
    assert weights_of([idle, worker]).tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="no contribution"):
        weights_of([idle])


@settings(max_examples=200)
@given(vectors=st.lists(hnp.arrays(np.float64, 4, elements=st.floats(-5, 5)), min_size=2, max_size=5))
def test_rda_keeps_the_weighted_mean_length_unless_directions_cancel(vectors: list[np.ndarray]) -> None:
    weights = np.full(len(vectors), 1 / len(vectors))
    lengths = [np.linalg.norm(vector) for vector in vectors]
    units = [v / n for v, n in zip(vectors, lengths, strict=True) if n > 1e-100]
    assume(np.linalg.norm(np.sum(units, axis=0)) / len(vectors) > 0.01 if units else False)
    averaged = radial_directional_average(vectors, weights)
    assert np.linalg.norm(averaged) == pytest.approx(np.mean(lengths), rel=1e-9)
    assert np.linalg.norm(direct_average(vectors, weights)) <= np.linalg.norm(averaged) + 1e-12


def test_opposite_directions_fall_back_to_the_direct_average() -> None:
    v = np.array([1.0, 2.0])
    weights = np.array([0.5, 0.5])
    assert radial_directional_average([v, -v], weights).tolist() == [0.0, 0.0]
    np.testing.assert_allclose(radial_directional_average([v, -3 * v], weights), -v)


def test_embedding_like_tensors_are_averaged_directly() -> None:
    """Two learners at a right angle: the direct average is shorter than both, RDA keeps their length."""
    one, other = np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
    one[[0, 3]], other[[1, 4]] = 1.0, 1.0
    zero = np.zeros(SIZE, np.float32)
    parts = [contribution("learner-0", one), contribution("learner-1", other)]
    merged = merge(zero, zero, parts, TENSORS, lr=1.0, mu=0.0)
    assert np.linalg.norm(merged.theta[:3]) == pytest.approx(1.0)
    assert np.linalg.norm(merged.theta[3:]) == pytest.approx(np.sqrt(0.5))


def test_nesterov_on_a_quadratic_converges_at_the_rate_of_its_companion_matrix() -> None:
    """The companion matrix of one mode: h = 0.684, lr 0.7, mu 0.9 has spectral radius 0.6849."""
    x, momentum = np.array([1.0], np.float32), np.zeros(1, np.float32)
    errors = []
    for _ in range(30):
        x, momentum = nesterov(x, momentum, 0.684 * x.astype(np.float64), 0.7, 0.9)
        errors.append(abs(float(x[0])))
    matrix = np.array([[1 - 0.7 * 1.9 * 0.684, -0.7 * 0.81], [0.684, 0.9]])
    radius = max(abs(np.linalg.eigvals(matrix)))
    assert radius == pytest.approx(0.6849, abs=5e-4)
    assert errors[-1] < 5 * radius**30


def test_cosines_and_ratios_show_a_flipped_and_an_inflated_update() -> None:
    theta = np.zeros(SIZE, np.float32)
    good = np.ones(SIZE, np.float32)
    parts = [contribution(f"learner-{i}", good) for i in range(3)] + [contribution("learner-3", -5 * good)]
    merged = merge(theta, theta, parts, TENSORS, lr=0.7, mu=0.5)
    assert merged.norm_ratios[3] == pytest.approx(5.0)
    assert merged.cosines[3] == pytest.approx(-merged.cosines[0], abs=1e-9)


def test_the_norm_ratio_compares_with_the_peers_and_not_with_oneself() -> None:
    one = np.array([1.0])
    assert norm_ratios([one]) == [1.0]
    assert norm_ratios([one, 100 * one]) == [0.01, 100.0]
    assert norm_ratios([0 * one, one]) == [0.0, float("inf")]
