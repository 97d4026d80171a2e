"""Dense blocks of weights as sparse rows of labels, compared with one label at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.naive import sparsify as naive
from xcray.solvers.label_weights import sparse_rows


def block(n_features: int, n_labels: int, seed: int = 0) -> Any:
    """Return weights with many equal sizes, zeros of both signs, and last-bit differences."""
    rng = np.random.default_rng(seed)
    W = np.where(
        rng.random((n_features, n_labels)) < 0.5, rng.normal(size=(n_features, n_labels)), 0.25
    ).astype(np.float32)
    W *= rng.choice([-1.0, 1.0], W.shape).astype(np.float32)
    W[rng.random(W.shape) < 0.2] *= 0.0
    near = rng.random(W.shape) < 0.1
    W[near] = np.nextafter(np.float32(0.25), np.float32(1.0))
    return W


def check(W: Any, prune: float, keep: int) -> None:
    rows, lost = sparse_rows(W, prune, keep)
    features, weights, dropped = naive.sparse_rows(W, prune, keep)
    assert rows.shape == W.T.shape
    assert [rows.row(j)[0].tolist() for j in range(rows.n_rows)] == features
    assert [rows.row(j)[1].tolist() for j in range(rows.n_rows)] == weights
    assert lost.tolist() == dropped


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (5, 0), (1, 1), (40, 7), (33, 600)])
@pytest.mark.parametrize(
    ("prune", "keep"), [(0.0, 0), (0.25, 0), (0.0, 5), (0.3, 4), (0.0, 1), (9.0, 3), (np.inf, 0)]
)
def test_the_same_as_one_label_after_the_other(
    shape: tuple[int, int], prune: float, keep: int
) -> None:
    check(block(*shape), prune, keep)
    check(np.asfortranarray(block(*shape)), prune, keep)


def test_ties_at_the_bar_go_by_feature() -> None:
    W = np.random.default_rng(0).integers(-3, 4, (30, 70)).astype(np.float32)
    for keep in (1, 2, 7, 29, 30, 31):
        check(W, keep % 3, keep)


def test_a_limit_between_two_floats_is_exact() -> None:
    tenth = np.float32(0.1)  # above 0.1
    near = [np.nextafter(tenth, np.float32(0)), tenth, -tenth, np.nextafter(tenth, np.float32(1))]
    for prune in (0.1, float(tenth), 1e-50, 1e60):
        check(np.array([near], np.float32), prune, 0)


def test_extreme_sizes_are_ranked() -> None:
    sizes = [1e-45, -1e-40, 1.2e-38, -3.4e38, 2.0, -2.0, 0.0, -0.0]
    for keep in range(len(sizes) + 1):
        check(np.array(sizes, np.float32).reshape(-1, 1).repeat(3, axis=1), 0.0, keep)


def test_what_is_not_finite_stays_to_be_seen() -> None:
    W = np.array([[np.nan, 1.0], [np.inf, 2.0], [-3.0, 0.5]], np.float32)
    rows, lost = sparse_rows(W, 5.0)
    assert rows.row(0)[0].tolist() == [0, 1]
    assert lost.tolist() == [1, 3]
    rows, _ = sparse_rows(W, 0.0, 1)
    assert np.isnan(rows.row(0)[1]).all()
    assert rows.row(1)[0].tolist() == [1]
