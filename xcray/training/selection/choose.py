"""Choose C, positives, positive_weight and lam of PPDSparse on held-out training rows.

One parameter after the other is varied, and the best value kept. Every setting is solved for a part
of the labels, with a loose tolerance, from the duals of the best setting so far. What is solved
depends on data and settings only, so the choice is the same for any number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Int64, Pattern, frozen
from xcray.data.splits import HashSplit
from xcray.errors import InputError
from xcray.index.search import SearchIndex
from xcray.kernels.sparse import take_pattern_rows, take_rows, transpose, transpose_pattern
from xcray.metrics import evaluate
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.solvers.parameters import make_parameters
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.solved_labels import SolvedLabels, merge
from xcray.storage.atomic import read_json, sha256_arrays, write_json
from xcray.training.selection.measure import measure_value, parse_measure
from xcray.training.solve_labels import make_local_pool
from xcray.training.warm_start import WarmRunner, dual_scale
from xcray.workers.driver import run_schedule
from xcray.workers.observer import CollectResults
from xcray.workers.pool import Result, StopFlag

SEARCH: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("C", (3.0, 0.3)),
    ("positives", ("propensity",)),
    ("positive_weight", (4.0,)),
    ("lam", (0.1,)),
)
HOLDOUT = 0.2  # share of the training rows that are measured
LABEL_STEP = 2  # every second label, by number of training rows
MIN_LABELS = 16  # with fewer labels all are used
EPS = 0.05  # tolerance of the certificates while settings are compared


class SelectionData(NamedTuple):
    """Rows and labels that settings are compared on.

    X (n, D), XT, YT (K', n): rows to learn from; weights (n,) or None. held_X (m, D) and
    held_Y (m, K'): rows to measure on. counts (K',): rows to learn from, per label.
    """

    X: CSR
    XT: CSR
    YT: Pattern
    weights: Float32 | None
    held_X: CSR
    held_Y: Pattern
    counts: Int64


class Selection(NamedTuple):
    """chosen: parameters that differ from the given ones. report: what was tried; JSON."""

    chosen: dict[str, Any]
    report: dict[str, Any]


def selection_data(X: CSR, Y: Pattern, weights: Float32 | None, seed: int = 0) -> SelectionData:
    """Split training rows X (N, D), Y (N, K) by a hash, and take a part of the labels.

    Labels without a row to learn from are left out, and held-out rows without one of the labels.
    Raises InputError if no row is left on one side.
    """
    held_out = HashSplit(HOLDOUT, seed).mask(0, X.n_rows)
    learn = frozen(np.flatnonzero(~held_out), np.int64)
    counts = np.bincount(take_pattern_rows(Y, learn).indices, minlength=Y.n_cols)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    labels = np.sort(order[::LABEL_STEP] if len(order) > MIN_LABELS else order)
    part = transpose_pattern(take_pattern_rows(transpose_pattern(Y), frozen(labels, np.int64)))
    measured = frozen(np.flatnonzero(held_out & (np.diff(part.indptr) > 0)), np.int64)
    if not (len(labels) and len(measured)):
        raise InputError(
            "too few rows to choose parameters on: train without auto", code="TOO_FEW_ROWS"
        )
    rows = take_rows(X, learn)
    return SelectionData(
        rows,
        transpose(rows),
        transpose_pattern(take_pattern_rows(part, learn)),
        None if weights is None else frozen(weights[learn], np.float32),
        take_rows(X, measured),
        take_pattern_rows(part, measured),
        frozen(counts[labels], np.int64),
    )


class Selector:
    """Compares settings. params: given parameters, which are not varied. workers: threads.

    folder: stores measured settings to resume; None to keep nothing. tick: called with the number
    of the setting, the number of all settings and the setting as text; its exceptions end the work.
    """

    def __init__(
        self,
        data: SelectionData,
        params: Mapping[str, Any],
        select: str,
        workers: int,
        *,
        folder: Path | None = None,
        stop: StopFlag | None = None,
        tick: Callable[[int, int, str], None] = lambda *_: None,
    ) -> None:
        self.data, self.params, self.select = data, dict(params), select
        self.workers, self.folder = workers, folder
        self.stop, self.tick = stop or StopFlag(), tick
        self.results: list[dict[str, Any]] = []
        self.starts: dict[str, dict[str, Any] | None] = {}  # of every setting, by its repr
        self.duals: dict[str, CSR] = {}
        self._total = 1  # number of settings

    def run(self) -> Selection:
        """Return the best setting; the first of equal ones."""
        began = time.process_time()
        base = make_parameters(PPDSparseSolver, self.params)
        current = {name: getattr(base, name) for name, _ in SEARCH if name not in self.params}
        free = [
            (name, [value for value in values if value != current[name]])
            for name, values in SEARCH
            if name in current
        ]
        self._total = 1 + sum(len(values) for _, values in free)
        best = self._evaluate(current, None)
        for name, values in free:
            start = best
            for value in values:
                result = self._evaluate({**start["params"], name: value}, start["params"])
                best = max(best, result, key=lambda row: row["value"])
        for result in self.results:
            result["chosen"] = result is best
        report = {
            "select": self.select,
            "labels": len(self.data.counts),
            "rows": self.data.X.n_rows,
            "held_out": self.data.held_X.n_rows,
            "settings": self.results,
            "cpu_seconds": round(time.process_time() - began, 3),
        }
        return Selection(best["params"], report)

    def _evaluate(self, setting: dict[str, Any], start: dict[str, Any] | None) -> dict[str, Any]:
        """Solve and measure a setting, or read its stored result."""
        text = " ".join(f"{name}={value}" for name, value in setting.items())
        self.tick(len(self.results), self._total, text)
        # named by everything that the result depends on
        key = sha256_arrays(
            {
                "setting": repr((setting, sorted(self.params.items()), self.select, EPS)),
                "X": self.data.X.data,
                "columns": self.data.X.indices,
                "Y": self.data.YT.indices,
                "weights": "equal" if self.data.weights is None else self.data.weights,
            }
        )[:16]
        self.starts[repr(setting)] = start
        stored = None if self.folder is None else self.folder / f"{key}.json"
        if stored is not None and stored.exists():
            result: dict[str, Any] = {**read_json(stored), "params": setting}
        else:
            result = {"params": setting, **self._measure(setting, start)}
            if stored is not None:
                stored.parent.mkdir(parents=True, exist_ok=True)
                write_json(stored, result)
        self.results.append(result)
        return result

    def _measure(self, setting: dict[str, Any], start: dict[str, Any] | None) -> dict[str, float]:
        """Return the value of a setting, its measures and its number of weights."""
        block, data = self._solve(setting, start), self.data
        terms = parse_measure(self.select)
        n_labels = len(data.counts)
        ks = sorted({min(k, n_labels) for _, k in terms})
        index = SearchIndex.build(block.W, frozen(block.bias, np.float32))
        measures = evaluate(
            index.query(data.held_X, max(ks), threads=self.workers).top,
            data.held_Y,
            ks=ks,
            label_counts=data.counts,
            n_train=data.X.n_rows,
        )
        value = measure_value(measures, self.select, n_labels)
        named = {f"{name}@{k}": measures[f"{name}@{min(k, n_labels)}"] for name, k in terms}
        return {"value": value, **named, "weights": block.W.nnz}

    def _solve(self, setting: dict[str, Any], start: dict[str, Any] | None) -> SolvedLabels:
        """Solve all labels of the data on threads, from the duals of `start` if they are known."""
        data, n_labels = self.data, len(self.data.counts)
        solver = make_parameters(PPDSparseSolver, {**self.params, "eps": EPS, **setting})
        state = solver.load(data.X, data.XT, data.YT, data.weights)
        origin = None if start is None else self._duals_of(start)
        runner = WarmRunner(solver, origin, dual_scale(start or setting, setting))
        schedule = LabelScheduler(
            range(n_labels),
            solver.cost_terms(data.X, data.XT, data.YT),
            solver.cost_rates,
            workers=self.workers,
        )
        results = CollectResults[Result]()
        pool = make_local_pool("threads", solver, state, self.workers, runner=runner)
        run_schedule(schedule, pool, results, stop=self.stop)
        blocks = [result.value for result in results.results]
        with_duals = list(_as_weights(blocks))
        self.duals[repr(setting)] = merge(with_duals, n_labels, data.X.n_rows).W
        return merge(blocks, n_labels, data.X.n_cols)

    def _duals_of(self, setting: dict[str, Any]) -> CSR:
        """Return the duals of a measured setting; solve it again if an earlier run measured it."""
        if repr(setting) not in self.duals:
            self._solve(setting, self.starts[repr(setting)])
        return self.duals[repr(setting)]


def _as_weights(blocks: list[SolvedLabels]) -> Iterator[SolvedLabels]:
    """Return blocks whose duals (n, N) take the place of the weights."""
    for block in blocks:
        if block.duals is None:
            raise ValueError("the solver returned no duals")
        yield block._replace(W=block.duals)
