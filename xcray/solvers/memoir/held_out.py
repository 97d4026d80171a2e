"""Held-out training rows of MEMOIR: the split, and accuracy and macro-F1 on these rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xcray.arrays import CSR, Int64, Pattern
from xcray.errors import Stopped
from xcray.kernels.sparse import take_pattern_rows, take_rows, transpose
from xcray.kernels.training.class_weights import best_classes

SLICE_ROWS = 100  # scored between two checks of the stop flag


class HeldOutRows(NamedTuple):
    """Rows X (n, D) with their labels Y (n, K)."""

    X: CSR
    Y: Pattern


class HeldOutCounts(NamedTuple):
    """Counts of each class over the held-out rows: (K,) each.

    tested: rows with the class. predicted: rows whose best score is that of the class. hits: rows
    with both.
    """

    tested: Int64
    predicted: Int64
    hits: Int64

    @property
    def accuracy(self) -> float:
        """Return the share of rows whose best class is one of theirs."""
        return float(self.hits.sum() / max(self.predicted.sum(), 1))

    @property
    def macro_f1(self) -> float:
        """Return the mean of F1 = 2 hits / (tested + predicted) over the classes of the rows."""
        occurs = self.tested > 0
        f1 = 2.0 * self.hits[occurs] / (self.tested + self.predicted)[occurs]
        return float(f1.mean()) if len(f1) else 0.0


def take_held_out(X: CSR, Y: Pattern, rows: Int64) -> HeldOutRows:
    """Return some of the rows."""
    return HeldOutRows(take_rows(X, rows), take_pattern_rows(Y, rows))


def best_of_rows(W: CSR, rows: HeldOutRows, lo: int, hi: int, stopped: Callable[[], bool]) -> Int64:
    """Return the best class of the held-out rows lo .. hi - 1 under the weights W (K, D).

    Raises Stopped if `stopped` returns True.
    """
    WT, best = transpose(W), np.zeros(rows.Y.shape[0], np.int64)
    for begin in range(lo, hi, SLICE_ROWS):
        if stopped():
            raise Stopped(
                "stopped in an evaluation; the next run continues after the last saved round"
            )
        best_classes(rows.X, WT, begin, min(hi, begin + SLICE_ROWS), best)
    return best[lo:hi]


def count_hits(best: Int64, Y: Pattern) -> HeldOutCounts:
    """Return the counts of rows with labels Y (n, K) whose best classes are `best` (n,)."""
    n, K = Y.shape
    owners = np.repeat(np.arange(n), np.diff(Y.indptr))
    correct = Y.indices[best[owners] == Y.indices]
    return HeldOutCounts(*(np.bincount(each, minlength=K) for each in (Y.indices, best, correct)))
