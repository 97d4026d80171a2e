"""Groups of similar labels: spherical k-means of their mean rows, in 100 dimensions.

The bits depend on the data only: products use one core, and sums have a fixed order.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Int32, Pattern, frozen, pattern
from xcray.errors import ParameterError
from xcray.system.blas_threads import limit_blas_threads
from xcray.training.spec import parse_group_sizes

N_DIMENSIONS: Final = 100
OVERSAMPLING: Final = 10  # further dimensions that make the reduction accurate
POWER_ROUNDS: Final = 1  # passes that separate large singular values from small ones
K_MEANS_ROUNDS: Final = 3  # more change groups, not accuracy
MAX_ROWS: Final = 1 << 14  # rows per product
MAX_LABELS: Final = 1 << 10  # labels whose cosines with all centres are computed at once
SEED: Final = 0
# sizes chosen by "auto": labels per group; with more labels than these groups allow, the largest
# number of groups is limited, and each size is four times the one before
LABELS_PER_GROUP: Final = (40, 15, 6, 3)
MAX_GROUPS: Final = 6000
MIN_GROUPS: Final = 2


class LabelClusters(NamedTuple):
    """Groups of labels. sizes: number of groups of each of the S sizes, from coarse to fine.

    members: (K, S) int32, the group of each label, numbered over all sizes in this order.
    """

    sizes: tuple[int, ...]
    members: Int32

    @property
    def n_groups(self) -> int:
        """Return the number of groups of all sizes."""
        return sum(self.sizes)


def choose_sizes(text: str, n_labels: int) -> tuple[int, ...]:
    """Return the numbers of groups for K labels; empty if there are too few labels for "auto".

    Raises ParameterError, also for more groups than labels.
    """
    sizes = parse_group_sizes(text)
    if sizes is None:
        counts = [n_labels // per_group for per_group in LABELS_PER_GROUP]
        if counts[-1] > MAX_GROUPS:
            counts = [MAX_GROUPS // 4**step for step in (3, 2, 1, 0)]
        return tuple(sorted({count for count in counts if count >= MIN_GROUPS}))
    if sizes and sizes[-1] > n_labels:
        raise ParameterError(
            f"groups has {sizes[-1]} groups, the data set {n_labels} labels: use fewer groups"
        )
    return sizes


def cluster_bytes(n_labels: int, n_features: int) -> int:
    """Return the memory of a clustering: bases of the reduction, and cosines of some labels."""
    bases = 4 * 4 * (N_DIMENSIONS + OVERSAMPLING) * (n_labels + n_features)
    return bases + 4 * MAX_LABELS * min(n_labels, MAX_GROUPS)


def cluster_labels(X: CSR, YT: Pattern, sizes: tuple[int, ...]) -> LabelClusters:
    """Return groups of the labels for each size, which are clustered independently.

    X: (N, D), rows; their lengths do not matter. YT: (K, N), the rows of each label. A group can
    stay empty and is then left out.
    """
    with limit_blas_threads():
        vectors = label_vectors(X, YT)
        columns = [k_means(vectors, size) for size in sizes]
    counts = [int(column.max()) + 1 for column in columns]
    starts = np.cumsum([0, *counts[:-1]])
    return LabelClusters(tuple(counts), frozen(np.column_stack(columns) + starts, np.int32))


def label_vectors(X: CSR, YT: Pattern) -> Float32:
    """Return the mean rows of the labels, reduced to N_DIMENSIONS: (K, d) float32 of length 1.

    Labels without rows have zeros. The reduction is a randomised singular value decomposition
    (Halko, Martinsson and Tropp, 2011, algorithms 4.4 and 5.1) of the means of rows of length 1.
    """
    means = _LabelMeans(X, YT)
    n = min(N_DIMENSIONS + OVERSAMPLING, *means.shape)
    basis = np.random.default_rng(SEED).standard_normal((means.shape[1], n), np.float32)
    for _ in range(POWER_ROUNDS):
        basis = np.linalg.qr(means.transposed_times(np.linalg.qr(means.times(basis))[0]))[0]
    basis = np.linalg.qr(means.times(basis))[0]
    small = means.transposed_times(basis).astype(np.float64)
    values, directions = np.linalg.eigh(small.T @ small)
    best = np.argsort(-values, kind="stable")[:N_DIMENSIONS]
    scales = np.sqrt(np.maximum(values[best], 0.0))
    return unit_rows((basis @ directions[:, best] * scales).astype(np.float32))


def k_means(vectors: Float32, n_groups: int) -> Int32:
    """Return the group of each vector by spherical k-means: (K,) int32, numbered without gaps.

    vectors: (K, d) of length 1 or 0. Starts from random vectors; ties go to the lower number.
    """
    import scipy.sparse as sp

    rng = np.random.default_rng([SEED, n_groups])
    used = np.flatnonzero(np.einsum("ij,ij->i", vectors, vectors) > 0.0)
    centres = vectors[np.sort(rng.permutation(used)[:n_groups])]
    if not len(centres):
        return np.zeros(len(vectors), np.int32)
    own = nearest(vectors, centres)
    for _ in range(K_MEANS_ROUNDS):
        places = (np.ones(len(own), np.float32), (own, np.arange(len(own))))
        sums = sp.csr_matrix(places, (len(centres), len(own))) @ vectors
        is_empty = np.einsum("ij,ij->i", sums, sums) == 0.0
        centres = np.where(is_empty[:, None], centres, unit_rows(sums))
        before, own = own, nearest(vectors, centres)
        if np.array_equal(before, own):
            break
    return np.unique(own, return_inverse=True)[1].astype(np.int32)


def nearest(vectors: Float32, centres: Float32) -> Int32:
    """Return the centre with the largest product for each vector: (K,) int32."""
    out = np.empty(len(vectors), np.int32)
    for start in range(0, len(vectors), MAX_LABELS):
        part = slice(start, start + MAX_LABELS)
        out[part] = np.argmax(vectors[part] @ centres.T, axis=1)
    return out


def unit_rows(rows: Float32) -> Float32:
    """Return rows divided by their lengths; rows of zeros stay zeros."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    out: Float32 = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0.0)
    return out


