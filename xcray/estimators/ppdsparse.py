"""PPDSparse with scikit-learn's contract: sparse X and sparse Y, one machine a label."""

from __future__ import annotations

from typing import Any, Self

from xcray.arrays import CSR, Float32, Pattern
from xcray.estimators.linear import LinearEstimator, weighted
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.schedule.label_scheduler import Scatter
from xcray.solvers.parameters import make_parameters
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.solved_labels import Block, merge
from xcray.workers.driver import drive
from xcray.workers.local_pool import SerialPool, ThreadPool
from xcray.workers.pool import Pool, Result, StopFlag


class PPDSparse(LinearEstimator):
    """One-vs-all sparse linear classification for very many labels; see `xcray.solvers.ppdsparse` for the problem.

    lam, tau, C, loss, eps, positives, positive_weight, prune, prune_keep, prune_loss, max_rounds, max_sweeps, growth, seed: as
    in the solver. n_jobs: threads; None for one, -1 for all cores; the model's bits do not depend on it. Of many
    labels a row, those whose score is above 0 are predicted.

    After `fit`: classes_ (K,), coef_ (K, D) CSR float32, intercept_ (K,) float32, records_ (K,) structured: rounds,
    primal, dual, gap and more of every class; n_features_in_.

    Example:
        >>> import numpy as np
        >>> X, Y = np.eye(3), np.array([[1, 0], [0, 1], [0, 1]])
        >>> PPDSparse(eps=1e-6).fit(X, Y).predict_top_k(X, k=1).labels.ravel().tolist()
        [0, 1, 1]
    """

    def __init__(
        self,
        lam: float = 0.01,
        tau: float = 1.0,
        C: float = 1.0,
        loss: str = "squared_hinge",
        eps: float = 0.01,
        positives: str = "equal",
        positive_weight: float = 1.0,
        prune: float = 0.0,
        prune_keep: int = 0,
        prune_loss: float = 0.0,
        max_rounds: int = 100,
        max_sweeps: int = 20,
        growth: int = 10,
        seed: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        """Keep the parameters; they are checked in `fit`."""
        self.lam = lam
        self.tau = tau
        self.C = C
        self.loss = loss
        self.eps = eps
        self.positives = positives
        self.positive_weight = positive_weight
        self.prune = prune
        self.prune_keep = prune_keep
        self.prune_loss = prune_loss
        self.max_rounds = max_rounds
        self.max_sweeps = max_sweeps
        self.growth = growth
        self.seed = seed
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train one linear model a label.

        X: (N, D) sparse or dense, numbers. y: (N, K) 0/1 label indicator, sparse or dense; or (N,) one class a row.
        sample_weight: (N,) numbers, what each row's losses are multiplied by; rows of weight 0 are left out.
        Raises ParameterError for a parameter out of its range, ValueError for X or y that scikit-learn's checks refuse.
        """
        solver = make_parameters(
            PPDSparseSolver,
            {name: value for name, value in self.get_params().items() if name != "n_jobs"},
        )
        rows, labels = self._validated(X, y)
        rows, labels, weights = weighted(rows, labels, sample_weight)
        self._keep(_solve(solver, rows, labels, weights, self._workers()))
        return self


def _solve(
    solver: PPDSparseSolver, X: CSR, Y: Pattern, weights: Float32 | None, workers: int
) -> Block:
    """All labels, on threads of this process."""
    XT, YT = transpose(X), transpose_pattern(Y)
    local, terms = solver.load(X, XT, YT, weights), solver.cost_terms(X, XT, YT)
    schedule = Scatter(
        range(Y.n_cols), terms, solver.cost_rates, workers=workers, joint=solver.joint
    )
    pool: Pool = SerialPool(solver, local) if workers == 1 else ThreadPool(solver, local, workers)
    results: list[Result] = []
    drive(schedule, pool, commit=results.append, stop=StopFlag(), tick=lambda: None)
    return merge([result.block for result in results], Y.n_cols, X.n_cols)
