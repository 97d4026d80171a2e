"""Sparse kernels against scipy, and the rule that each kernel is compiled once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from xcray.arrays import CSR, Pattern, csr_from, pattern_from
from xcray.kernels import sparse

SHAPES = [(0, 0), (0, 3), (3, 0), (1, 1), (7, 4), (40, 90)]


def matrix(n: int, d: int, seed: int = 0) -> Any:
    out = (
        sp.random(n, d, density=0.3, format="csr", dtype=np.float32, random_state=seed)
        if n and d
        else sp.csr_matrix((n, d), dtype=np.float32)
    )
    out.data = np.round(out.data * 16).astype(np.float32)  # sums of squares are exact
    return out


def same(result: CSR | Pattern, expected: Any) -> None:
    expected = expected.tocsr()
    expected.sort_indices()
    assert result.shape == expected.shape
    assert result.indptr.tolist() == expected.indptr.tolist()
    assert result.indices.tolist() == expected.indices.tolist()
    if isinstance(result, CSR):
        assert result.data.tolist() == expected.data.tolist()
    assert all(not a.flags.writeable for a in result if isinstance(a, np.ndarray))


@pytest.mark.parametrize("shape", SHAPES)
def test_transpose(shape: tuple[int, int]) -> None:
    A = matrix(*shape)
    same(sparse.transpose(csr_from(A)), A.T)
    same(sparse.transpose_pattern(Pattern(*csr_from(A)[:2], shape[1])), A.T)


@given(st.lists(st.lists(st.integers(0, 9), unique=True, max_size=6).map(sorted), max_size=12))
@settings(max_examples=60, deadline=None)
def test_transposing_twice_gives_it_back(rows: list[list[int]]) -> None:
    Y = pattern_from(dense(rows))
    back = sparse.transpose_pattern(sparse.transpose_pattern(Y))
    assert [back.row(i).tolist() for i in range(back.n_rows)] == rows


def dense(rows: list[list[int]]) -> Any:
    out = np.zeros((len(rows), 10), np.float32)
    for i, row in enumerate(rows):
        out[i, row] = 1
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_row_norms(shape: tuple[int, int]) -> None:
    A = matrix(*shape)
    result = sparse.row_norms_sq(csr_from(A))
    assert result.dtype == np.float64
    assert (
        result.tolist() == np.asarray(A.astype(np.float64).multiply(A).sum(axis=1)).ravel().tolist()
    )


@pytest.mark.parametrize("rows", [[], [0], [6, 0, 0, 3], list(range(7))])
def test_take_rows(rows: list[int]) -> None:
    A = matrix(7, 4)
    same(
        sparse.take_rows(csr_from(A), np.array(rows, np.int64)),
        A[rows] if rows else sp.csr_matrix((0, 4)),
    )
    selection = sparse.take_pattern_rows(pattern_from(A), np.array(rows, np.int64))
    assert [selection.row(i).tolist() for i in range(len(rows))] == [
        A[i].indices.tolist() for i in rows
    ]


@pytest.mark.parametrize(("start", "stop"), [(0, 7), (2, 5), (3, 3), (7, 7)])
def test_row_range_is_a_view(start: int, stop: int) -> None:
    X = csr_from(matrix(7, 4))
    part = sparse.row_range(X, start, stop)
    same(part, matrix(7, 4)[start:stop])
    assert part.nnz == 0 or np.shares_memory(part.data, X.data)
    labels = sparse.pattern_range(Pattern(X.indptr, X.indices, 4), start, stop)
    assert labels.indices.tolist() == part.indices.tolist()


def test_one_signature_each() -> None:
    X = csr_from(matrix(40, 90))
    for part in (X, sparse.row_range(X, 3, 9), sparse.transpose(X)):
        sparse.transpose(part)
        sparse.transpose_pattern(Pattern(part.indptr, part.indices, part.n_cols))
        sparse.row_norms_sq(part)
        sparse.take_rows(part, np.array([0], np.int64))
    for kernel in (
        sparse._transpose,
        sparse._transpose_pattern,
        sparse._row_norms_sq,
        sparse._positions,
    ):
        assert len(kernel.signatures) == 1, kernel


def test_dense_copies_have_the_entries():
    values = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 3.0]], np.float32)
    dense = sparse.to_dense(csr_from(values))
    assert dense.dtype == np.float32
    assert not dense.flags.writeable
    np.testing.assert_array_equal(dense, values)
