"""Estimators whose solver trains one label after the other, on threads of this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import CSR, Float32, Pattern, frozen
from xcray.estimators.linear import LinearEstimator
from xcray.index.label_groups import LabelGroups
from xcray.index.search import SearchIndex
from xcray.kernels.sparse import (
    row_range,
    take_pattern_rows,
    take_rows,
    transpose,
    transpose_pattern,
)
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.solvers.contract import IndependentSolver, summarize_records
from xcray.solvers.solved_labels import SolvedLabels, merge
from xcray.training.label_groups.clustering import add_group_rows, choose_sizes, cluster_labels
from xcray.training.label_groups.data import GroupPlan, LabelsAndGroups, make_groups
from xcray.training.label_groups.weighing import choose_weight
from xcray.training.selection.held_out import split_training_rows
from xcray.workers.driver import run_schedule
from xcray.workers.local_group import local_pool
from xcray.workers.observer import CollectResults
from xcray.workers.pool import Result, StopFlag


class LabelByLabelEstimator(LinearEstimator):
    """One linear classifier per label, each with the solver's certificate.

    groups: let similar labels share evidence: "none", "auto", or numbers of groups such as
    "100,400"; see `xcray.training.label_groups`. groups_ is what was trained, None if it gains
    nothing on held-out rows.
    """

    OPTIONS: ClassVar[Mapping[str, Any]] = {"groups": "none"}
    groups: str

    def _train(self, solver: Any, X: CSR, Y: Pattern, weights: Float32 | None) -> str | None:
        """Solve all labels, and set the fitted attributes."""
        sizes = choose_sizes(self.groups, Y.n_cols)
        self.groups_ = None
        weight = self._weigh_groups(solver, X, Y, weights, sizes) if sizes else 0.0
        if weight:
            plan = GroupPlan(cluster_labels(X, transpose_pattern(Y), sizes), weight)
            block, self.groups_ = self._solve_with_groups(solver, X, Y, weights, plan)
        else:
            block = solve_labels(solver, X, Y, weights, self._workers())
        self._set_model(block)
        summary = summarize_records(solver, block.records)
        return None if summary["converged"] else summary["stopped"]

    def _weigh_groups(
        self, solver: Any, X: CSR, Y: Pattern, weights: Float32 | None, sizes: tuple[int, ...]
    ) -> float:
        """Return the weight of groups of these sizes, chosen on held-out rows."""
        own, others = split_training_rows(X.n_rows)
        rows, labels = take_rows(X, own), take_pattern_rows(Y, own)
        kept = None if weights is None else frozen(weights[own], np.float32)
        plan = GroupPlan(cluster_labels(rows, transpose_pattern(labels), sizes), 1.0)
        block, groups = self._solve_with_groups(solver, rows, labels, kept, plan)
        index = SearchIndex.build(
            block.W, frozen(block.bias, np.float32), row_norm=solver.row_norm, groups=groups
        )
        held_rows = take_rows(X, others), take_pattern_rows(Y, others)
        return choose_weight(index, *held_rows, self._workers())[0]

    def _solve_with_groups(
        self, solver: Any, X: CSR, Y: Pattern, weights: Float32 | None, plan: GroupPlan
    ) -> tuple[SolvedLabels, LabelGroups]:
        """Return the solved labels and groups."""
        all_labels = transpose_pattern(add_group_rows(transpose_pattern(Y), plan.clusters))
        K = Y.n_cols
        runner = LabelsAndGroups(solver, K)
        block = solve_labels(solver, X, all_labels, weights, self._workers(), runner)
        labels = block._replace(
            labels=block.labels[:K],
            W=row_range(block.W, 0, K),
            bias=block.bias[:K],
            records=block.records[:K],
        )
        groups = block._replace(W=row_range(block.W, K, all_labels.n_cols), bias=block.bias[K:])
        return labels, make_groups(plan, groups)


def solve_labels(
    solver: IndependentSolver,
    X: CSR,
    Y: Pattern,
    weights: Float32 | None,
    workers: int,
    runner: LabelsAndGroups | None = None,
) -> SolvedLabels:
    """Solve all labels on threads of this process. runner: see `make_local_pool`."""
    XT, YT = transpose(X), transpose_pattern(Y)
    local, terms = solver.load(X, XT, YT, weights), solver.cost_terms(X, XT, YT)
    schedule = LabelScheduler(range(Y.n_cols), terms, solver.cost_rates, workers=workers)
    pool = local_pool(runner or solver, local, None if workers == 1 else workers)
    results = CollectResults[Result]()
    run_schedule(schedule, pool, results, stop=StopFlag())
    return merge([result.value for result in results.results], Y.n_cols, X.n_cols)
