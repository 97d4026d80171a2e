"""Label groups of a model: evidence that similar labels share, as a bias that depends on the row.

score(label) = w_label . x + b_label + weight x mean over its groups of (w_group . x + b_group)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64, csr, frozen
from xcray.errors import ShapeMismatch
from xcray.kernels.search.label_groups import GroupArrays, GroupScratch
from xcray.kernels.sparse import transpose


class GroupSummands(NamedTuple):
    """The part of one group in the score of a label: bias + sum(x * weights).

    group: its number; features: (m,) int32, of the row, ascending; x, weights: (m,) float64.
    """

    group: int
    features: Int32
    x: Float64
    weights: Float64
    bias: float


@dataclass(frozen=True, eq=False)
class LabelGroups:
    """Groups of similar labels, for one or several sizes, and their one-vs-rest models.

    sizes: number of groups of each of the S sizes, from coarse to fine; they are numbered in this
    order, G in total. postings: (D, G) CSR, the weights of the groups by feature; b: (G,) float32;
    members: (K, S) int32, the group of each label for each size; weight: factor of the mean of
    their scores.
    """

    sizes: tuple[int, ...]
    postings: CSR
    b: Float32
    members: Int32
    weight: float

    def __post_init__(self) -> None:
        """Check the sizes. Raises ShapeMismatch."""
        ends = np.cumsum(self.sizes)
        counts = (self.postings.n_cols, len(self.b))
        if not self.sizes or counts != (ends[-1], ends[-1]):
            raise ShapeMismatch(
                f"groups of sizes {list(self.sizes)} have weights of {counts[0]} groups and "
                f"{counts[1]} biases"
            )
        if (
            self.members.ndim != 2
            or self.members.shape[1] != len(ends)
            or not ((ends - self.sizes <= self.members) & (self.members < ends)).all()
        ):
            raise ShapeMismatch("every label needs one group of each size")

    @property
    def n_groups(self) -> int:
        """Return G, the number of groups of all sizes."""
        return len(self.b)

    @property
    def share(self) -> float:
        """Return the factor of each group's score: weight over the number of sizes."""
        return self.weight / len(self.sizes)

    @property
    def n_bytes(self) -> int:
        """Return the bytes of all arrays."""
        arrays = (*self.postings[:3], self.b, self.members)
        return sum(int(array.nbytes) for array in arrays)

    @cached_property
    def arrays(self) -> GroupArrays:
        """Return the arguments of the kernels."""
        counts = np.bincount(self.members.ravel(), minlength=self.n_groups)
        order = np.argsort(self.members.ravel(), kind="stable")
        return GroupArrays(
            csr(*self.postings),
            frozen(self.b, np.float32),
            frozen(self.members, np.int32),
            frozen(order // len(self.sizes), np.int32),
            frozen(np.concatenate([[0], np.cumsum(counts)]), np.int64),
            frozen(np.cumsum(self.sizes), np.int64),
            self.share,
        )

    @cached_property
    def W(self) -> CSR:
        """Return the weights by group, (G, D), transposed in memory on first use."""
        return transpose(self.postings)

    def scratch(self) -> GroupScratch:
        """Return working memory of a thread."""
        return GroupScratch(
            np.empty(self.n_groups, np.float64), np.empty(len(self.members), np.float32)
        )

    def bias_bounds(self, b: Float32) -> Float32:
        """Return bounds of the biases for a row without features, (K,) float32. b: (K,)."""
        sums = b + self.share * self.b.astype(np.float64)[self.members].sum(axis=1)
        out: Float32 = np.nextafter(sums.astype(np.float32), np.float32(np.inf))
        return out

    def with_members(self, members: Int32) -> LabelGroups:
        """Return the same groups of other labels."""
        return replace(self, members=frozen(members, np.int32))

    def labels_of(self, group: int) -> Int64:
        """Return the labels of a group, ascending."""
        return np.flatnonzero((self.members == group).any(axis=1))

    def row_biases(self, X: CSR, b: Float32) -> Callable[[int], Float64]:
        """Return the biases of all labels for a row by its number: (K,) float64.

        b: (K,), the labels' own biases. The bits are those of the kernel.
        """
        starts, own = self.postings.indptr, b.astype(np.float64)

        def biases_of(row: int) -> Float64:
            features, values = X.row(row)
            lengths = starts[features + 1] - starts[features]
            ends = np.cumsum(lengths)
            places = np.arange(ends[-1] if len(ends) else 0)
            places += np.repeat(starts[features] - ends + lengths, lengths)
            products = np.repeat(values.astype(np.float64), lengths) * self.postings.data[places]
            sums = np.bincount(self.postings.indices[places], products, self.n_groups)
            scores = self.share * (sums + self.b.astype(np.float64))
            total = own
            for column in self.members.T:
                total = total + scores[column]
            return total

        return biases_of

    def scores(self, X: Any) -> Float64:
        """Return what the groups add to the scores of all labels: (n, K).

        X: (n, D), a scipy matrix in float64.
        """
        own = (X @ self.postings.to_scipy().astype(np.float64)).toarray() + self.b
        out: Float64 = self.share * own[:, self.members].sum(axis=2)
        return out

    def summands(self, X: CSR, label: int) -> list[GroupSummands]:
        """Return the parts of a label's groups in its score for one row, from coarse to fine."""
        features, values = X.row(0)
        x = np.zeros(self.postings.n_rows)
        x[features] = values
        parts = []
        for group in self.members[label].tolist():
            own, weights = self.W.row(group)
            used = np.isin(own, features, assume_unique=True)
            shared = frozen(own[used], np.int32)
            scaled = self.share * weights[used].astype(np.float64)
            bias = self.share * float(self.b[group])
            parts.append(GroupSummands(group, shared, x[shared], scaled, bias))
        return parts
