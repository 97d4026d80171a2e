"""Cuts of posting lists, compared with the optimum of the linear program that they approximate."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from xcray.arrays import CSR, csr, frozen
from xcray.index.packed import build_lists
from xcray.kernels.search.cuts import plan_cuts
from xcray.kernels.search.lists import PackedLists, new_terms, read_terms

N_LABELS, N_FEATURES = 70_000, 12


@numba.njit
def _cuts(
    indices: NDArray[np.int32], values: NDArray[np.float32], lists: PackedLists, most: float
) -> NDArray[np.float64]:
    """Return the cuts of one query."""
    terms = new_terms(len(indices))
    n = read_terms(indices, values, lists, terms)
    return plan_cuts(terms, n, lists, most)


def _weights() -> CSR:
    """Return long lists of different lengths and distributions, a quarter of them negative."""
    rng = np.random.default_rng(5)
    rows = [
        (np.sort(rng.choice(N_LABELS, 600 * (f + 2), replace=False)), 0.5 + 0.3 * (f % 3))
        for f in range(N_FEATURES)
    ]
    labels = np.concatenate([row for row, _ in rows])
    features = np.repeat(np.arange(N_FEATURES), [len(row) for row, _ in rows])
    spread = np.repeat([scale for _, scale in rows], [len(row) for row, _ in rows])
    weights = rng.lognormal(-3, spread) * np.where(rng.random(len(labels)) < 0.25, -1, 1)
    order = np.lexsort((features, labels))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=N_LABELS))])
    return csr(indptr, features[order], weights[order].astype(np.float32), N_FEATURES)


def _least_read(W: CSR, x: NDArray[np.float32], most: float) -> float:
    """Return the least postings read of all fractional cuts, by linear programming."""
    costs, savings = [], []
    for f in range(N_FEATURES):
        own = np.sort(W.data[(W.indices == f) & (W.data > 0)].astype(np.float64))
        steps = np.concatenate([[0.0], own])[:: max(1, len(own) // 200)]
        unread = np.searchsorted(own, steps, side="right")
        hull = [0]
        for j in range(1, len(steps)):
            while len(hull) > 1 and (unread[j] - unread[hull[-1]]) * (
                steps[hull[-1]] - steps[hull[-2]]
            ) >= (unread[hull[-1]] - unread[hull[-2]]) * (steps[j] - steps[hull[-1]]):
                hull.pop()
            hull.append(j)
        costs.append(x[f] * np.diff(steps[hull]))
        savings.append(np.diff(unread[hull]))
    cost, saving = np.concatenate(costs), np.concatenate(savings)
    best = linprog(-saving, A_ub=cost[None], b_ub=[most], bounds=(0, 1))
    return float((W.data > 0).sum() + best.fun)


@pytest.mark.parametrize("most", [0.02, 0.1, 0.3])
def test_cuts_keep_the_limit_and_read_little_more_than_the_optimum(most: float) -> None:
    """Compare postings above the cuts with the linear program over the hulls of all weights."""
    W = _weights()
    x = frozen(np.linspace(0.1, 0.5, N_FEATURES), np.float32)
    cuts = _cuts(frozen(np.arange(N_FEATURES), np.int32), x, build_lists(W), most)
    assert (cuts >= 0).all()
    assert x.astype(np.float64) @ cuts <= most * (1 + 1e-6)
    read = sum(int(((W.indices == f) & (W.data > cuts[f])).sum()) for f in range(N_FEATURES))
    assert read <= 1.12 * _least_read(W, x, most)


def test_nothing_is_cut_without_a_remainder() -> None:
    """A remainder of zero leaves all positive weights to read."""
    x = frozen(np.full(N_FEATURES, 0.3), np.float32)
    cuts = _cuts(frozen(np.arange(N_FEATURES), np.int32), x, build_lists(_weights()), 0.0)
    np.testing.assert_array_equal(cuts, 0.0)
