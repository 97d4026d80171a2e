"""Worker of least-squares trainings: some shards of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from xcray.arrays import Float64, csr
from xcray.errors import Stopped
from xcray.solvers.declarations import Link
from xcray.solvers.held_out import HeldOut, top_k
from xcray.solvers.lbfgs.solver import scores_to_residuals
from xcray.solvers.least_squares.gram import Moments, weighted_gram
from xcray.solvers.row_operator import RowOperator
from xcray.solvers.row_shards import Shard

MAX_SCORES = 1 << 19  # scores in memory at once: 4 MB


class LeastSquaresWorker:
    """State of a worker: every P-th shard of the rows, and held-out rows; O(nnz(X)/P).

    shards: in ascending order. link: "softmax" with targets that add up to 1 in each row, or
    "identity" with a target of 1 for each label of a row. `stopped` is called every few rows.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        held_out: Shard | None,
        link: Link,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._link, self._stopped = link, stopped
        self._shards = [self._with_operator(shard) for shard in shards]
        self._held_out = None if held_out is None else self._with_operator(held_out)

    def count_rows(self) -> tuple[None, int]:
        """Return the number of training rows of this worker."""
        return None, sum(len(shard.rows) for shard, _ in self._shards)

    def gram(self, step: int, double: bool) -> tuple[Moments | None, float | None]:
        """Return the second moments (D', D') of this worker's shard number `step`, and 0.

        Returns (None, None) if the worker has no such shard. double: see `weighted_gram`.
        """
        if step >= len(self._shards):
            return None, None
        shard, _ = self._shards[step]
        return weighted_gram(shard, double=double, stopped=self._stopped), 0.0

    def gradient(self, step: int, W: Float64) -> tuple[Float64 | None, float | None]:
        """Return the gradient (D', K) and the loss of this worker's shard number `step`.

        Both are without the norm of the weights. Returns (None, None) if there is no such shard.
        """
        if step >= len(self._shards):
            return None, None
        shard, rows = self._shards[step]
        G, loss = np.zeros(W.shape), 0.0
        for lo, hi, S in self._score_chunks(rows, W):
            loss += self._residuals(S, shard, lo, hi)
            rows.add_adjoint(S, lo, G)
        return G, loss

    def watch(self, W: Float64) -> tuple[None, HeldOut | None]:
        """Evaluate the held-out rows of this worker under W; None if it has none."""
        if self._held_out is None or not len(self._held_out[0].rows):
            return None, None
        (shard, rows), loss, tops = self._held_out, 0.0, []
        for lo, hi, S in self._score_chunks(rows, W):
            tops.append(top_k(S, 0))
            loss += self._residuals(S, shard, lo, hi)
        labels, scores = (np.concatenate(each) for each in zip(*tops, strict=True))
        return None, HeldOut(loss, labels, scores, shard.rows)

    def _with_operator(self, shard: Shard) -> tuple[Shard, RowOperator]:
        """Return the shard with the targets of the link, and its rows as an operator."""
        return with_targets(shard, self._link), RowOperator(shard)

    def _residuals(self, S: Float64, shard: Shard, lo: int, hi: int) -> float:
        """Replace scores of rows lo .. hi-1 by the gradient of their loss; return the loss."""
        residuals = scores_to_residuals if self._link == "softmax" else identity_residuals
        return residuals(S, shard, lo, hi)

    def _score_chunks(self, rows: RowOperator, W: Float64) -> Iterator[tuple[int, int, Float64]]:
        """Yield row ranges lo, hi and their scores (hi-lo, K). Raises Stopped if requested."""
        n = max(1, MAX_SCORES // W.shape[1])
        for lo in range(0, rows.n_rows, n):
            if self._stopped():
                raise Stopped("stopped within a round; the weights of the previous round are kept")
            hi = min(lo + n, rows.n_rows)
            yield lo, hi, rows.scores(W, lo, hi)


def with_targets(shard: Shard, link: Link) -> Shard:
    """Return the shard with targets of 1 for each label of a row if the link is the identity."""
    if link != "identity":
        return shard
    indptr, indices, data, n_labels = shard.targets
    return shard._replace(targets=csr(indptr, indices, np.ones(len(data)), n_labels))


def identity_residuals(S: Float64, shard: Shard, lo: int, hi: int) -> float:
    """Replace scores S of rows lo .. hi-1 by c_i (S_ik - y_ik), in place; return their loss."""
    c, (indptr, indices, data, _) = shard.weights[lo:hi], shard.targets
    cells = slice(indptr[lo], indptr[hi])
    rows = np.repeat(np.arange(hi - lo), np.diff(indptr[lo : hi + 1]))
    S[rows, indices[cells]] -= data[cells]
    loss = 0.5 * float(c @ np.square(S).sum(axis=1))
    S *= c[:, None]
    return loss
