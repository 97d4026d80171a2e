"""Indexed block coordinate descent against full dual coordinate descent and block minimisation.

python -m benchmarks.indexed_bcd --data DIR [--sets covtype-like,kddcup99_10pct,mnist]
    [--seeds 3] [--rows 581012]

One class against the rest: class 1 of the generated set covtype-like (`--rows`: training and test
rows), "normal" of kddcup99_10pct, the digit 3 of mnist. For each method:
processor seconds of one core, volumes read, and support vectors when the test error first is, and
remains for the rest of the run, at most that of the full solution (of the hinge loss) + 0.2 and
+ 0.05 points; and at the end. The indexed methods are observed after the rows of a query and the
window were solved as a block, and after the sweeps that follow. A volume is one read of all
training rows. Rows of the active set, and of the block that is solved, are in memory. The indexed
methods read whole pages (leaves) of at most 256 rows, each time again; their first random rows
count as rows. The creation of the forest is measured apart. Test errors are not part of the
seconds.

The full solution is that of the hinge loss, to a duality gap of 0.1 % of the null objective. The
baselines are the solvers of this name, with 5 epochs of 20 blocks, and 10 epochs of Pegasos.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import dataset, run_benchmark
from benchmarks.indexed_bcd import covtype_like
from xcray.arrays import CSR, Float64, Pattern, csr, frozen
from xcray.kernels.sparse import take_rows
from xcray.kernels.training import dual_hinge as kernel
from xcray.solvers.indexed_bcd.baselines import (
    Baseline,
    BlockMinimisationSolver,
    PegasosSolver,
    SelectiveBlockMinimisationSolver,
)
from xcray.solvers.indexed_bcd.label import LabelSettings, LabelTraining, SweepProgress
from xcray.solvers.indexed_bcd.one_vs_rest import HingeState
from xcray.solvers.indexed_bcd.row_store import RowsInMemory
from xcray.solvers.indexed_bcd.solver import SELECTIONS, IndexedBCDSolver

BLOCK_EPOCHS, PEGASOS_EPOCHS = 5, 10
COMPILE_ROWS = 2_000
FULL_GAP = 1e-3  # of the null objective
LIMITS = (0.2, 0.05)  # points of test error above that of the full solution
NO_TRUNCATION = 1e30
PARTS = ("train", "test")
# "normal" of kddcup99, the digit 3
LABELS = {covtype_like.NAME: 1, "kddcup99_10pct": 11, "mnist": 3}
COSTS = {covtype_like.NAME: 0.1, "kddcup99_10pct": 1.0, "mnist": 0.01}


class Task(NamedTuple):
    """One class against the rest. y_test: (n,) 1 or -1."""

    X: CSR
    YT: Pattern
    X_test: Any
    y_test: Any
    C: float

    def error(self, v: Float64) -> float:
        """Return the test error in percent."""
        wrong = (self.X_test @ v[:-1] + v[-1] >= 0.0) != (self.y_test > 0)
        return 100.0 * float(wrong.mean())


class Point(NamedTuple):
    """One point of a curve: test error in percent, processor seconds, volumes, support vectors."""

    error: float
    seconds: float
    volumes: float
    support: int


class Curve:
    """Points of a run; the time of test errors is left out."""

    def __init__(self, task: Task) -> None:
        self._task, self._begin = task, time.process_time()
        self.points: list[Point] = []

    def add(self, v: Float64, volumes: float, support: int) -> None:
        """Add the present state of a training."""
        seconds = time.process_time() - self._begin
        self.points.append(Point(self._task.error(v), seconds, volumes, support))
        self._begin = time.process_time() - seconds


def load(name: str, data: Path | None, folder: Path, rows: int = covtype_like.ROWS) -> Task:
    """Return the task of a data set. name: NAME or NAME:LABEL. rows: of the generated set."""
    name, _, label = name.partition(":")
    if name == covtype_like.NAME:
        splits = covtype_like.write(folder / name, rows)
    else:
        splits = dataset(name, data, folder)
    number = int(label or LABELS[name])
    X, X_test = (splits[part].X for part in PARTS)
    positives, in_test = (splits[part].YT.row(number) for part in PARTS)
    y_test = np.full(X_test.n_rows, -1)
    y_test[in_test] = 1
    YT = one_label(positives, X.n_rows)
    return Task(X, YT, X_test.to_scipy().astype(np.float64), y_test, COSTS.get(name, 1.0))


def one_label(positives: Any, n_rows: int) -> Pattern:
    """Return the (1, n_rows) pattern of a label. positives: (n,) ascending rows."""
    return Pattern(frozen([0, len(positives)], np.int64), frozen(positives, np.int32), n_rows)


def take_training_rows(task: Task, rows: Any) -> Task:
    """Return the task with some of its training rows. rows: (n,) ascending."""
    positives = np.flatnonzero(np.isin(rows, task.YT.row(0)))
    return task._replace(X=take_rows(task.X, rows), YT=one_label(positives, len(rows)))


def rows_of(Y: Pattern, label: int) -> Any:
    """Return which rows have the label: (N,) bool; every row has one label."""
    return Y.indices == label


def full(task: Task, curve: Curve, local: HingeState, settings: LabelSettings) -> None:
    """Sweep over all rows until the duality gap is small; shrinking is off."""
    state = new_state(task, local)
    order, rng = np.arange(task.X.n_rows), np.random.default_rng(settings.seed)
    gap, volumes = np.inf, 0
    while gap > settings.gap:
        rng.shuffle(order)
        kernel.sweep(rows_in_memory(local), state, order, np.inf, -np.inf)
        volumes += 1
        curve.add(state.v, volumes, int((state.alpha > 0.0).sum()))
        rows = rows_in_memory(local)
        loss = kernel.hinge_sum(rows, state, order, 0.0)
        dual = kernel.dual_sum(state, rows.costs, rows.is_squared, order)
        gap = float(state.v @ state.v) + loss - dual


def indexed(task: Task, curve: Curve, local: HingeState, settings: LabelSettings) -> None:
    """Train as the solver does."""

    def observe(progress: SweepProgress) -> None:
        curve.add(progress.v, progress.reads / task.X.n_rows, progress.support)

    training = LabelTraining(
        local.store,
        local.scratch,
        local.selection,
        local.positives(0),
        0,
        settings,
        observe=observe,
    )
    result, _ = training.train()
    curve.add(result.v, training.reads / task.X.n_rows, result.support)


def rows_in_memory(local: HingeState) -> kernel.HingeRows:
    """Return the rows of a training without a memory limit."""
    assert isinstance(local.store, RowsInMemory)
    return local.store.rows


def new_state(task: Task, local: HingeState) -> kernel.DualState:
    """Return the scratch memory with the initial state of the class."""
    state = local.scratch
    state.y.fill(-1)
    state.y[task.YT.row(0)] = 1
    state.alpha.fill(0.0)
    state.v.fill(0.0)
    return state


METHODS: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "full dual": (full, {}),
    **{name: (indexed, {"selection": name}) for name in SELECTIONS},
    "forest, s = 1e30": (indexed, {"selection": "forest", "s": NO_TRUNCATION}),
    "full l2-dual": (full, {"inner": "l2-dual"}),
    "forest, l2-dual": (indexed, {"selection": "forest", "inner": "l2-dual"}),
    "forest, l2-primal": (indexed, {"selection": "forest", "inner": "l2-primal"}),
    "forest, no shrinking": (indexed, {"selection": "forest", "shrinking": "off"}),
    "forest, leaves of 64": (indexed, {"selection": "forest", "leaf_rows": 64}),
    "forest, leaves of 1024": (indexed, {"selection": "forest", "leaf_rows": 1024}),
}


def reach(points: list[Point], error: float) -> Point | None:
    """Return the first point from which on the error is at most `error`; None if there is none."""
    first = None
    for point in points:
        first = None if point.error > error else first or point
    return first


BASELINES: dict[str, Baseline] = {
    "block minimisation": BlockMinimisationSolver(max_epochs=BLOCK_EPOCHS),
    "selective block minimisation": SelectiveBlockMinimisationSolver(max_epochs=BLOCK_EPOCHS),
    "block minimisation, l2": BlockMinimisationSolver(
        max_epochs=BLOCK_EPOCHS, loss="squared_hinge"
    ),
    "Pegasos": PegasosSolver(epochs=PEGASOS_EPOCHS),
    "Pegasos, l2": PegasosSolver(epochs=PEGASOS_EPOCHS, loss="squared_hinge"),
}


def baseline_curve(task: Task, solver: Baseline) -> list[Point]:
    """Return the curve of a baseline."""
    local = solver.load(task.X, csr([0], [], [], task.X.n_rows), task.YT)
    curve = Curve(task)
    for now in solver.progress(local, 0, lambda: None):
        curve.add(now.v, now.reads / task.X.n_rows, now.support)
    return curve.points


def measure(task: Task, seed: int) -> Iterator[tuple[str, list[Point], float]]:
    """Yield name, curve and seconds of the selection's creation, of every method."""
    for name, (run, params) in METHODS.items():
        solver = IndexedBCDSolver(C=task.C, seed=seed, **params)
        begin = time.process_time()
        local = solver.load(task.X, csr([0], [], [], task.X.n_rows), task.YT)
        creation = time.process_time() - begin
        gap = FULL_GAP if run is full else solver.eps
        settings = solver.label_settings(local, 0)._replace(
            gap=gap * solver.null_objective(local, 0)
        )
        curve = Curve(task)
        run(task, curve, local, settings)
        yield name, curve.points, creation
    for name, baseline in BASELINES.items():
        yield name, baseline_curve(task, replace(baseline, C=task.C, seed=seed)), 0.0


