"""Choose the parameters that a solver declares as its `tuning`, on held-out training rows.

Coordinate search: first the values that the solver declares as gaining together; then one parameter
after the other moves along its values while the measure rises. A move stays if it gains on both
halves of the held-out rows, and more than two standard errors. Rows of equal length are not
normalised. The search ends when no parameter moves, or with its budget. Every setting is solved for
a part of the labels, with a loose tolerance, from the duals of the setting before. The budget is
counted work, not time, so the choice is the same for any machine and number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.kernels.row_norm import has_equal_lengths
from xcray.solvers import SOLVERS, make_solver
from xcray.training.selection.evaluate import Evaluator, Meter, OutOfBudget
from xcray.training.selection.held_out import SelectionData
from xcray.workers.pool import StopFlag

# standard errors that a setting must gain: of six that are tried, one gains more than one by chance
ERRORS: Final = 2.0
# depend on the machine and the number of workers, or are too long
NOT_REPORTED = ("folds", "seconds", "core_seconds")
# Solver work of a selection, in trainings with the starting parameters. Copies of rows, threads and
# measuring take additional time; together they cost at most two trainings, three on tiny sets.
BUDGET = 1.6
MAX_TRAININGS = 2.0


class Selection(NamedTuple):
    """chosen: parameters that differ from the given ones. report: what was tried; JSON."""

    chosen: dict[str, Any]
    report: dict[str, Any]


class Selector:
    """Compares settings. solver: its name; it declares a `tuning`.

    params: given parameters, which are not varied. workers: threads.
    budget: limit of the work, in trainings with the starting parameters. folder: stores measured
    settings to resume; None to keep nothing. tick: called with the number of the setting and the
    setting as text; its exceptions end the work. is_late: returns whether the time is up; then the
    best setting so far is returned. The first setting is always measured.
    """

    def __init__(
        self,
        solver: str,
        data: SelectionData,
        params: Mapping[str, Any],
        select: str,
        workers: int,
        *,
        budget: float = BUDGET,
        folder: Path | None = None,
        stop: StopFlag | None = None,
        tick: Callable[[int, str], None] = lambda *_: None,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.solver, self.tuning = solver, SOLVERS[solver].tuning
        self.data, self.params, self.select = data, dict(params), select
        self.budget, self.tick = budget, tick
        self.evaluator = Evaluator(
            solver,
            {**self.params, **self.tuning.while_compared},
            data,
            select,
            workers=workers,
            folder=folder,
            with_groups=True,
            stop=stop,
        )
        self.meter = Meter(is_late)
        self.best: dict[str, Any] = {}  # result of the best setting
        self.results: dict[str, dict[str, Any]] = {}  # by the repr of the setting

    def run(self) -> Selection:
        """Return the best setting, and what was tried."""
        began = time.process_time()
        base = make_solver(self.solver, self.params)
        given = {*self.params, *(() if self._lengths_differ() else ("row_norm",))}
        start = {name: getattr(base, name) for name in self.tuning.values if name not in given}
        self.best = self._evaluate(start, None)
        training = self.best["work"] / self.data.share
        self.meter.limit = int(self.budget * training)
        reason = "no parameter improves the measure"
        try:
            self._try_together(start)
            while self._improve():
                pass
        except OutOfBudget:
            reason = "the time is up" if self.meter.is_late() else "the budget is spent"
        settings = [
            {name: value for name, value in row.items() if name not in NOT_REPORTED}
            | {"chosen": row is self.best}
            for row in self.results.values()
        ]
        work = sum(row["work"] for row in settings)
        report = {
            "select": self.select,
            "labels": len(self.data.counts),
            "rows": self.data.X.n_rows,
            "held_out": self.data.held_X.n_rows,
            "settings": settings,
            "over_start": gain_over(self.best, next(iter(self.results.values()))),
            "not_tried": self._neighbours(self.best["params"]),
            "ended": reason,
            "work": work,
            "trainings": round(work / max(training, 1.0), 3),
            "budget": self.meter.limit,
            "cpu_seconds": round(time.process_time() - began, 3),
        }
        return Selection(self.best["params"], report)

    def _try_together(self, start: dict[str, Any]) -> None:
        """Evaluate the values that gain together, unless one of them is given."""
        if set(self.tuning.together) <= set(start):
            result = self._evaluate({**start, **self.tuning.together}, start)
            if is_better(result, self.best, ERRORS):
                self.best = result

    def _lengths_differ(self) -> bool:
        """Return whether normalising the rows would change them by more than a common factor."""
        return not has_equal_lengths(self.data.X)

    def _improve(self) -> bool:
        """Move every parameter once along its values; return whether one improved the measure."""
        first = self.best
        for name in first["params"]:
            if not self._move(name, 1):
                self._move(name, -1)
        return self.best is not first

    def _move(self, name: str, step: int) -> bool:
        """Move one parameter while the value rises; return whether the measure improved.

        The whole way counts, because the gain of a single step can be smaller than its error.
        """
        first = last = self.best
        try:
            while (setting := self.neighbour(last["params"], name, step)) is not None:
                if repr(setting) in self.results:
                    break
                result = self._evaluate(setting, last["params"])
                if result["value"] <= last["value"]:
                    break
                last = result
        finally:
            if is_better(last, first, ERRORS):
                self.best = last
        return self.best is not first

    def _neighbours(self, setting: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the settings next to this one that were not measured."""
        pairs = ((name, step) for name in setting for step in (1, -1))
        values = [self.neighbour(setting, name, step) for name, step in pairs]
        return [value for value in values if value and repr(value) not in self.results]

    def neighbour(self, setting: Mapping[str, Any], name: str, step: int) -> dict[str, Any] | None:
        """Return the setting with the next (step 1) or previous (-1) value of `name`, or None."""
        values = self.tuning.values[name]
        position = values.index(setting[name]) + step
        return {**setting, name: values[position]} if 0 <= position < len(values) else None

    def _evaluate(self, setting: dict[str, Any], start: dict[str, Any] | None) -> dict[str, Any]:
        """Solve and measure a setting, or read its stored result. Raises OutOfBudget."""
        text = " ".join(f"{name}={value}" for name, value in setting.items())
        limit = self.meter.limit
        spent = "" if limit is None else f", {self.meter.spent / max(limit, 1):.0%} of the budget"
        self.tick(len(self.results), f"parameters, step {len(self.results) + 1}{spent}: {text}")
        result = self.evaluator.evaluate(setting, start, self.meter)
        self.evaluator.keep_duals((start, setting, self.best.get("params")))
        self.results[repr(setting)] = result
        return result


def gain_over(result: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """Return what a setting gains over another: gain, its standard error, and that of each half.

    The error is estimated from the differences of the groups of held-out rows. The halves are two
    disjoint sets of these groups; lowest_half: the smaller gain of the two.
    """
    differences = np.subtract(result["folds"], other["folds"])
    several = len(differences) > 1
    halves = [float(differences[part::2].mean()) for part in range(2 if several else 1)]
    return {
        "gain": result["value"] - other["value"],
        "error": float(differences.std(ddof=1) / np.sqrt(len(differences))) if several else 0.0,
        "lowest_half": min(halves),
    }


def is_better(result: Mapping[str, Any], best: Mapping[str, Any], errors: float = 1.0) -> bool:
    """Return whether a setting gains on both halves, and more than `errors` standard errors."""
    gain, error, lowest = gain_over(result, best).values()
    return lowest > 0.0 and gain > errors * error
