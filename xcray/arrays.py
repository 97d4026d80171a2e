"""Array types of xcray: plain NamedTuples that numba accepts as kernel arguments.

All arrays created here are read-only, for three reasons. Arrays mapped from disk or shared through
Ray's object store are read-only anyway. Numba compiles a kernel separately for writable and for
read-only arrays. Two processes that compile both variants at once can corrupt its disk cache.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xcray.errors import ShapeMismatch, missing_extra

if TYPE_CHECKING:
    import scipy.sparse as sp

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def frozen(array: Any, dtype: Any) -> NDArray[Any]:
    """Return a read-only, C-contiguous view of `array` with `dtype`; copy only if necessary."""
    out = np.ascontiguousarray(array, dtype=dtype).view()
    out.setflags(write=False)
    return out


def distinct(values: Any) -> NDArray[Any]:
    """Return the distinct numbers of an array, ascending; any shape.

    `numpy.unique` alone hashes them, which takes many times as long as sorting unless most are
    equal. With counts it sorts.
    """
    return np.unique(values, return_counts=True)[0]


class CSR(NamedTuple):
    """Sparse matrix in compressed row form; column indices ascend within a row without repeats.

    indptr: (n_rows + 1,) int64; indices: (nnz,) int32; data: (nnz,) float32; n_cols: column count.
    A column-major matrix is the CSR of its transpose (`kernels.sparse.transpose`).
    """

    indptr: Int64
    indices: Int32
    data: Float32
    n_cols: int

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_cols)."""
        return self.n_rows, int(self.n_cols)

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return int(self.indptr[-1] - self.indptr[0])

    def row(self, i: int) -> tuple[Int32, Float32]:
        """Return the column indices and values of row `i`, as views."""
        lo, hi = self.indptr[i], self.indptr[i + 1]
        return self.indices[lo:hi], self.data[lo:hi]

    def to_scipy(self) -> sp.csr_matrix:
        """Return a scipy matrix that shares memory. Raises Unavailable if scipy is missing."""
        sp = _import_scipy_sparse()
        return sp.csr_matrix((self.data, self.indices, self.indptr), shape=self.shape, copy=False)


class Pattern(NamedTuple):
    """Sparse binary matrix: a CSR without values, for label sets.

    indptr: (n_rows + 1,) int64; indices: (nnz,) int32, ascending within a row without repeats;
    n_cols: number of columns.
    """

    indptr: Int64
    indices: Int32
    n_cols: int

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_cols)."""
        return self.n_rows, int(self.n_cols)

    @property
    def nnz(self) -> int:
        """Number of ones."""
        return int(self.indptr[-1] - self.indptr[0])

    def row(self, i: int) -> Int32:
        """Return the column indices of row `i`, as a view."""
        return self.indices[self.indptr[i] : self.indptr[i + 1]]

    def to_scipy(self) -> sp.csr_matrix:
        """Return a scipy matrix of float32 ones. Raises Unavailable if scipy is missing."""
        sp = _import_scipy_sparse()
        return sp.csr_matrix(
            (np.ones(self.nnz, np.float32), self.indices, self.indptr), shape=self.shape
        )


class TopK(NamedTuple):
    """Best labels of each row: highest score first, ties by lower label id.

    labels: (n_rows, k) int32; scores: (n_rows, k) float64. k is at most the number of labels.
    """

    labels: Int32
    scores: Float64


def csr(indptr: Any, indices: Any, data: Any, n_cols: int) -> CSR:
    """Make a read-only CSR (see the class for shapes and dtypes).

    Raises ShapeMismatch if the lengths of the arrays differ.
    """
    out = CSR(
        frozen(indptr, np.int64), frozen(indices, np.int32), frozen(data, np.float32), int(n_cols)
    )
    if len(out.indices) != len(out.data) or len(out.indices) < out.indptr[-1]:
        raise ShapeMismatch(
            f"a matrix with {out.indptr[-1]} entries by its indptr "
            f"has {len(out.indices)} indices and {len(out.data)} values"
        )
    return out


def stack_rows(parts: Sequence[CSR], n_cols: int) -> CSR:
    """Return the rows of at least one matrix as one, with `n_cols` columns."""
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    return csr(
        np.concatenate(([0], np.cumsum(lengths))),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.data for part in parts]),
        n_cols,
    )


def pattern(indptr: Any, indices: Any, n_cols: int) -> Pattern:
    """Make a read-only Pattern (see the class for shapes and dtypes).

    Raises ShapeMismatch if `indices` is shorter than `indptr` says.
    """
    out = Pattern(frozen(indptr, np.int64), frozen(indices, np.int32), int(n_cols))
    if len(out.indices) < out.indptr[-1]:
        raise ShapeMismatch(
            f"a pattern with {out.indptr[-1]} ones by its indptr has {len(out.indices)} indices"
        )
    return out


def csr_from(matrix: Any, n_cols: int | None = None) -> CSR:
    """Return a canonical float32 CSR: column indices sorted, duplicates summed.

    matrix: a CSR, a scipy sparse matrix or array, or a dense 2-d array. Raises ShapeMismatch if it
    is not 2-d, or if its number of columns is not `n_cols`.
    """
    out = matrix if isinstance(matrix, CSR) else _canonical(matrix)
    if n_cols is not None and out.n_cols != n_cols:
        raise ShapeMismatch(
            f"X has {out.n_cols} features, {n_cols} were expected; read it with n_features={n_cols}"
        )
    return out


def pattern_from(matrix: Any) -> Pattern:
    """Return the Pattern of the non-zero cells of a scipy sparse matrix or a dense 0/1 array.

    A Pattern is returned unchanged.
    """
    if isinstance(matrix, Pattern):
        return matrix
    cells = _canonical(matrix)
    ones = cells.data != 0
    return pattern(
        np.concatenate(([0], np.cumsum(ones)))[cells.indptr], cells.indices[ones], cells.n_cols
    )


def _import_scipy_sparse() -> Any:
    """Import and return `scipy.sparse`, on first use because prediction does not need it."""
    try:
        import scipy.sparse
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None
    return scipy.sparse


def _canonical(matrix: Any) -> CSR:
    """Return a CSR with sorted indices and no duplicates; copy only if something must change.

    Dense arrays do not need scipy.
    """
    # if scipy was never imported, the matrix cannot be a scipy matrix
    scipy = sys.modules.get("scipy.sparse")
    if scipy is not None and scipy.issparse(matrix):
        is_usual = matrix.format == "csr" and matrix.dtype == np.float32 and matrix.ndim == 2
        out = matrix if is_usual else scipy.csr_matrix(matrix, dtype=np.float32)
        if not out.has_canonical_format:
            # copy: sum_duplicates works in place and must not change the caller's matrix
            out = out.copy()
            out.sum_duplicates()
        return csr(out.indptr, out.indices, out.data, out.shape[1])
    if np.ndim(matrix) != 2:
        raise ShapeMismatch(
            f"a matrix with 2 dimensions was expected, this has {np.ndim(matrix)}; "
            "use X.reshape(1, -1) for one row"
        )
    dense = np.asarray(matrix)
    rows, columns = np.nonzero(dense)
    starts = np.searchsorted(rows, np.arange(dense.shape[0] + 1))
    return csr(starts, columns, dense[rows, columns], dense.shape[1])