def some_rows(task: Task) -> Task:
    """Return the task with about COMPILE_ROWS of its training rows."""
    step = max(1, task.X.n_rows // COMPILE_ROWS)
    return take_training_rows(task, np.arange(0, task.X.n_rows, step))


def summarise(runs: list[list[Point]], limits: dict[str, float]) -> dict[str, Any]:
    """Return medians over the seeds at the limits and at the end; None where a run fails."""
    ends = {"end": [points[-1] for points in runs]}
    reached = {name: [reach(points, limit) for points in runs] for name, limit in limits.items()}
    return {
        name: [round(statistics.median(each), 4) for each in zip(*points, strict=True)]
        if all(points)
        else None
        for name, points in (reached | ends).items()
    }


def measure_methods(task: Task, seeds: int) -> dict[str, Any]:
    """Return the summary of every method on one data set."""
    list(measure(some_rows(task), 0))  # compiles the kernels
    runs, creations = dict[str, list[list[Point]]](), dict[str, list[float]]()
    for seed in range(seeds):
        for name, points, creation in measure(task, seed):
            runs.setdefault(name, []).append(points)
            creations.setdefault(name, []).append(creation)
    best = statistics.median(points[-1].error for points in runs["full dual"])
    limits = {f"+{each}": best + each for each in LIMITS}
    return {
        name: {
            **summarise(each, limits),
            "creation": round(statistics.median(creations[name]), 2),
        }
        for name, each in runs.items()
    }


def measure_sets(options: Any, folder: Path) -> dict[str, Any]:
    """Return the figures of all sets; print a line per method."""
    sets: dict[str, Any] = {}
    for name in options.sets.split(","):
        task = load(name, options.data, folder, options.rows)
        sets[name] = measure_methods(task, options.seeds)
        for line, figures in sets[name].items():
            print(name, line, figures, flush=True)
    return {"sets": sets}


def main() -> None:
    """Compare all methods and print the JSON."""
    run_benchmark(
        measure_sets,
        __doc__,
        quick={"sets": covtype_like.NAME, "seeds": 1, "rows": 4_000},
        sets={"default": ",".join(LABELS)},
        seeds={"type": int, "default": 3},
        rows={"type": int, "default": covtype_like.ROWS},
    )


if __name__ == "__main__":
    main()
