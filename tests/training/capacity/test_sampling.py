"""Sampled totals of label costs: the total, and the coverage of its range."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from xcray.arrays import Float64, Int32
from xcray.training.capacity.sampling import (
    Draw,
    Range,
    Sample,
    draw_labels,
    estimate_total,
    make_strata,
)


def costs_of(n: int = 3000) -> Float64:
    """Return heavy-tailed label costs: 1 % of the labels have 20 % of the total cost."""
    return np.asarray(0.001 * (n / np.arange(1, n + 1)) ** 0.8)


def draw_sample(costs: Float64, truth: Float64, seconds: float, seed: int) -> Sample:
    """Draw a sample on a clock that advances by the true costs of the labels."""
    at = [0.0]

    def take(labels: Int32) -> tuple[float, ...]:
        took = float(truth[labels].sum())
        at[0] += took
        return took, float(len(labels))

    return draw_labels(costs, take, seconds, seed, clock=lambda: at[0])


def test_strata_part_the_labels_by_cost() -> None:
    costs = costs_of()
    groups = make_strata(costs)
    assert np.array_equal(np.sort(np.concatenate(groups)), np.arange(len(costs)))
    assert all(costs[a].max() <= costs[b].min() for a, b in pairwise(groups))
    shares = [np.sqrt(costs[group]).sum() for group in groups]
    assert max(shares) < 1.5 * min(shares)
    assert [len(group) for group in make_strata(np.zeros(3))] == [1, 1, 1]
    assert make_strata(np.empty(0)) == []


def test_a_sample_of_all_labels_is_exact() -> None:
    costs = costs_of(200)
    sample = draw_sample(costs, 2.0 * costs, 1e9, 0)
    assert sample.n_labels == 200
    result = estimate_total(sample)
    assert result == pytest.approx((2.0 * costs.sum(),) * 3)
    noisy = estimate_total(sample, floor=0.1)
    assert noisy.low < result.low <= result.high < noisy.high
    assert estimate_total(sample, 1).value == pytest.approx(200)


def test_the_range_has_the_coverage_of_ninety_percent() -> None:
    """Costs differ from the guess by a factor per label, one for large costs and one for all."""
    rng, costs, state, widths = np.random.default_rng(1), costs_of(), 0, []
    for seed in range(150):
        truth = 3.0 * costs**1.1 * rng.lognormal(0.0, 0.6, len(costs))
        sample = draw_sample(costs, truth, 0.08 * truth.sum(), seed)
        result = estimate_total(sample)
        state += result.low <= truth.sum() <= result.high
        widths.append(result.high / result.low)
    assert 0.82 * 150 <= state
    assert np.median(widths) < 1.5  # and the range is narrow enough to be useful


def test_more_time_narrows_the_range() -> None:
    rng, costs = np.random.default_rng(2), costs_of()
    truth = costs * rng.lognormal(0.0, 0.8, len(costs))
    widths = []
    for share in (0.02, 0.2, 0.7):
        result = estimate_total(draw_sample(costs, truth, share * truth.sum(), 3))
        widths.append(result.high / result.low)
    assert widths == sorted(widths, reverse=True)


def test_strata_too_dear_to_be_drawn_widen_the_range() -> None:
    costs = np.array([0.01] * 50 + [100.0] * 2)
    sample = draw_sample(costs, costs, 1.0, 0)
    assert max(each.expected for each in sample.draws) < 1.0
    result = estimate_total(sample)
    assert result.high / result.low > 1.5
    assert result.value == pytest.approx(costs.sum())


def test_an_empty_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        estimate_total(Sample((3,), (1.0,), []))
    assert estimate_total(Sample((3,), (3.0,), [Draw(0, 1, 1.0, (2.0,))])).value == pytest.approx(
        6.0
    )


def test_a_range_is_a_multiple_of_an_amount() -> None:
    assert Range(2.0, 1.0, 4.0).relative_to(2.0) == Range(1.0, 0.5, 2.0)
    assert Range(1.0, 0.5, 2.0).scale(4.0) == Range(4.0, 2.0, 8.0)
