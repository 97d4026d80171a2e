"""Rows of a training as shards, cut the same way everywhere."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np

from xcray.arrays import CSR, Float32, Int64, Pattern
from xcray.solvers.group_contract import Grid
from xcray.solvers.row_shards import Shard, make_shard, shard_rows, total_weight

MAX_HELD_OUT_ROWS: Final = 10_000  # approximate limit of evaluated rows


class SplitPlan(NamedTuple):
    """How rows are split into shards, the same everywhere.

    total: weight of all rows that have labels, see `row_shards.total_weight`.
    bias: value of the constant feature.
    held_out_step: evaluate every n-th held-out row of the shard; 0 disables evaluation.
    held_out_weight: weight of the evaluated rows that have labels.
    """

    grid: Grid
    seed: int
    bias: float
    total: float
    held_out_step: int = 0
    held_out_weight: float = 0.0


# rows of a shard, and its held-out rows
ShardRows: TypeAlias = tuple[Shard, Shard | None]


class ShardSource(NamedTuple):
    """Rows that shards are cut from.

    X (N x D), Y (N x K), weights (N,) or None: of training. held_out: X and Y of the held-out
    part, or None. All of them can be mapped files: a cut reads only the rows that it needs.
    """

    split: SplitPlan
    X: CSR
    Y: Pattern
    weights: Float32 | None = None
    held_out: tuple[CSR, Pattern] | None = None

    def cut_shard(self, number: int) -> ShardRows:
        """Return shard `number`, and its held-out rows."""
        split = self.split
        rows = shard_rows(self.X.n_rows, split.grid.shards, split.seed, number)
        shard = make_shard(
            self.X, self.Y, rows, total=split.total, weights=self.weights, bias=split.bias
        )
        if self.held_out is None or not split.held_out_step:
            return shard, None
        counts = _held_out_rows(
            self.held_out[0].n_rows, split.grid, split.seed, split.held_out_step, number
        )
        return shard, make_shard(
            *self.held_out, counts, total=split.held_out_weight, bias=split.bias
        )


def make_shard_source(
    X: CSR,
    Y: Pattern,
    weights: Float32 | None,
    held_out: tuple[CSR, Pattern] | None,
    *,
    grid: Grid,
    seed: int,
    bias: float,
    max_held_out: int = MAX_HELD_OUT_ROWS,
) -> ShardSource:
    """Return rows and their split plan; arguments as of `ShardSource`.

    max_held_out: approximate limit of the held-out rows that are evaluated.
    """
    split = SplitPlan(grid, seed, bias, total_weight(Y, weights))
    if held_out is None or not held_out[0].n_rows or max_held_out < 1:
        return ShardSource(split, X, Y, weights)
    every = -(-held_out[0].n_rows // max_held_out)
    labelled = np.diff(held_out[1].indptr) > 0
    counts = [
        labelled[_held_out_rows(held_out[0].n_rows, grid, seed, every, number)].sum()
        for number in range(grid.shards)
    ]
    return ShardSource(
        split._replace(held_out_step=every, held_out_weight=float(sum(counts))),
        X,
        Y,
        weights,
        held_out,
    )


def _held_out_rows(n_rows: int, grid: Grid, seed: int, every: int, number: int) -> Int64:
    """Return the held-out rows that shard `number` evaluates."""
    return shard_rows(n_rows, grid.shards, seed, number)[::every]
