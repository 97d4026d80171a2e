"""Loss and gradient of a shard's rows under all weights, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np

from xcray.arrays import Float64
from xcray.errors import Stopped
from xcray.solvers.held_out import HeldOut, top_k
from xcray.solvers.row_operator import RowOperator
from xcray.solvers.row_shards import Shard

MAX_SCORES: Final = 1 << 19  # scores in memory at once: 4 MB

# (S, shard, lo, hi): replaces scores S of rows lo .. hi-1 by the gradient of their loss; returns it
Residuals: TypeAlias = Callable[[Float64, Shard, int, int], float]


class RowLoss:
    """The loss of a shard's rows, without the norm of the weights.

    `stopped` is called every few rows; after it returns True, Stopped is raised.
    """

    def __init__(self, shard: Shard, residuals: Residuals, stopped: Callable[[], bool]) -> None:
        self.operator = RowOperator(shard)
        self._shard, self._residuals, self._stopped = shard, residuals, stopped

    def gradient(self, W: Float64) -> tuple[Float64, float]:
        """Return the gradient (D', K) float64 and the loss under W (D', K)."""
        G, loss = np.zeros(W.shape), 0.0
        for lo, hi, S in self._score_chunks(W):
            loss += self._residuals(S, self._shard, lo, hi)
            self.operator.add_adjoint(S, lo, G)
        return G, loss

    def evaluate(self, W: Float64) -> HeldOut:
        """Return the loss and the best labels of the rows, of which there is at least one."""
        loss, tops = 0.0, []
        for lo, hi, S in self._score_chunks(W):
            tops.append(top_k(S, 0))
            loss += self._residuals(S, self._shard, lo, hi)
        labels, scores = (np.concatenate(each) for each in zip(*tops, strict=True))
        return HeldOut(loss, labels, scores, self._shard.rows)

    def _score_chunks(self, W: Float64) -> Iterator[tuple[int, int, Float64]]:
        """Yield row ranges lo, hi and their scores (hi-lo, K)."""
        n = max(1, MAX_SCORES // W.shape[1])
        for lo in range(0, self.operator.n_rows, n):
            if self._stopped():
                raise Stopped("stopped within a round; the weights of the previous round are kept")
            hi = min(lo + n, self.operator.n_rows)
            yield lo, hi, self.operator.scores(W, lo, hi)


def scores_to_residuals(S: Float64, shard: Shard, lo: int, hi: int) -> float:
    """Replace scores S of rows lo .. hi-1 by c_i (p_ik - y_ik), in place.

    Returns the part of these rows in the objective.
    """
    c, (indptr, indices, data, _) = shard.weights[lo:hi], shard.targets
    cells = slice(indptr[lo], indptr[hi])
    rows = np.repeat(np.arange(hi - lo), np.diff(indptr[lo : hi + 1]))
    cost = c[rows] * data[cells]
    loss = -float(cost @ S[rows, indices[cells]])
    largest = S.max(axis=1)
    S -= largest[:, None]
    np.exp(S, out=S)
    total = S.sum(axis=1)
    loss += float(c @ (largest + np.log(total)))
    S *= (c / total)[:, None]
    S[rows, indices[cells]] -= cost
    return loss


def identity_residuals(S: Float64, shard: Shard, lo: int, hi: int) -> float:
    """Replace scores S of rows lo .. hi-1 by c_i (S_ik - y_ik), in place; return their loss."""
    c, (indptr, indices, data, _) = shard.weights[lo:hi], shard.targets
    cells = slice(indptr[lo], indptr[hi])
    rows = np.repeat(np.arange(hi - lo), np.diff(indptr[lo : hi + 1]))
    S[rows, indices[cells]] -= data[cells]
    loss = 0.5 * float(c @ np.square(S).sum(axis=1))
    S *= c[:, None]
    return loss


RESIDUALS: Final[Mapping[str, Residuals]] = {
    "softmax": scores_to_residuals,
    "identity": identity_residuals,
}
