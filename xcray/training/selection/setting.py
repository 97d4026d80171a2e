"""Solve and measure one setting on the rows and labels of a selection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import CSR, Int64, TopK, frozen
from xcray.index.search import SearchIndex
from xcray.kernels.sparse import take_pattern_rows
from xcray.measures import evaluate
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.solvers.contract import SolverState
from xcray.solvers.parameters import make_parameters
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.solved_labels import SolvedLabels, merge
from xcray.training.selection.measure import measure_value, parse_measure
from xcray.training.selection.sample import SelectionData
from xcray.training.solve_labels import make_local_pool
from xcray.training.warm_start import WarmRunner, dual_scale
from xcray.workers.driver import run_schedule
from xcray.workers.observer import CollectResults
from xcray.workers.pool import Result, StopFlag

EPS = 0.05  # tolerance of the certificates while settings are compared
PARTS = 4  # parts of the labels; the limit of the work is checked before each of them
GROUPS = 16  # groups of held-out rows, from which standard errors are estimated


class OutOfBudget(Exception):
    """The rest of the budget or of the time is too small for a setting."""


class Solved(NamedTuple):
    """A solved setting: its parameters, its labels, the duals (K', n), and the counted work."""

    setting: dict[str, Any]
    block: SolvedLabels
    duals: CSR
    work: int


class Meter:
    """Counts work against a limit.

    The unit is an entry of X that a solver visits, or a row that a certificate visits. It does not
    depend on the machine or on the number of workers. limit: None for no limit. is_late: returns
    whether the time is up; it counts only where there is a limit.
    """

    def __init__(self, is_late: Callable[[], bool] = lambda: False) -> None:
        self.spent = 0
        self.limit: int | None = None
        self.is_late = is_late

    def has_room(self, expected: int) -> bool:
        """Return whether there is time left, and `expected` work stays within the limit."""
        return self.limit is None or not (self.spent + expected > self.limit or self.is_late())

    def add(self, blocks: list[SolvedLabels], n_rows: int) -> int:
        """Count the work of solved labels, and return it."""
        records = [block.records for block in blocks]
        rounds = sum(int(np.maximum(part["rounds"], 0).sum()) for part in records)
        work = sum(int(part["work"].sum()) for part in records) + n_rows * rounds
        self.spent += work
        return work


class SettingSolver:
    """Solves settings of PPDSparse. params: given parameters. workers: threads."""

    def __init__(
        self,
        data: SelectionData,
        params: Mapping[str, Any],
        workers: int,
        stop: StopFlag,
    ) -> None:
        self.data, self.params = data, params
        self.workers, self.stop = workers, stop

    def solve(self, setting: dict[str, Any], start: Solved | None, meter: Meter) -> Solved:
        """Solve all labels on threads, from the duals of `start` if given, and of the same rows.

        Raises OutOfBudget if the limit of the meter is too low: the setting is expected to need the
        work of its start, and a part of its labels that of the part before. Raises Stopped.
        """
        data, n_labels = self.data, len(self.data.counts)
        solver = make_parameters(PPDSparseSolver, {**self.params, "eps": EPS, **setting})
        state = solver.load(data.X, data.XT, data.YT, data.weights)
        terms = solver.cost_terms(data.X, data.XT, data.YT)
        scale = 1.0 if start is None else dual_scale(start.setting, setting)
        is_warm = start is not None and start.setting.get("row_norm") == setting.get("row_norm")
        runner = WarmRunner(solver, start.duals if start and is_warm else None, scale)
        blocks: list[SolvedLabels] = []
        before = meter.spent
        parts = 1 if start is None else min(PARTS, n_labels)
        work = 0 if start is None else start.work // parts
        for part in range(parts):
            if not meter.has_room(work):
                raise OutOfBudget
            labels = np.arange(part, n_labels, parts, dtype=np.int32)
            schedule = LabelScheduler(
                labels, terms[labels], solver.cost_rates, workers=self.workers
            )
            batches = self._run(schedule, solver, state, runner)
            work = meter.add(batches, data.X.n_rows)
            blocks += batches
        duals = merge(list(_as_weights(blocks)), n_labels, data.X.n_rows).W
        block = merge(blocks, n_labels, data.X.n_cols)
        return Solved(setting, block, duals, meter.spent - before)

    def _run(
        self,
        schedule: LabelScheduler,
        solver: PPDSparseSolver,
        state: SolverState,
        runner: WarmRunner,
    ) -> list[SolvedLabels]:
        """Run a schedule on threads and return the solved batches."""
        results = CollectResults[Result]()
        pool = make_local_pool("threads", solver, state, self.workers, runner=runner)
        run_schedule(schedule, pool, results, stop=self.stop)
        return [result.value for result in results.results]

    def measure(self, solved: Solved, select: str) -> dict[str, Any]:
        """Return the value of solved labels on the held-out rows, its terms, and the weights.

        "folds" are the values of GROUPS groups of these rows.
        """
        terms, data, block = parse_measure(select), self.data, solved.block
        row_norm = {"row_norm": "none", **self.params, **solved.setting}["row_norm"]
        n_labels = len(data.counts)
        ks = sorted({min(k, n_labels) for _, k in terms})
        index = SearchIndex.build(block.W, frozen(block.bias, np.float32), row_norm=row_norm)
        top = index.query(data.held_X, max(ks), threads=self.workers).top

        def measures_of(rows: Int64) -> dict[str, float]:
            part = TopK(frozen(top.labels[rows], np.int32), frozen(top.scores[rows], np.float64))
            truth = take_pattern_rows(data.held_Y, rows)
            counts, n_train = data.counts, data.X.n_rows
            return evaluate(part, truth, ks=ks, label_counts=counts, n_train=n_train)

        rows = np.arange(data.held_X.n_rows)
        measures = measures_of(frozen(rows, np.int64))
        groups = [frozen(rows[part::GROUPS], np.int64) for part in range(min(GROUPS, len(rows)))]
        return {
            "value": measure_value(measures, select, n_labels),
            **{f"{name}@{k}": measures[f"{name}@{min(k, n_labels)}"] for name, k in terms},
            "weights": block.W.nnz,
            "folds": [measure_value(measures_of(part), select, n_labels) for part in groups],
        }


def _as_weights(blocks: list[SolvedLabels]) -> Iterator[SolvedLabels]:
    """Return blocks whose duals (n, N) take the place of the weights."""
    for block in blocks:
        if block.duals is None:
            raise ValueError("the solver returned no duals")
        yield block._replace(W=block.duals)
