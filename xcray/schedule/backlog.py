"""Labels that are not assigned yet, in the order of assignment; taking a batch costs O(1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, Int64

MAX_BATCH_LABELS = 4096  # labels in a batch, at most
SCAN_LENGTHS = (64, MAX_BATCH_LABELS)  # numbers of labels priced to find the end of a batch


class Batch(NamedTuple):
    """Labels (n,), terms (n, T), optional values (n,), and `total` (T,), the sums of the terms."""

    labels: Int64
    terms: Float64
    values: Float64 | None
    total: tuple[float, ...]


class Backlog:
    """Labels (n,) with terms (n, T) >= 0, by decreasing `values` (n,) or else by decreasing price.

    Ties are ordered by price and then by the given order. Sums of terms are kept along the order,
    so any slice is priced by its two ends. Prices always use the rates passed to the call; the
    order is that of the last `sort`. `take` scans at most MAX_BATCH_LABELS labels, `sort` is O(n
    log n).
    """

    def __init__(
        self, labels: Sequence[int] | Int32, terms: Any, rates: Sequence[float], values: Any = None
    ) -> None:
        self._labels = np.asarray(labels, np.int64)
        # (n,) seconds are one column
        self._terms = np.asarray(terms, np.float64).reshape(len(self._labels), len(rates))
        self._values = None if values is None else np.asarray(values, np.float64)
        self._begin = 0
        self._end = len(self._labels)
        self.sort(rates)

    def __len__(self) -> int:
        return self._end - self._begin

    def sort(self, rates: Sequence[float]) -> None:
        """Sort the remaining labels by these rates."""
        left = slice(self._begin, self._end)
        labels, terms = self._labels[left], self._terms[left]
        order = np.argsort(-(terms @ np.asarray(rates)), kind="stable")
        if self._values is not None:
            order = order[np.argsort(-self._values[left][order], kind="stable")]
        self._labels, self._terms = labels[order], terms[order]
        self._values = None if self._values is None else self._values[left][order]
        self._sums = np.vstack([np.zeros(terms.shape[1]), np.cumsum(self._terms, axis=0)])
        self._begin, self._end, self._sorted = 0, len(labels), np.asarray(rates, np.float64)
        self._update_remaining()

    def _update_remaining(self) -> None:
        """Update the sums of the terms of the remaining labels: (T,)."""
        left = self._sums[self._end] - self._sums[self._begin]
        self.remaining_terms: tuple[float, ...] = tuple(left.tolist())

    def order_drift(self, rates: Sequence[float]) -> float:
        """Return how far these rates are from those of the last sort, in [0, 1].

        It is the share of the remaining cost that moved between terms. A factor common to all rates
        moves nothing. The drift is 0 if values give the order.
        """
        if self._values is not None:
            return 0.0
        left = np.asarray(self.remaining_terms)
        now, then = left * np.asarray(rates), left * self._sorted
        if not now.sum() > 0.0 or not then.sum() > 0.0:
            return 0.0
        return float(0.5 * np.abs(now / now.sum() - then / then.sum()).sum())

    def first_price(self, rates: Sequence[float]) -> float:
        """Return the price of the next label."""
        return float(self._terms[self._begin] @ np.asarray(rates))

    def take(self, rates: Sequence[float], limit: float, from_back: bool = False) -> Batch:
        """Remove and return the next labels that cost at most `limit` seconds together.

        At least one label is returned. from_back: take the last labels instead.
        """
        count = self._count_affordable(rates, limit, from_back)
        return (
            self._cut(self._end - count, self._end)
            if from_back
            else self._cut(self._begin, self._begin + count)
        )

    def _count_affordable(self, rates: Sequence[float], limit: float, from_back: bool) -> int:
        """Return how many labels from one end fit into `limit`, at least 1."""
        count = 0
        for length in SCAN_LENGTHS:
            n = min(length, len(self))
            sums = (
                self._sums[self._end - n : self._end + 1][::-1]
                if from_back
                else self._sums[self._begin : self._begin + n + 1]
            )
            prices = np.abs(sums - sums[0]) @ np.asarray(rates)
            count = int(np.searchsorted(prices, limit, side="right")) - 1
            if count < n:
                break
        return max(count, 1)

    def _cut(self, begin: int, end: int) -> Batch:
        """Remove and return a slice at one of the ends."""
        batch = self._slice(begin, end)
        if begin == self._begin:
            self._begin = end
        else:
            self._end = begin
        self._update_remaining()
        return batch

    def _slice(self, begin: int, end: int) -> Batch:
        """Return a part of the order, as views."""
        values = None if self._values is None else self._values[begin:end]
        total = tuple((self._sums[end] - self._sums[begin]).tolist())
        return Batch(self._labels[begin:end], self._terms[begin:end], values, total)
