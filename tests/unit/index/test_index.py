"""The inverted index against a naive implementation: labels, bits of scores, and order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.naive import search
from xcray.arrays import CSR, TopK, csr, csr_from
from xcray.errors import InputError, NotFound, ParameterError, ShapeMismatch
from xcray.index.inverted import ROWS_PER_CALL, InvertedIndex

TINY = float(np.float32(1e-45))  # the smallest denormal
VALUES = st.sampled_from(
    [0.5, -0.5, 1.0, -1.0, 0.1, -0.3, 3e38, -3e38, TINY, -TINY, 1e-40, 0.0, -0.0, 1e-8, 7.25]
)
BIASES = st.sampled_from([0.0, -0.0, 1.0, -1.0, -1.0, 0.25, TINY, -3e38])


def same(result: TopK, expected: TopK) -> None:
    """Check for equal labels and equal bits, including the sign of zero."""
    np.testing.assert_array_equal(result.labels, expected.labels)
    np.testing.assert_array_equal(
        result.scores.view(np.int64), np.ascontiguousarray(expected.scores).view(np.int64)
    )


def sparse(
    rng: np.random.Generator, rows: int, columns: int, density: float, values: Any = None
) -> CSR:
    """Return a random matrix with normal values, or values from a few, which makes ties."""
    cells = rng.random((rows, columns)) < density
    drawn = (
        rng.normal(size=(rows, columns)) if values is None else rng.choice(values, (rows, columns))
    )
    return csr_from(np.where(cells, drawn, 0).astype(np.float32))


@st.composite
def problems(draw: st.DrawFn) -> tuple[CSR, CSR, Any, int]:
    """Draw queries, weights, biases and k: small, signed, tied, empty, dense, denormal and huge."""
    n, n_features, n_labels = (
        draw(st.integers(0, 4)),
        draw(st.integers(1, 6)),
        draw(st.integers(1, 9)),
    )

    def matrix(rows: int) -> CSR:
        cells = [sorted(draw(st.sets(st.integers(0, n_features - 1)))) for _ in range(rows)]
        flat = [column for row in cells for column in row]
        values = draw(st.lists(VALUES, min_size=len(flat), max_size=len(flat)))
        return csr(np.cumsum([0, *(len(row) for row in cells)]), flat, values, n_features)

    b = np.array(draw(st.lists(BIASES, min_size=n_labels, max_size=n_labels)), np.float32)
    return matrix(n), matrix(n_labels), b, draw(st.integers(1, 11))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(problems())
def test_equals_the_naive_search_to_the_bit(problem: tuple[CSR, CSR, Any, int]) -> None:
    X, W, b, k = problem
    same(InvertedIndex.build(W, b).query(X, k), search.top_k(X, W, b, k))


def test_equals_the_naive_search_on_many_queries() -> None:
    rng = np.random.default_rng(5)
    compared = 0
    for n_labels, n_features, w_density, x_density, values in [
        (300, 120, 0.05, 0.08, None),  # few touched labels: biases compete
        (80, 60, 0.6, 0.5, None),  # all labels touched
        (200, 50, 0.1, 0.1, [0.5, -0.5, 1.0, -1.0]),  # ties everywhere
        (2000, 200, 0.002, 0.03, [-0.25, -1.0]),  # only negative weights
        (1, 30, 0.5, 0.3, None),
        (50, 1, 0.5, 0.9, None),
    ]:
        W = sparse(rng, n_labels, n_features, w_density, values)
        b = rng.choice(np.array([-1.0, -0.5, -0.5, 0.0], np.float32), n_labels)
        X = sparse(rng, 250, n_features, x_density, values)
        index = InvertedIndex.build(W, b)
        for k in (1, 5, 100):
            same(index.query(X, k, threads=2), search.top_k_by_sort(X, W, b, k))
        compared += X.n_rows
    assert compared == 1_500


def test_by_hand() -> None:
    W = csr([0, 2, 3, 3, 4], [0, 1, 1, 1], [1, 2, 2, -4], 2)
    index = InvertedIndex.build(W, np.array([0, 1, 3, 0], np.float32))
    top = index.query(csr([0, 2, 2, 3], [0, 1, 1], [1, 1, 0.5], 2), 9)
    # row 0: 1+2, 2+1, 3, -4: three labels tie at 3; row 1 is empty: the biases; row 2: 1, 2, 3, -2
    assert top.labels.tolist() == [[0, 1, 2, 3], [2, 1, 0, 3], [2, 1, 0, 3]]
    assert top.scores.tolist() == [[3, 3, 3, -4], [3, 1, 0, 0], [3, 2, 1, -2]]


def test_untouched_labels_beat_touched_ones_with_negative_scores() -> None:
    n_labels = 100
    W = csr([0, 1] + [1] * (n_labels - 1), [0], [-2.0], 3)
    top = InvertedIndex.build(W, np.zeros(n_labels, np.float32)).query(
        csr([0, 1], [0], [1.0], 3), 3
    )
    assert top.labels.tolist() == [[1, 2, 3]]
    assert top.scores.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("rows", [0, 1, 3, 2 * ROWS_PER_CALL + 5])
def test_answers_do_not_depend_on_threads_or_batches(rng: np.random.Generator, rows: int) -> None:
    W, X = sparse(rng, 300, 40, 0.05), sparse(rng, rows, 40, 0.1)
    index = InvertedIndex.build(W, rng.normal(size=300).astype(np.float32))
    alone = [index.query(csr_from(X.to_scipy()[i]), 7) for i in range(rows)]
    for threads in (1, 2, 5):
        answer = index.query(X, 7, threads=threads)
        assert answer.labels.shape == (rows, 7)
        for i in range(rows):
            same(TopK(answer.labels[i : i + 1], answer.scores[i : i + 1]), alone[i])


def test_scores_and_ranks_of_single_labels_are_those_of_the_search(
    rng: np.random.Generator,
) -> None:
    W, X = sparse(rng, 60, 30, 0.2, [0.5, -0.5, 0.1]), sparse(rng, 10, 30, 0.3)
    index = InvertedIndex.build(W, np.zeros(60, np.float32))
    top = index.query(X, 60)
    for i in range(10):
        for place, (label, score) in enumerate(
            zip(top.labels[i].tolist(), top.scores[i].tolist(), strict=True), 1
        ):
            assert index.score(X, label, i) == score
            assert index.rank(X, label, i) == place


def raw(indptr: list[int], indices: list[int], data: list[float], n_cols: int = 5) -> CSR:
    """Return a CSR without validation."""
    return csr(indptr, indices, data, n_cols)


@pytest.mark.parametrize(
    ("X", "error", "says"),
    [
        (raw([0, 1], [0], [1.0], 6), ShapeMismatch, "n_features=5"),
        (raw([0, 1], [0], [1.0], 4), ShapeMismatch, "n_features=5"),
        (raw([0, 0, 1], [5], [1.0]), ShapeMismatch, "row 1 of X: a column index lies outside"),
        (raw([0, 1], [-1], [1.0]), ShapeMismatch, "outside"),
        (raw([0, 2], [3, 1], [1.0, 1.0]), ShapeMismatch, "do not ascend"),
        (raw([0, 2], [3, 3], [1.0, 1.0]), ShapeMismatch, "repeat"),
        (raw([0, 2, 1], [0, 1], [1.0, 1.0]), ShapeMismatch, "offsets"),
        (raw([-1, 1], [0, 1], [1.0, 1.0]), ShapeMismatch, "offsets"),
        (raw([0, 1], [0], [float("nan")]), InputError, "not finite"),
        (raw([0, 1], [0], [float("inf")]), InputError, "not finite"),
    ],
)
def test_rows_that_the_kernels_could_not_trust_are_refused(
    X: CSR, error: type[InputError], says: str
) -> None:
    index = InvertedIndex.build(raw([0, 1, 2], [0, 4], [1.0, 1.0]), np.zeros(2, np.float32))
    with pytest.raises(error, match=says):
        index.query(X)


def test_options_out_of_range_are_refused() -> None:
    index, X = (
        InvertedIndex.build(raw([0, 1], [0], [1.0]), np.zeros(1, np.float32)),
        raw([0, 1], [0], [1.0]),
    )
    for options in ({"k": 0}, {"k": -1}, {"threads": 0}):
        with pytest.raises(ParameterError, match="at least 1"):
            index.query(X, **options)
    with pytest.raises(NotFound, match="are 0 to 0"):
        index.score(X, 1)
    with pytest.raises(ShapeMismatch, match="no row 1"):
        index.rank(X, 0, 1)
    with pytest.raises(ShapeMismatch, match="transpose"):
        InvertedIndex(raw([0, 1], [0], [1.0]), raw([0, 1], [0], [1.0]), np.zeros(1, np.float32))
