"""DS-MLR with scikit-learn's contract: multinomial logistic regression of very many labels, on threads of this process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, Float64, Pattern, frozen
from xcray.estimators.linear import LinearEstimator, weighted
from xcray.solvers.dsmlr import DSMLRSolver
from xcray.solvers.parameters import make_parameters
from xcray.solvers.solved_labels import Block, joined
from xcray.system.blas_threads import one_core_each
from xcray.training.rotation.config import Descent, Plan
from xcray.training.rotation.shard_worker import ShardWork, rows_of
from xcray.training.rotation.trainer import descend
from xcray.workers.local_group import ThreadTeam
from xcray.workers.pool import StopFlag

WORKERS: Final = 4  # that the grid is made for, however many threads there are: the model's bits do not depend on them


class DSMLR(LinearEstimator):
    """Multinomial logistic regression whose rows and labels are both split; see `xcray.solvers.dsmlr` for the problem.

    lam, bias, epochs, tolerance, finish, pairs, patience, mode, order, steps, rate, rest_every, shards, blocks, prune, prune_keep,
    seed: as in the solver. n_jobs: threads; None for one, -1 for all cores; with the orders "ring" and "sync" the model's bits do
    not depend on it.

    Probabilities are the softmax over all labels. A row with m labels is a row whose m labels are drawn equally often, so of many
    labels a row those are predicted whose equal shares are nearest to the probabilities (in squares).

    After `fit`: classes_ (K,), coef_ (K, D) CSR float32, intercept_ (K,) float32, records_ (K,) structured, objective_,
    n_iter_ (epochs), history_: what was seen after each epoch, a list of dicts; n_features_in_.

    Example:
        >>> import numpy as np
        >>> X, Y = np.eye(3), np.array([[1, 0], [0, 1], [0, 1]])
        >>> DSMLR().fit(X, Y).predict_top_k(X, k=1).labels.ravel().tolist()
        [0, 1, 1]
    """

    def __init__(
        self,
        lam: float = 1e-5,
        bias: float = 0.0,
        epochs: int = 500,
        tolerance: float = 1e-4,
        finish: float = 0.03,
        pairs: int = 5,
        patience: int = 0,
        mode: str = "both",
        order: str = "ring",
        steps: str = "adaptive",
        rate: float = 1.0,
        rest_every: int = 1,
        shards: int = 0,
        blocks: int = 0,
        prune: float = 0.0,
        prune_keep: int = 0,
        seed: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        """Keep the parameters; they are checked in `fit`."""
        self.lam = lam
        self.bias = bias
        self.epochs = epochs
        self.tolerance = tolerance
        self.patience = patience
        self.finish = finish
        self.pairs = pairs
        self.mode = mode
        self.order = order
        self.steps = steps
        self.rate = rate
        self.rest_every = rest_every
        self.shards = shards
        self.blocks = blocks
        self.prune = prune
        self.prune_keep = prune_keep
        self.seed = seed
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train all labels together.

        X: (N, D) sparse or dense, numbers. y: (N, K) 0/1 label indicator, sparse or dense (rows without a label are left out); or
        (N,) one class a row. sample_weight: (N,) numbers, what each row's loss is multiplied by; rows of weight 0 are left out.
        Raises ParameterError for a parameter out of its range, ValueError for X or y that scikit-learn's checks refuse.
        """
        solver = make_parameters(
            DSMLRSolver,
            {name: value for name, value in self.get_params().items() if name != "n_jobs"},
        )
        rows, labels, weights = weighted(*self._validated(X, y), sample_weight)
        if not labels.nnz:
            raise ValueError("no row has a label: there is nothing to learn")
        found, block = _trained(solver, rows, labels, weights, self._workers())
        self._keep(block)
        self.objective_, self.n_iter_, self.history_ = found.objective, found.epochs, found.history
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of all labels, dense: (N, K), each row adds up to 1. Needs 8 N K bytes: for few labels."""
        parts = [softmax(scores) for scores in self._scores(self._rows(X))]
        return np.vstack([np.empty((0, len(self.classes_))), *parts])

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """The logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def _given(self, scores: Float64) -> Any:
        """See the class: the m best labels, where m of shares 1/m are nearest to the probabilities."""
        p = softmax(scores)
        best = np.argsort(-p, axis=1, kind="stable")
        m = np.arange(1, p.shape[1] + 1)
        # |p - u|^2 for u = 1/m on the m best is |p|^2 - (2 S_m - 1) / m, S_m the sum of these m probabilities
        counts = 1 + np.argmax(
            (2.0 * np.cumsum(np.take_along_axis(p, best, axis=1), axis=1) - 1.0) / m, axis=1
        )
        out = np.zeros(p.shape, bool)
        np.put_along_axis(out, best, m <= counts[:, None], axis=1)
        return out


def softmax(scores: Float64) -> Float64:
    """Probabilities of scores (n, K), by row."""
    out: Float64 = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    out /= out.sum(axis=1, keepdims=True)
    return out


def _trained(
    solver: DSMLRSolver, X: CSR, Y: Pattern, weights: Float32 | None, workers: int
) -> tuple[Descent, Block]:
    """How the training ended, and all labels; on threads of this process."""
    n_features = X.n_cols + bool(solver.bias)
    grid = solver.grid(X.n_rows, Y.n_cols, n_features, WORKERS)
    rows = rows_of(X, Y, weights, None, grid=grid, seed=solver.seed, bias=solver.bias)
    work = ShardWork(solver, rows.how, n_features)
    positives = np.bincount(Y.indices, minlength=Y.n_cols)
    plan = Plan(
        grid=grid,
        n_labels=Y.n_cols,
        n_features=n_features,
        positives=frozen(positives, np.int64),
        order=solver.order,
        rest_every=solver.rest_every,
        seed=solver.seed,
        checkpoint_seconds=np.inf,
    )
    blocks: list[Block] = []
    team = ThreadTeam(work, min(workers, grid.shards))
    with tempfile.TemporaryDirectory(prefix="xcray-dsmlr-") as folder, one_core_each():
        how: dict[str, Any] = {
            "fingerprint": {"of": "fit"},
            "deliver": blocks.append,
            "stop": StopFlag(),
        }
        found = descend(solver, team, rows, plan, directory=Path(folder), **how)
    return found, joined(blocks)
