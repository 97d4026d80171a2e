"""Solve settings of a solver, each from the duals of another one, and measure held-out rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from xcray.arrays import CSR, Int64, TopK, frozen
from xcray.errors import Stopped
from xcray.index.search import SearchIndex
from xcray.kernels.sparse import take_pattern_rows
from xcray.measures import evaluate
from xcray.solvers import make_solver
from xcray.solvers.contract import SolverState, WarmStartSolver
from xcray.solvers.solved_labels import SolvedLabels, merge
from xcray.storage.arrow import read_csr, write_matrix
from xcray.storage.atomic import read_json, sha256_arrays, write_json
from xcray.training.report.summary import summarize_block
from xcray.training.selection.held_out import SelectionData
from xcray.training.selection.measure import measure_value, parse_measure
from xcray.training.selection.warm_start import WarmRunner, dual_scale
from xcray.training.solve_labels import LabelsToSolve, make_local_pool, solve_labels
from xcray.workers.observer import CollectResults, RunProgress
from xcray.workers.pool import Result, StopFlag

STOPPED: Final = "stopped on request; finished settings are kept, the next run does the rest"
PARTS: Final = 4  # parts of the labels; a limit of the work is checked before each of them
GROUPS: Final = 32  # groups of held-out rows, from which standard errors are estimated

Setting: TypeAlias = Mapping[str, Any]
Tick: TypeAlias = Callable[[int], None]


class OutOfBudget(Exception):
    """The rest of the budget or of the time is too small for a setting."""


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
        """Count the work of solved labels, and return it; 0 if the solver does not record it."""
        records = [block.records for block in blocks if "work" in (block.records.dtype.names or ())]
        rounds = sum(int(np.maximum(part["rounds"], 0).sum()) for part in records)
        work = sum(int(part["work"].sum()) for part in records) + n_rows * rounds
        self.spent += work
        return work


class Trainer(Protocol):
    """Trains and measures a setting from zero on the rows of an evaluator."""

    def __call__(self, params: Setting, folder: Path, tick: Tick) -> dict[str, Any]:
        """Return the result of `params`, see `Evaluator.evaluate`. folder: of this training."""


class _Evaluated(NamedTuple):
    """A setting that was evaluated. name: of its files. start: the setting that it started from."""

    name: str
    start: Setting | None
    work: int


class Evaluator:
    """Solves settings and measures them on held-out rows.

    Settings start from the dual variables of others, on the pools of this process. With `trainer`
    each setting is a training of its own instead, from zero.

    solver, params: what all settings share. data: the rows. select: the measure. ks: of further
    measures. pool, workers: a local pool. folder: keeps finished settings with their dual
    variables, so that a later evaluator continues; None to keep nothing. with_groups: also measure
    the value of each of GROUPS groups of rows.
    """

    def __init__(
        self,
        solver: str,
        params: Setting,
        data: SelectionData,
        select: str,
        *,
        ks: Iterable[int] = (),
        pool: str = "threads",
        workers: int = 1,
        folder: Path | None = None,
        with_groups: bool = False,
        stop: StopFlag | None = None,
        trainer: Trainer | None = None,
    ) -> None:
        self.solver, self.params, self.data, self.select = solver, dict(params), data, select
        self.pool, self.workers, self.stop = pool, workers, stop or StopFlag()
        self.folder, self.with_groups, self.trainer = folder, with_groups, trainer
        self.n_labels = len(data.counts)
        ks = (*ks, *(k for _, k in parse_measure(select)))
        self.ks = sorted({min(k, self.n_labels) for k in ks})
        self._state: SolverState | None = None
        self._evaluated: dict[str, _Evaluated] = {}  # by the repr of the setting
        self._duals: dict[str, CSR] = {}
        self._shared = {
            "solver": solver,
            "revision": str(make_solver(solver, self.params).revision),
            "params": repr(sorted(self.params.items())),
            "measures": repr((select, self.ks, with_groups)),
            "data": "" if folder is None else data.sha256,
        }

    def evaluate(
        self,
        setting: Setting,
        start: Setting | None = None,
        meter: Meter | None = None,
        tick: Tick = lambda _: None,
    ) -> dict[str, Any]:
        """Return the result of a setting, JSON: params, start, value, measures, weights, work.

        Also seconds, core_seconds, labels, certified, largest_gap, and "folds", the values of the
        groups. start: an evaluated setting to start from. meter: counts the work. tick: called with
        the number of finished labels; its exceptions end the work. A finished setting is not solved
        again. Raises OutOfBudget and Stopped.
        """
        meter, key = meter or Meter(), repr(setting)
        start = None if self.trainer else start
        name = self._name(setting, start)
        path = None if self.folder is None else self.folder / f"{name}.json"
        if path is not None and path.exists():
            result: dict[str, Any] = read_json(path)
            meter.spent += result["work"]
        else:
            if self.trainer is None:
                result, duals = self._solve(setting, start, meter, tick)
                self._store_duals(key, name, duals)
            else:
                assert self.folder is not None
                params = {**self.params, **setting}
                result = self.trainer(params, self.folder / name, tick)
            if path is not None:
                write_json(path, result)
        self._evaluated[key] = _Evaluated(name, start, result["work"])
        # the setting itself: in the order of its parameters
        return {"params": dict(setting), "start": start and dict(start), **result}

    def keep_duals(self, settings: Iterable[Setting | None]) -> None:
        """Remove the dual variables of all settings so far that are not among these."""
        for key in self._evaluated.keys() - {repr(setting) for setting in settings}:
            self._duals.pop(key, None)
            if self.folder is not None:
                (self.folder / f"{self._evaluated[key].name}.arrow").unlink(missing_ok=True)

    def _name(self, setting: Setting, start: Setting | None) -> str:
        """Return a file name derived from everything that the result of a setting depends on."""
        origin = "" if start is None else self._evaluated[repr(start)].name
        key = {**self._shared, "setting": repr(sorted(setting.items())), "start": origin}
        return sha256_arrays(key)[:16]

    def _store_duals(self, key: str, name: str, duals: CSR) -> None:
        """Keep the dual variables of a setting, on disk if there is a folder."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{name}.arrow"
            write_matrix(path, duals)
            duals = read_csr(path)
        self._duals[key] = duals

    def _duals_of(self, setting: Setting) -> CSR:
        """Return the dual variables of an evaluated setting; solve it again if they are gone."""
        key = repr(setting)
        if key not in self._duals:
            name, start, _ = self._evaluated[key]
            path = None if self.folder is None else self.folder / f"{name}.arrow"
            if path is not None and path.exists():
                self._duals[key] = read_csr(path)
            else:
                duals = self._solve(setting, start, Meter(), lambda _: None)[1]
                self._store_duals(key, name, duals)
        return self._duals[key]

    def _solve(
        self, setting: Setting, start: Setting | None, meter: Meter, tick: Tick
    ) -> tuple[dict[str, Any], CSR]:
        """Return the result of a setting, and its dual variables."""
        same_rows = start is not None and start.get("row_norm") == setting.get("row_norm")
        origin = self._duals_of(start) if start is not None and same_rows else None
        began, cpu, spent = time.monotonic(), time.process_time(), meter.spent
        solver = cast("WarmStartSolver", make_solver(self.solver, {**self.params, **setting}))
        scale = 1.0 if start is None else dual_scale(start, setting, solver.dual_exponent)
        runner = WarmRunner(solver, origin, scale)
        blocks = self._solve_labels(solver, runner, start, meter, tick)
        seconds = {
            "seconds": time.monotonic() - began,
            "core_seconds": time.process_time() - cpu,
        }
        duals = merge(list(_as_weights(blocks)), self.n_labels, self.data.X.n_rows).W
        block = merge(blocks, self.n_labels, self.data.X.n_cols)
        summary = summarize_block(block, solver)
        result = {
            **self._measure(block, solver.row_norm),
            "weights": summary["weights"],
            "labels": summary["labels"],
            "certified": summary.get("labels_certified"),
            "largest_gap": summary.get("largest_gap"),
            "work": meter.spent - spent,
        }
        return result | seconds, duals

    def _solve_labels(
        self,
        solver: WarmStartSolver,
        runner: WarmRunner,
        start: Setting | None,
        meter: Meter,
        tick: Tick,
    ) -> list[SolvedLabels]:
        """Return the solved batches of all labels.

        Raises OutOfBudget if the limit of the meter is too low: the setting is expected to need the
        work of its start, and a part of its labels that of the part before. Raises Stopped.
        """
        data, blocks, n_done = self.data, list[SolvedLabels](), 0
        rows = (data.X, data.XT, data.YT, data.weights)
        before = self._state
        self._state = solver.load(*rows) if before is None else solver.reload(before, *rows)
        terms = solver.cost_terms(*rows[:3])
        parts = 1 if start is None or meter.limit is None else min(PARTS, self.n_labels)
        work = 0 if start is None else self._evaluated[repr(start)].work // parts
        for part in range(parts):
            if not meter.has_room(work):
                raise OutOfBudget
            labels = frozen(np.arange(part, self.n_labels, parts), np.int32)
            results = _Batches(n_done, tick)
            pool = make_local_pool(self.pool, solver, self._state, self.workers, runner=runner)
            todo = LabelsToSolve(solver, labels, terms)
            try:
                solve_labels(todo, pool, results, workers=self.workers, stop=self.stop)
            except Stopped:  # its message promises to keep batches
                raise Stopped(STOPPED) from None
            batches = [result.value for result in results.results]
            work = meter.add(batches, data.X.n_rows)
            blocks, n_done = [*blocks, *batches], n_done + len(labels)
        return blocks

    def _measure(self, block: SolvedLabels, row_norm: str) -> dict[str, Any]:
        """Return the value of solved labels on the held-out rows, and all measures."""
        data = self.data
        index = SearchIndex.build(block.W, frozen(block.bias, np.float32), row_norm=row_norm)
        top = index.query(data.held_X, max(self.ks), threads=self.workers).top

        def measures_of(rows: Int64) -> dict[str, float]:
            part = TopK(frozen(top.labels[rows], np.int32), frozen(top.scores[rows], np.float64))
            truth = take_pattern_rows(data.held_Y, rows)
            counts, n_train = data.counts, data.X.n_rows
            return evaluate(part, truth, ks=self.ks, label_counts=counts, n_train=n_train)

        rows = np.arange(data.held_X.n_rows)
        measures = measures_of(frozen(rows, np.int64))
        out = {"value": measure_value(measures, self.select, self.n_labels), "measures": measures}
        if self.with_groups:
            groups = (frozen(rows[i::GROUPS], np.int64) for i in range(min(GROUPS, len(rows))))
            values = (measures_of(group) for group in groups)
            out["folds"] = [measure_value(each, self.select, self.n_labels) for each in values]
        return out


class _Batches(CollectResults[Result]):
    """Keeps solved batches, and reports the number of finished labels. n_done: before them."""

    def __init__(self, n_done: int, tick: Tick) -> None:
        super().__init__()
        self._n_done, self._tick = n_done, tick

    def report(self, progress: RunProgress) -> None:
        """Report the number of finished labels."""
        self._tick(self._n_done + int(progress.done))


def _as_weights(blocks: list[SolvedLabels]) -> Iterator[SolvedLabels]:
    """Return blocks whose duals (n, N) take the place of the weights."""
    for block in blocks:
        if block.duals is None:
            raise ValueError("the solver returned no duals")
        yield block._replace(W=block.duals)
