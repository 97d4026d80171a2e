"""The arrays that travel through xcray: plain NamedTuples that numba takes whole.

Every array made here is read-only. That is a law, not a courtesy: arrays mapped from disk or shared through
Ray's object store are read-only anyway, numba compiles a kernel once for writable and once for read-only
arrays, and two processes compiling both at once can corrupt its disk cache. One kind of array, one signature.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xcray.errors import ShapeMismatch, lacking

if TYPE_CHECKING:
    import scipy.sparse as sp

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def frozen(array: Any, dtype: Any) -> NDArray[Any]:
    """A read-only, C-contiguous view of `array` with `dtype`; copies only when it must."""
    out = np.ascontiguousarray(array, dtype=dtype).view()
    out.flags.writeable = False
    return out


class CSR(NamedTuple):
    """A sparse matrix by row; column indices ascend within a row and never repeat.

    indptr: (n_rows + 1,) int64; indices: (nnz,) int32; data: (nnz,) float32; n_cols: columns.
    A matrix by column is the CSR of its transpose (`kernels.sparse.transpose`).
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
        """Column indices and values of row `i`, as views."""
        lo, hi = self.indptr[i], self.indptr[i + 1]
        return self.indices[lo:hi], self.data[lo:hi]

    def to_scipy(self) -> sp.csr_matrix:
        """The same matrix for scipy; shares memory. Raises Unavailable without scipy."""
        sp = _scipy_sparse()
        return sp.csr_matrix((self.data, self.indices, self.indptr), shape=self.shape, copy=False)


class Pattern(NamedTuple):
    """Which cells of a matrix are one: a CSR without values, for label sets.

    indptr: (n_rows + 1,) int64; indices: (nnz,) int32, ascending within a row, no repeats; n_cols: columns.
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
        """Column indices of row `i`, as a view."""
        return self.indices[self.indptr[i] : self.indptr[i + 1]]

    def to_scipy(self) -> sp.csr_matrix:
        """The same matrix for scipy, with ones (float32) as values. Raises Unavailable without scipy."""
        sp = _scipy_sparse()
        return sp.csr_matrix(
            (np.ones(self.nnz, np.float32), self.indices, self.indptr), shape=self.shape
        )


class TopK(NamedTuple):
    """The best labels of each row: best score first, equal scores by lower label id.

    labels: (n_rows, k) int32; scores: (n_rows, k) float64. k is at most the number of labels.
    """

    labels: Int32
    scores: Float64


def csr(indptr: Any, indices: Any, data: Any, n_cols: int) -> CSR:
    """Freeze arrays into a CSR (see the class for shapes and dtypes). Raises ShapeMismatch when lengths disagree."""
    out = CSR(
        frozen(indptr, np.int64), frozen(indices, np.int32), frozen(data, np.float32), int(n_cols)
    )
    if len(out.indices) != len(out.data) or len(out.indices) < out.indptr[-1]:
        raise ShapeMismatch(
            f"a matrix with {out.indptr[-1]} entries by its indptr has {len(out.indices)} indices and {len(out.data)} values"
        )
    return out


def pattern(indptr: Any, indices: Any, n_cols: int) -> Pattern:
    """Freeze arrays into a Pattern (see the class for shapes and dtypes). Raises ShapeMismatch when lengths disagree."""
    out = Pattern(frozen(indptr, np.int64), frozen(indices, np.int32), int(n_cols))
    if len(out.indices) < out.indptr[-1]:
        raise ShapeMismatch(
            f"a pattern with {out.indptr[-1]} ones by its indptr has {len(out.indices)} indices"
        )
    return out


def csr_from(matrix: Any, n_cols: int | None = None) -> CSR:
    """A CSR (float32) from a CSR, any scipy sparse matrix or array, or a dense 2-d array; canonical (sorted, summed).

    Raises ShapeMismatch when it is not 2-d, or has other columns than `n_cols`.
    """
    out = matrix if isinstance(matrix, CSR) else _canonical(matrix)
    if n_cols is not None and out.n_cols != n_cols:
        raise ShapeMismatch(
            f"X has {out.n_cols} features, {n_cols} were expected; read it with n_features={n_cols}"
        )
    return out


def pattern_from(matrix: Any) -> Pattern:
    """A Pattern of the non-zero cells of a scipy sparse matrix, a dense 0/1 array, or a Pattern itself."""
    if isinstance(matrix, Pattern):
        return matrix
    cells = _canonical(matrix)
    ones = cells.data != 0
    return pattern(
        np.concatenate(([0], np.cumsum(ones)))[cells.indptr], cells.indices[ones], cells.n_cols
    )


def _scipy_sparse() -> Any:
    """The module `scipy.sparse`, imported when first asked for: predicting does without."""
    try:
        import scipy.sparse
    except ModuleNotFoundError as error:
        raise lacking(error) from None
    return scipy.sparse


def _canonical(matrix: Any) -> CSR:
    """A CSR with sorted indices and no duplicates; shares memory where nothing must be changed. Dense arrays need no scipy."""
    scipy = sys.modules.get("scipy.sparse")  # who never imported it has no matrix of it
    if scipy is not None and scipy.issparse(matrix):
        out = scipy.csr_matrix(matrix, dtype=np.float32)
        if not out.has_canonical_format:
            out = (
                out.copy()
            )  # copy: summing duplicates works in place, and the caller's matrix is not ours
            out.sum_duplicates()
        return csr(out.indptr, out.indices, out.data, out.shape[1])
    if np.ndim(matrix) != 2:
        raise ShapeMismatch(
            f"a matrix with 2 dimensions was expected, this has {np.ndim(matrix)}; use X.reshape(1, -1) for one row"
        )
    dense = np.asarray(matrix)
    rows, columns = np.nonzero(dense)
    starts = np.searchsorted(rows, np.arange(dense.shape[0] + 1))
    return csr(starts, columns, dense[rows, columns], dense.shape[1])
