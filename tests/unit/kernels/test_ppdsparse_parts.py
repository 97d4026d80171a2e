"""Parts of the PPDSparse kernel against NumPy and SciPy: violators, ranges, best bias, products."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from xcray.arrays import csr_from, frozen
from xcray.kernels.training import hinge, newton
from xcray.kernels.training.hinge import HINGE, SQUARED_HINGE, Objective
from xcray.kernels.training.ppdsparse import violators

exclude_active = violators.exclude_active
chunk_maxima = hinge.chunk_maxima
range_of_rank = violators.range_of_rank
best_bias = hinge.best_bias


@numba.njit
def call_maxima(scores, kind, maxima, floor):
    """Call the kernels, which have no entry point for Python."""
    chunk_maxima(scores, maxima)
    exclude_active(scores, kind, maxima, floor)


@numba.njit
def call_range(values, floor, rank):
    """Call the kernel, which has no entry point for Python."""
    return range_of_rank(values, floor, rank)


@numba.njit
def call_bias(o, scores, weights, positives, factor, b, excess, tolerance):
    """Call the kernel, which has no entry point for Python."""
    maxima = np.empty((len(scores) + hinge.CHUNK - 1) // hinge.CHUNK, scores.dtype)
    return best_bias(o, scores, maxima, weights, positives, factor, b, excess, tolerance)


@pytest.mark.parametrize("n", [1, 17, 63, 64, 65, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("floor", [-np.inf, 1.0])
def test_maxima_of_chunks_are_those_of_inactive_samples_above_the_floor(n, dtype, floor):
    rng = np.random.default_rng(n)
    scores = rng.normal(size=n).astype(dtype)
    kind = (rng.random(n) < 0.3).astype(np.uint8)
    maxima = np.empty(-(-n // hinge.CHUNK), dtype)
    call_maxima(scores, kind, maxima, floor)
    inactive = np.where(kind == 0, scores, dtype(hinge.NO_SCORE))
    starts = range(hinge.CHUNK, n, hinge.CHUNK)
    chunks = zip(np.split(scores, starts), np.split(inactive, starts), strict=True)
    assert maxima.tolist() == [(i if a.max() > floor else a).max() for a, i in chunks]


@pytest.mark.parametrize("rank", [1, 7, 100, 299, 300, 500])
def test_the_range_contains_the_value_of_the_rank(rank):
    values = np.random.default_rng(rank).exponential(size=300) - 1.0
    low, high = call_range(values, -1.0, rank)
    assert np.sum(values > high) < rank
    assert np.sum(values > low) >= min(rank, 300)


def test_equal_values_are_in_one_range():
    low, high = call_range(np.full(50, 0.5, np.float32), -0.5, 10)
    assert low < 0.5 <= high


@pytest.mark.parametrize("loss", [SQUARED_HINGE, HINGE])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_bias_minimises_the_objective(loss, weighted):
    """Where nearly all samples violate by little, and where few do; from both sides."""
    rng = np.random.default_rng(3)
    for spread in (1e-3, 0.3, 2.0):
        scores = spread * rng.normal(size=3000)
        positives = frozen(np.arange(0, 3000, 700), np.int32)
        weights = frozen(rng.random(3000) + 0.5 if weighted else [], np.float32)
        c = weights.astype(float) if weighted else np.ones(3000)
        y = np.full(3000, -1.0)
        y[positives], c[positives] = 1.0, 2.0 * c[positives]

        def objective(b, scores=scores, y=y, c=c):
            z = np.maximum(0.0, 1.0 - y * (scores + b))
            return 0.5 * b * b + (c * (z if loss == HINGE else z * z)).sum()

        o = Objective(loss, 0.01, 1.0, 1.0, 1.0)
        best = minimize_scalar(
            objective, bounds=(-9, 9), method="bounded", options={"xatol": 1e-12}
        )
        for start in (-3.0, -1.0, 1.0):
            given = scores.copy()
            b, least, violating = call_bias(o, scores, weights, positives, 2.0, start, 0.0, 1e-9)
            assert np.array_equal(scores, given)  # it sets aside those of the positives
            assert least == pytest.approx(objective(b), rel=1e-9)
            assert least <= best.fun * (1.0 + 1e-7)
            assert violating == np.sum(1.0 - y * (scores + b) > 0.0)


def test_a_loose_tolerance_bounds_the_distance_to_the_minimum():
    """Newton's decrement alone would end near -1, where thousands of samples begin to violate."""
    scores = np.concatenate([np.zeros(20000), [-0.5, -0.2], np.linspace(0.0, 0.2, 40)])
    weights, o = frozen([], np.float32), Objective(SQUARED_HINGE, 0.01, 1.0, 1.0, 1.0)
    positives = frozen([20000, 20001], np.int32)
    exact = call_bias(o, scores, weights, positives, 1.0, -1.0, 0.0, 1e-12)[1]
    loose = call_bias(o, scores, weights, positives, 1.0, -0.9, 0.0, 0.1)[1]
    assert exact <= loose <= exact / 0.9


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("density", [0.1, 0.9])
def test_outer_products_of_rows_sum_to_the_gram_matrix(density, dtype):
    rng = np.random.default_rng(5)
    dense = (rng.normal(size=(200, 12)) * (rng.random((200, 12)) < density)).astype(np.float32)
    rows, factors = rng.permutation(200)[:160], rng.normal(size=160)  # blocks and a part
    H = newton.empty_hessian(12)
    block = newton.empty_block(12, dtype)
    newton.add_outer(newton.rows_of(csr_from(dense)), rows, factors, block, H)
    padded = np.hstack([dense, np.ones((200, 1))])[rows]
    np.testing.assert_allclose(
        np.triu(H[:13, :13]), np.triu((padded.T * factors) @ padded), rtol=1e-5, atol=1e-5
    )
