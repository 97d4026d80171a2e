"""Estimators whose solver trains one label after the other, on threads of this process."""

from __future__ import annotations

from typing import Any

from xcray.arrays import CSR, Float32, Pattern
from xcray.estimators.linear import LinearEstimator
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.solvers.contract import IndependentSolver, summarize_records
from xcray.solvers.solved_labels import SolvedLabels, merge
from xcray.workers.driver import run_schedule
from xcray.workers.local_group import local_pool
from xcray.workers.observer import CollectResults
from xcray.workers.pool import Result, StopFlag


class LabelByLabelEstimator(LinearEstimator):
    """One linear classifier per label, each with the solver's certificate."""

    def _train(self, solver: Any, X: CSR, Y: Pattern, weights: Float32 | None) -> str | None:
        """Solve all labels, and set the fitted attributes."""
        block = solve_labels(solver, X, Y, weights, self._workers())
        self._set_model(block)
        summary = summarize_records(solver, block.records)
        return None if summary["converged"] else summary["stopped"]


def solve_labels(
    solver: IndependentSolver, X: CSR, Y: Pattern, weights: Float32 | None, workers: int
) -> SolvedLabels:
    """Solve all labels on threads of this process."""
    XT, YT = transpose(X), transpose_pattern(Y)
    local, terms = solver.load(X, XT, YT, weights), solver.cost_terms(X, XT, YT)
    schedule = LabelScheduler(range(Y.n_cols), terms, solver.cost_rates, workers=workers)
    pool = local_pool(solver, local, None if workers == 1 else workers)
    results = CollectResults[Result]()
    run_schedule(schedule, pool, results, stop=StopFlag())
    return merge([result.value for result in results.results], Y.n_cols, X.n_cols)
