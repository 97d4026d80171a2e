"""Labels not yet given out, in the order to give them out; a batch is taken in the time of a look, however many are left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, Int64

LARGEST = 4096  # labels in a batch, at most
LOOKS = (64, LARGEST)  # labels priced to find where a batch ends: few at first


class Batch(NamedTuple):
    """Labels (n,), their terms (n, T) and values (n,) if there are any; `total` (T,): the sums of the terms."""

    labels: Int64
    terms: Float64
    values: Float64 | None
    total: tuple[float, ...]


class Backlog:
    """Labels (n,), ids, with terms (n, T) >= 0; in order of `values` (n,), largest first, or else of price, dearest first.

    Ties go by price and then by the order given. Sums of terms are kept along the order, so that any stretch is priced by its two
    ends. Prices are always those of the rates asked with; only the order is that of the last `sort`.
    Taking looks at no more than `LARGEST` labels; sorting takes O(n log n).
    """

    def __init__(
        self, labels: Sequence[int] | Int32, terms: Any, rates: Sequence[float], values: Any = None
    ) -> None:
        self._labels = np.asarray(labels, np.int64)
        self._terms = np.asarray(terms, np.float64).reshape(
            len(self._labels), len(rates)
        )  # (n,) seconds are one column
        self._values = None if values is None else np.asarray(values, np.float64)
        self._begin = 0
        self._end = len(self._labels)
        self.sort(rates)

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def left(self) -> tuple[float, ...]:
        """Sums of the terms of what is left: (T,)."""
        return tuple((self._sums[self._end] - self._sums[self._begin]).tolist())

    def sort(self, rates: Sequence[float]) -> None:
        """Put what is left in the order of these rates."""
        left = slice(self._begin, self._end)
        labels, terms = self._labels[left], self._terms[left]
        order = np.argsort(-(terms @ np.asarray(rates)), kind="stable")
        if self._values is not None:
            order = order[np.argsort(-self._values[left][order], kind="stable")]
        self._labels, self._terms = labels[order], terms[order]
        self._values = None if self._values is None else self._values[left][order]
        self._sums = np.vstack([np.zeros(terms.shape[1]), np.cumsum(self._terms, axis=0)])
        self._begin, self._end, self._sorted = 0, len(labels), np.asarray(rates, np.float64)

    def drift(self, rates: Sequence[float]) -> float:
        """How far these rates are from those of the last sort, in [0, 1]: the part of the cost left that moved between terms.

        A factor common to all rates moves nothing; nor does anything where values give the order.
        """
        if self._values is not None:
            return 0.0
        left = np.asarray(self.left)
        now, then = left * np.asarray(rates), left * self._sorted
        if not now.sum() > 0.0 or not then.sum() > 0.0:
            return 0.0
        return float(0.5 * np.abs(now / now.sum() - then / then.sum()).sum())

    def first(self, rates: Sequence[float]) -> float:
        """The price of the label that is next."""
        return float(self._terms[self._begin] @ np.asarray(rates))

    def take(self, rates: Sequence[float], limit: float, back: bool = False) -> Batch:
        """The next labels that cost no more than `limit` seconds together, or one that does; from the back: the last ones."""
        count = self._count(rates, limit, back)
        return (
            self._cut(self._end - count, self._end)
            if back
            else self._cut(self._begin, self._begin + count)
        )

    def take_all(self) -> Batch:
        """Everything that is left."""
        return self._cut(self._begin, self._end)

    def rest(self) -> Batch:
        """Everything that is left, and stays."""
        return self._stretch(self._begin, self._end)

    def _count(self, rates: Sequence[float], limit: float, back: bool) -> int:
        """How many labels from one end fit into `limit`; at least one."""
        count = 0
        for look in LOOKS:
            n = min(look, len(self))
            sums = (
                self._sums[self._end - n : self._end + 1][::-1]
                if back
                else self._sums[self._begin : self._begin + n + 1]
            )
            prices = np.abs(sums - sums[0]) @ np.asarray(rates)
            count = int(np.searchsorted(prices, limit, side="right")) - 1
            if count < n:
                break
        return max(count, 1)

    def _cut(self, begin: int, end: int) -> Batch:
        """Remove a stretch at one of the ends."""
        batch = self._stretch(begin, end)
        if begin == self._begin:
            self._begin = end
        else:
            self._end = begin
        return batch

    def _stretch(self, begin: int, end: int) -> Batch:
        """A part of the order, as views."""
        values = None if self._values is None else self._values[begin:end]
        total = tuple((self._sums[end] - self._sums[begin]).tolist())
        return Batch(self._labels[begin:end], self._terms[begin:end], values, total)
