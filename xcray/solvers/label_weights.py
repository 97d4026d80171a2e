"""Weights of ranges of labels, and the labels that a training by rounds publishes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int64, csr, frozen
from xcray.solvers.declarations import WEIGHT_FIELDS, RecordSchema
from xcray.solvers.solved_labels import SolvedLabels

RECORDS: Final = RecordSchema(*WEIGHT_FIELDS)  # of `to_solved_labels`
PART_WEIGHTS = 1 << 22  # weights of a part of the result: 32 MB
SIZE_MASK = np.uint32(0x7FFFFFFF)  # all bits of a float32 except the sign


class LabelWeights(NamedTuple):
    """Weights of labels lo .. hi-1: W (D', hi-lo) float64, one row per feature."""

    lo: int
    hi: int
    W: Float64


def export_weights(
    W: Float64, positives: Int64, rounds: int, *, bias: float, prune: float, first: int = 0
) -> Iterator[SolvedLabels]:
    """Yield labels from `first` on with weights W (D', n) as sparse rows, by ranges of labels.

    A range has at most about PART_WEIGHTS weights. positives: (K,) training rows of each label.
    bias, prune, rounds: see `to_solved_labels`.
    """
    for lo, hi in split_ranges(W.shape[1], max(1, -(-W.size // PART_WEIGHTS))):
        part, counts = np.ascontiguousarray(W[:, lo:hi]), positives[first + lo : first + hi]
        yield to_solved_labels(first + lo, part, bias, prune, counts, rounds=rounds)


def split_ranges(n_labels: int, parts: int) -> list[tuple[int, int]]:
    """Split labels 0 .. n_labels-1 into `parts` ranges whose sizes differ by at most one."""
    ends = [n_labels * part // parts for part in range(parts + 1)]
    return list(pairwise(ends))


def to_solved_labels(
    lo: int, W: Any, bias: float, prune: float, positives: Int64, *, rounds: int = 0, keep: int = 0
) -> SolvedLabels:
    """Return labels from `lo` on as sparse rows, without small weights.

    W: (D', n) float32 or float64, one row per feature. bias: the value of the constant feature,
    which is then the last row of W; 0: no such feature. The bias of a label is that weight times
    that value. prune: weights of at most this size are dropped; keep: maximum number of weights per
    label, 0 for all. positives: (n,) training rows of each label.
    """
    n = W.shape[1]
    constant = W[-1].astype(np.float64) * bias if bias else np.zeros(n)
    matrix, dropped = sparse_rows(
        (W[:-1] if bias else W).astype(np.float32, copy=False), prune, keep
    )
    labels = np.arange(lo, lo + n, dtype=np.int32)
    records = np.zeros(n, RECORDS.dtype)
    records["label"], records["positives"], records["rounds"] = labels, positives, rounds
    records["nnz"], records["pruned"] = np.diff(matrix.indptr), dropped
    return SolvedLabels(frozen(labels, np.int32), matrix, frozen(constant, np.float64), records)


def sparse_rows(W: Float32, prune: float = 0.0, keep: int = 0) -> tuple[CSR, Int64]:
    """Return the weights of a dense block by label, and the number of dropped weights per label.

    W: (D, n) float32, one row per feature. prune: weights of at most this size are dropped; 0 drops
    zeros only. keep: maximum number of weights per label, the largest, ties by lower feature; 0
    keeps all. The result is a CSR (n, D) with ascending features, and (n,) int64 numbers of dropped
    non-zero weights. Values that are not finite count as the largest and are kept, so that checks
    of the model find them.
    """
    # sizes are compared by their bits, which ascend with the size, with NaN above infinity
    sizes = np.ascontiguousarray(W, np.float32).view(np.uint32) & SIZE_MASK
    stays = sizes > _threshold_bits(prune)
    for label in np.flatnonzero(stays.sum(axis=0) > keep) if keep else ():
        size = sizes[:, label]
        least = np.partition(size, -keep)[-keep]
        stays[:, label] = size > least
        ties = np.flatnonzero(size == least)
        stays[ties[: keep - np.count_nonzero(stays[:, label])], label] = True
    counts = stays.sum(axis=0)
    dropped = np.count_nonzero(sizes, axis=0) - counts
    every = np.broadcast_to(np.arange(W.shape[0], dtype=np.int32), stays.T.shape)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    matrix = csr(indptr, every[stays.T], W.T[stays.T], W.shape[0])
    return matrix, frozen(dropped, np.int64)


def _threshold_bits(prune: float) -> np.uint32:
    """Return the bits of the largest float32 that is not above `prune`."""
    with np.errstate(over="ignore"):
        near = np.float32(prune)
    if float(near) > prune:
        near = np.nextafter(near, np.float32(0.0))
    return near.view(np.uint32)
