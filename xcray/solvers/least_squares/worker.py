"""Worker of least-squares trainings: some shards of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from xcray.arrays import Float64, csr
from xcray.solvers.declarations import Link
from xcray.solvers.held_out import HeldOut
from xcray.solvers.least_squares.gram import Moments, weighted_gram
from xcray.solvers.least_squares.shard_sums import of_shard
from xcray.solvers.row_losses import RESIDUALS, RowLoss
from xcray.solvers.row_shards import Shard


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
        self._stopped, residuals = stopped, RESIDUALS[link]
        self.shards = [with_targets(shard, link) for shard in shards]
        self._rows = [RowLoss(shard, residuals, stopped) for shard in self.shards]
        self._held_out = None
        if held_out is not None and len(held_out.rows):
            self._held_out = RowLoss(with_targets(held_out, link), residuals, stopped)

    def count_rows(self) -> tuple[None, int]:
        """Return the number of training rows of this worker."""
        return None, sum(len(shard.rows) for shard in self.shards)

    @of_shard
    def gram(self, step: int, double: bool) -> tuple[Moments, float]:
        """Return the second moments (D', D') of this worker's shard number `step`, and 0.

        double: see `weighted_gram`.
        """
        return weighted_gram(self.shards[step], double=double, stopped=self._stopped), 0.0

    @of_shard
    def gradient(self, step: int, W: Float64) -> tuple[Float64, float]:
        """Return the gradient (D', K) and the loss of this worker's shard number `step`.

        Both are without the norm of the weights.
        """
        return self._rows[step].gradient(W)

    def watch(self, W: Float64) -> tuple[None, HeldOut | None]:
        """Evaluate the held-out rows of this worker under W; None if it has none."""
        return None, None if self._held_out is None else self._held_out.evaluate(W)


def with_targets(shard: Shard, link: Link) -> Shard:
    """Return the shard with targets of 1 for each label of a row if the link is the identity."""
    if link != "identity":
        return shard
    indptr, indices, data, n_labels = shard.targets
    return shard._replace(targets=csr(indptr, indices, np.ones(len(data)), n_labels))
