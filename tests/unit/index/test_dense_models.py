"""Models with mostly nonzero weights: dense rows return the same bits as lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.search.cases import FAMILIES, LARGE, NARROW
from benchmarks.search.equality import by_rows, check
from tests.naive import normaliser as naive_sum
from tests.naive import search as naive
from xcray.arrays import CSR, csr_from
from xcray.index.log_partition import LogPartition
from xcray.index.search import SearchIndex
from xcray.kernels.search import dense as kernels

SOME = [*sorted(NARROW.keys() - set(LARGE) - {"alike", "long_queries"}), "dense_spread_out"]


@pytest.mark.parametrize("name", SOME)
def test_hard_cases_by_plain_rows(name: str) -> None:
    compared, wrong = check(
        FAMILIES[name](np.random.default_rng(11)), np.random.default_rng(12), by_rows
    )
    assert compared >= 40
    assert wrong == []


def full(n_labels: int, n_features: int, share: float = 1.0, seed: int = 0) -> tuple[CSR, Any]:
    """Return weights with this share of nonzero cells, and biases."""
    rng = np.random.default_rng(seed)
    W = np.where(
        rng.random((n_labels, n_features)) < share, rng.normal(size=(n_labels, n_features)), 0
    )
    return csr_from(W.astype(np.float32)), rng.normal(size=n_labels).astype(np.float32)


def rows(n: int, n_features: int, share: float, seed: int = 1) -> CSR:
    """Return rows with this share of nonzero cells."""
    rng = np.random.default_rng(seed)
    return csr_from(
        np.where(rng.random((n, n_features)) < share, rng.normal(size=(n, n_features)), 0).astype(
            np.float32
        )
    )


@pytest.mark.parametrize(
    ("n_labels", "share", "dense"),
    [(300, 1.0, True), (300, 0.5, True), (300, 0.2, False), (40, 0.1, True)],
)
def test_the_search_method_is_chosen_by_the_data(n_labels: int, share: float, dense: bool) -> None:
    W, b = full(n_labels, 50, share)
    index = SearchIndex.build(W, b)
    assert (index.dense is not None) == dense
    if index.dense is not None:
        np.testing.assert_array_equal(index.dense.weights[:, :n_labels], W.to_scipy().toarray().T)
        assert not index.dense.weights[:, n_labels:].any()
    assert SearchIndex.build(full(0, 5)[0], np.zeros(0, np.float32)).dense is None
    assert SearchIndex.build(full(5, 0)[0], np.zeros(5, np.float32)).dense is None


@pytest.mark.parametrize("n_labels", [1, 15, 16, 17, 300])
@pytest.mark.parametrize("n_features", [1, 4, 31])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_every_shape_gives_the_bits_of_the_lists(
    n_labels: int, n_features: int, share: float
) -> None:
    W, b = full(n_labels, n_features)
    X = rows(7, n_features, share)
    one, two = SearchIndex.build(W, b, dense=True), SearchIndex.build(W, b, dense=False)
    for k in (5, 400):
        result, expected = one.query(X, k, threads=2), two.query(X, k)
        np.testing.assert_array_equal(result.labels, expected.labels)
        np.testing.assert_array_equal(result.scores.view(np.int64), expected.scores.view(np.int64))
        assert result.exact.all()
    for index in (one, two):
        values = LogPartition(index).compute(X, threads=2)
        np.testing.assert_allclose(
            values, naive_sum.log_normaliser(naive.all_scores(X, W, b)), rtol=1e-13, atol=1e-13
        )


def test_a_deadline_that_is_too_short_is_kept() -> None:
    W, b = full(3000, 200)
    index, X = SearchIndex.build(W, b), rows(5, 200, 1.0)
    late = index.query(X, 5, deadline_ms=0)
    assert not late.exact.any()
    assert (late.postings_read < 200 * 3000).all()
    whole = index.query(X, 5, deadline_ms=60_000)
    assert whole.exact.all()
    np.testing.assert_array_equal(whole.scores, naive.best(naive.all_scores(X, W, b), 5).scores)


def test_one_signature_each() -> None:
    W, b = full(9, 8)
    index = SearchIndex.build(W, b)
    index.query(rows(3, 8, 0.5), 2)
    LogPartition(index).compute(rows(3, 8, 0.5))
    for kernel in (kernels.scatter_weights, kernels.add_rows, kernels.search_dense):
        assert len(kernel.signatures) <= 1, kernel
