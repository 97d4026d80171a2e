"""Rows of a training as shards, cut the same way everywhere."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np

from xcray.arrays import Int64
from xcray.solvers.group_contract import Grid, TrainingRows
from xcray.solvers.row_shards import Shard, make_shard, shard_rows, total_weight

MAX_HELD_OUT_ROWS: Final = 10_000  # approximate limit of evaluated rows


class SplitPlan(NamedTuple):
    """How rows are split into shards, the same everywhere.

    total: weight of all rows that have labels, see `row_shards.total_weight`.
    bias: value of the constant feature.
    held_out_step: evaluate every n-th held-out row of the shard; 0 disables evaluation.
    held_out_weight: weight of the evaluated rows that have labels.
    """

    seed: int
    bias: float
    total: float
    held_out_step: int = 0
    held_out_weight: float = 0.0

    def held_out_rows(self, n_rows: int, shards: int, number: int) -> Int64:
        """Return the held-out rows that shard `number` of `shards` evaluates."""
        return shard_rows(n_rows, shards, self.seed, number)[:: self.held_out_step]


# rows of a shard, and its held-out rows
ShardRows: TypeAlias = tuple[Shard, Shard | None]


class ShardSource(NamedTuple):
    """Rows that shards are cut from; they can be mapped files, of which a cut reads what it needs.

    Weights of held-out rows are not used.
    """

    grid: Grid
    split: SplitPlan
    rows: TrainingRows

    def cut_shard(self, number: int) -> ShardRows:
        """Return shard `number`, and its held-out rows."""
        split, (X, Y, weights, held_out) = self.split, self.rows
        rows = shard_rows(X.n_rows, self.grid.shards, split.seed, number)
        shard = make_shard(X, Y, rows, total=split.total, weights=weights, bias=split.bias)
        if held_out is None or not split.held_out_step:
            return shard, None
        X, Y, _ = held_out
        counts = split.held_out_rows(X.n_rows, self.grid.shards, number)
        return shard, make_shard(X, Y, counts, total=split.held_out_weight, bias=split.bias)


def split_plan(
    rows: TrainingRows, grid: Grid, seed: int, bias: float, max_held_out: int = MAX_HELD_OUT_ROWS
) -> SplitPlan:
    """Return how rows are split.

    max_held_out: approximate limit of the held-out rows that are evaluated.
    """
    split = SplitPlan(seed, bias, total_weight(rows.Y, rows.weights))
    if rows.held_out is None or not rows.held_out[1].nnz or max_held_out < 1:
        return split
    X, Y, _ = rows.held_out
    split = split._replace(held_out_step=-(-X.n_rows // max_held_out))
    labelled = np.diff(Y.indptr) > 0
    counts = [
        labelled[split.held_out_rows(X.n_rows, grid.shards, number)].sum()
        for number in range(grid.shards)
    ]
    return split._replace(held_out_weight=float(sum(counts)))