def add_group_rows(YT: Pattern, clusters: LabelClusters) -> Pattern:
    """Return the rows of the labels and, after them, of the groups: (K + G, N).

    A row has a group if it has one of its labels.
    """
    import scipy.sparse as sp

    n_labels, n_sizes = clusters.members.shape
    labels = np.repeat(np.arange(n_labels), n_sizes)
    ones = np.ones(labels.size, np.float32)
    shape = (clusters.n_groups, n_labels)
    rows = sp.csr_matrix((ones, (clusters.members.ravel(), labels)), shape) @ YT.to_scipy()
    rows.sort_indices()
    n_ones = YT.nnz
    return pattern(
        np.concatenate([YT.indptr, n_ones + rows.indptr[1:].astype(np.int64)]),
        np.concatenate([YT.indices[:n_ones], rows.indices]),
        YT.n_cols,
    )


class _LabelMeans:
    """The mean rows of labels as a matrix (K, D) that is never formed.

    Rows are divided by their lengths.
    """

    def __init__(self, X: CSR, YT: Pattern) -> None:
        self.shape = (YT.n_rows, int(X.n_cols))
        self._X, self._Y = X.to_scipy(), YT.to_scipy().T.tocsr()
        squares = np.add.reduceat(
            np.append(X.data[: X.nnz].astype(np.float64) ** 2, 0.0), X.indptr[:-1]
        )
        squares[np.diff(X.indptr) == 0] = 0.0
        lengths = np.sqrt(squares)
        self._row_factors = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        self._label_factors = 1.0 / np.maximum(np.diff(YT.indptr), 1)

    def times(self, basis: Any) -> Any:
        """Return the product with (D, n): (K, n) float32."""
        out = np.zeros((self.shape[0], basis.shape[1]), np.float32)
        for part in self._parts():
            rows = (self._X[part] @ basis) * self._row_factors[part, None].astype(np.float32)
            out += self._Y[part].T @ rows
        return out * self._label_factors[:, None].astype(np.float32)

    def transposed_times(self, basis: Any) -> Any:
        """Return the product of the transpose with (K, n): (D, n) float32."""
        scaled = (basis * self._label_factors[:, None]).astype(np.float32)
        out = np.zeros((self.shape[1], basis.shape[1]), np.float32)
        for part in self._parts():
            rows = (self._Y[part] @ scaled) * self._row_factors[part, None].astype(np.float32)
            out += self._X[part].T @ rows
        return out

    def _parts(self) -> list[slice]:
        """Return ranges of rows."""
        return [slice(start, start + MAX_ROWS) for start in range(0, self._X.shape[0], MAX_ROWS)]
