"""One cell of DS-MLR: a block of labels at a shard of rows. What stays at the shard, and what a visit does there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.random import Generator

from xcray.arrays import Float32, Int64, frozen
from xcray.errors import Stopped
from xcray.kernels.training import softmax as kernel
from xcray.solvers.multinomial import Shard
from xcray.solvers.quasi_newton import WHOLE
from xcray.solvers.rotation_contract import Grid, LapFigures, Weights

SLICE: Final = 60_000_000  # multiplications between two looks at the stop flag: 20 to 100 ms
SCORES: Final = 1 << 18  # scores in hand at once: 1 MB, half of a second cache
BATCH: Final = 32  # dense rows of a step
TOP: Final = 5  # labels told of each watched row
SUMMING: Final = ("sum", "both", "observe")  # verbs of laps that make b exact
_NOBODY: Final = np.empty(0, np.int64)


class Watched:
    """Held-out rows of a shard in an "observe" lap: partial sums, what they gained, their best labels. O(n)."""

    def __init__(self, shard: Shard) -> None:
        n = len(shard.rows)
        self.shard = shard
        self.rows = _rows(shard)
        self.gained = 0.0
        self.labels = np.full((n, TOP), -1, np.int32)
        self.scores = np.full((n, TOP), -np.inf, np.float32)

    def add(self, block: Weights, stopped: Callable[[], bool]) -> None:
        """A block passes."""

        def seen(S: Float32, some: Int64) -> None:
            kernel.keep_best(S, some, block.lo, self.labels, self.scores)

        self.gained += _add(self.shard.dense, self.rows, block, stopped, seen)

    def figures(self, number: int, loss: float) -> LapFigures:
        """What the lap found; nothing has passed afterwards."""
        watched_loss, k = kernel.close(self.rows) - self.gained, min(TOP, self.rows.T.n_cols)
        labels, scores = self.labels[:, :k].copy(), self.scores[:, :k].copy()
        self.clear()
        return LapFigures(number, loss, watched_loss, len(labels), labels, scores, self.shard.rows)

    def clear(self) -> None:
        """Nothing has passed."""
        self.gained = 0.0
        self.labels[:], self.scores[:] = -1, -np.inf
        self.rows.top[:], self.rows.total[:] = kernel.EMPTY, 0.0


class Local:
    """What stays at a shard: its rows, b_i = -log of their partition functions, partial sums of the lap under way; O(nnz + n).

    b begins as it is at W = 0, exactly: -log K. (The paper begins with 1/K.)
    """

    def __init__(self, shard: Shard, number: int, grid: Grid, watched: Shard | None) -> None:
        self.number = number
        self.grid = grid
        self.shard = shard
        self.rows = _rows(shard)
        self.watched = None if watched is None or not len(watched.rows) else Watched(watched)
        self.passed = 0
        self.gained = 0.0
        self._summary: tuple[Float32, Float32] | None = None
        self._C: Float32 | None = None

    def descend(
        self,
        block: Weights,
        random: Generator,
        rule: kernel.Rule,
        summed: bool,
        stopped: Callable[[], bool],
    ) -> None:
        """Steps on a block, in place, rows in an order that `random` draws; summed: their partial sums too, as they are met."""
        for rows in _slices(self.rows, block, random.permutation(self.rows.X.n_rows)):
            _ask(stopped)
            if self.shard.dense is None:
                kernel.steps(self.rows, rows, block.lo, block.W, block.state[0], rule, summed)
            else:
                self._batches(self.shard.dense, rows, block, rule, summed)

    def add(self, block: Weights, observed: bool, stopped: Callable[[], bool]) -> None:
        """Partial sums of a block that stays as it is; observed: and its scores of watched rows."""
        self.gained += _add(self.shard.dense, self.rows, block, stopped)
        if observed and self.watched is not None:
            self.watched.add(block, stopped)

    def gather(
        self, block: Weights, curvature: bool, owned: bool, stopped: Callable[[], bool]
    ) -> Weights:
        """The shard's part of the gradient, and of C with `curvature`, added to what the block has gathered; b is exact."""
        D, k = block.W.shape
        if len(block.state) != 2 or block.state[0].shape != (D, k):  # the first shard of the lap
            size = ((D, D) if D <= WHOLE else (D,)) if curvature else (0,)
            block, owned = (
                block._replace(state=(np.zeros((D, k), np.float32), np.zeros(size, np.float32))),
                True,
            )
        G, C = (each if owned else each.copy() for each in block.state)
        for some in _chunks(self.rows, block, stopped):
            S = _scores(self.shard.dense, self.rows, block.W, some)
            kernel.residuals(S, some, self.rows, block.lo)
            if self.shard.dense is None:
                kernel.add_outer(self.rows.X, some, S, G)
            else:
                G += _of(self.shard.dense, some).T @ S
        if curvature:
            C += self._curvature(C.shape)
        return block._replace(state=(G, C))

    def close(self, verb: str) -> LapFigures | None:
        """Count a block that has passed; when it was the last of the lap, close the lap and tell its figures."""
        self.passed += 1
        if self.passed < self.grid.blocks:
            return None
        self.passed, gained, self.gained = 0, self.gained, 0.0
        if verb not in SUMMING:
            return None
        loss = kernel.close(self.rows) - gained
        if verb != "observe" or self.watched is None:
            return LapFigures(
                self.number,
                loss,
                0.0,
                0,
                np.empty((0, TOP), np.int32),
                np.empty((0, TOP), np.float32),
                _NOBODY,
            )
        return self.watched.figures(self.number, loss)

    def _batches(
        self, X: Float32, order: Int64, block: Weights, rule: kernel.Rule, summed: bool
    ) -> None:
        """Steps for batches of dense rows, by matrix products."""
        for lo in range(0, len(order), BATCH):
            some = order[lo : lo + BATCH]
            mine = X[some]
            S = mine @ block.W
            if summed:
                kernel.add_sums(S, some, self.rows)
            kernel.residuals(S, some, self.rows, block.lo)
            kernel.batch_step(mine.T @ S, len(some), block.W, block.state[0], rule)

    def _curvature(self, shape: tuple[int, ...]) -> Float32:
        """Sum of c_i x_i x_i' over this shard, (D', D'), or its diagonal (D',); made once."""
        if self._C is None or self._C.shape != shape:
            self._C = np.zeros(shape, np.float32)
            add = kernel.add_squares if len(shape) == 2 else kernel.add_diagonal
            add(self.rows.X, self.rows.weights, self._C)
        return self._C

    def summary(self) -> tuple[Float32, Float32]:
        """Of this shard: (D',) rows that have each feature, and (3,) rows, sum of |x|_1, sum of |x|^2."""
        if self._summary is None:
            X = self.shard.X
            data = X.data[X.indptr[0] : X.indptr[-1]].astype(np.float64)
            counts = np.bincount(X.indices[X.indptr[0] : X.indptr[-1]], minlength=X.n_cols)
            self._summary = (
                counts.astype(np.float32),
                np.array([X.n_rows, np.abs(data).sum(), (data**2).sum()], np.float32),
            )
        return self._summary

    def state(self) -> dict[str, np.ndarray]:
        """What must last, at a rest."""
        return {"b": self.rows.b.copy()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Be at a rest, with this state."""
        self.rows.b[:] = state["b"]
        self.rows.top[:], self.rows.total[:] = kernel.EMPTY, 0.0
        self.passed, self.gained = 0, 0.0
        if self.watched is not None:
            self.watched.clear()


def _rows(shard: Shard) -> kernel.Rows:
    """A shard's rows as kernels take them, at W = 0."""
    n, K = len(shard.rows), max(int(shard.targets.n_cols), 1)
    b, top = np.full(n, -math.log(K), np.float32), np.full(n, kernel.EMPTY, np.float32)
    return kernel.Rows(
        shard.X, shard.targets, frozen(shard.weights, np.float32), b, top, np.zeros(n)
    )


def _slices(rows: kernel.Rows, block: Weights, order: Int64) -> Iterator[Int64]:
    """Parts of `order`, each of some tens of milliseconds of steps."""
    a_row = 4 * (block.hi - block.lo) * (rows.X.nnz / max(rows.X.n_rows, 1) + 8)
    n = max(1, int(SLICE / max(a_row, 1.0)))
    for lo in range(0, len(order), n):
        yield order[lo : lo + n]


def _ask(stopped: Callable[[], bool]) -> None:
    """Raises Stopped when a stop was asked for."""
    if stopped():
        raise Stopped(
            "stopped between two slices of a visit; the next run goes on from the last checkpoint"
        )


def _of(dense: Float32, some: Int64) -> Float32:
    """Some dense rows, neighbours: a view."""
    return dense[some[0] : some[-1] + 1]


def _scores(dense: Float32 | None, rows: kernel.Rows, W: Float32, some: Int64) -> Float32:
    """W' x of some rows, neighbours: (n, k) float32."""
    if dense is not None:
        return np.asarray(_of(dense, some) @ W, np.float32)
    S = np.empty((len(some), W.shape[1]), np.float32)
    kernel.scores(rows.X, some, W, S)
    return S


def _chunks(rows: kernel.Rows, block: Weights, stopped: Callable[[], bool]) -> Iterator[Int64]:
    """All rows, in order, a few at a time; between them a stop is looked for."""
    n = max(1, SCORES // (block.hi - block.lo))
    everything = np.arange(rows.X.n_rows)
    for lo in range(0, len(everything), n):
        _ask(stopped)
        yield everything[lo : lo + n]


def _add(
    dense: Float32 | None,
    rows: kernel.Rows,
    block: Weights,
    stopped: Callable[[], bool],
    seen: Callable[[Float32, Int64], None] = lambda S, some: None,
) -> float:
    """Add a block to the partial sums of rows; returns what its labels gain: the sum of weight times y.score. seen: is shown the
    scores of some rows, (n, k), and which they are."""
    gained = 0.0
    for some in _chunks(rows, block, stopped):
        S = _scores(dense, rows, block.W, some)
        kernel.add_sums(S, some, rows)
        gained += kernel.gained(S, some, rows, block.lo)
        seen(S, some)
    return gained
