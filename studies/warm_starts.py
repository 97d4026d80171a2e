"""Measure the savings of warm starts in a grid search, and the quality of partial models.

`python -m studies.warm_starts [--data DIR] [--sets cooking gutenberg_lcsh]
[--lam 0.1 0.03 0.01] [--C 0.3 1 3] [--repeats 3]`

Grid: every point is solved cold and warm, one after the other, in CPU seconds of one core. The
ratio is of the sums over all points that start from a neighbour. Any-time: all labels are solved
once in each order. The model of the labels that were finished after each share of the time is
measured on the test part.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import arguments, dataset, in_folder
from xcray.arrays import CSR, frozen
from xcray.data.dataset import Dataset
from xcray.index.inverted import InvertedIndex
from xcray.metrics import evaluate
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.solved_labels import SolvedLabels, merge
from xcray.training.tuning.evaluate import hold_out
from xcray.training.tuning.grid import Point, plan_points
from xcray.training.warm_start import WarmRunner, dual_scale
from xcray.workers.driver import run_schedule
from xcray.workers.local_pool import SerialPool
from xcray.workers.observer import RunObserver
from xcray.workers.pool import Result, StopFlag

SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
BATCH = 256  # labels per timed call


def p_at_1(W: CSR, bias: Any, part: Any) -> float:
    """Return P@1 of a model on a part of a data set."""
    top = InvertedIndex.build(W, frozen(bias, np.float32)).query(part.X, 1, threads=1)
    return float(evaluate(top, part.Y, ks=(1,))["P@1"])


def solved(solver: Any, local: Any, n_labels: int) -> tuple[SolvedLabels, CSR | None, float]:
    """Solve all labels; return their block, their duals if available, and CPU seconds.

    The seconds are those of this thread.
    """
    blocks, duals, seconds = [], [], 0.0
    for first in range(0, n_labels, BATCH):
        labels = frozen(np.arange(first, min(first + BATCH, n_labels)), np.int32)
        began = time.thread_time()
        block = solver.solve(local, labels)
        seconds += time.thread_time() - began
        blocks.append(block._replace(duals=None))
        duals.append(block.duals)
    whole = merge(blocks, n_labels, local.problem.X.n_cols)
    if duals[0] is None:
        return whole, None, seconds
    rows = [
        SolvedLabels(block.labels, selection, block.bias, block.records)
        for block, selection in zip(blocks, duals, strict=True)
    ]
    return whole, merge(rows, n_labels, local.problem.X.n_rows).W, seconds


class Clock(RunObserver[Result]):
    """Keeps blocks, and when each label was done, by the clock of this thread alone."""

    def __init__(self, n_labels: int) -> None:
        self.blocks: list[SolvedLabels] = []
        self.when = np.empty(n_labels)
        self._began = time.thread_time()

    def commit(self, result: Result) -> None:
        """Keep a block."""
        self.blocks.append(result.value)
        self.when[result.value.labels] = time.thread_time() - self._began


def along(state: Dataset, points: list[Point]) -> list[dict[str, Any]]:
    """Solve each point of the path cold and warm, alternating which is first."""
    base = PPDSparseSolver()
    local = base.load(state.train.X, state.train.XT, state.train.YT)
    base.warm_up()
    entries: dict[int, CSR] = {}
    rows = []
    for point in points:
        solver = PPDSparseSolver(**point.params)
        start = None if point.start is None else entries[point.start]
        factor = (
            1.0 if point.start is None else dual_scale(points[point.start].params, point.params)
        )
        row: dict[str, Any] = {
            "params": point.params,
            "start": None if point.start is None else points[point.start].params,
        }
        for warm in (False, True) if point.number % 2 else (True, False):
            block, duals, seconds = solved(
                WarmRunner(solver, start, factor) if warm else solver, local, state.n_labels
            )
            name = "warm" if warm else "cold"
            certified = block.records["gap"] <= solver.eps * block.records["null"]
            row[name] = {
                "seconds": seconds,
                "rounds": int(block.records["rounds"].sum()),
                "nnz": block.W.nnz,
            }
            row[name] |= {
                "certified": float(certified.mean()),
                "P@1": p_at_1(block.W, block.bias, state["test"]),
            }
            if duals is not None:
                entries[point.number] = duals
        rows.append(row)
        print(row, flush=True)
    return rows


def path_of(state: Dataset, points: list[Point], repeats: int) -> dict[str, Any]:
    """Solve along the path several times; return median seconds, and the ratio of each run."""
    walks = [along(state, points) for _ in range(repeats)]
    ratios = []
    for walk in walks:
        sums = {
            name: sum(row[name]["seconds"] for row in walk if row["start"] is not None)
            for name in ("cold", "warm")
        }
        ratios.append(sums["cold"] / sums["warm"])
    rows = walks[0]
    for number, row in enumerate(rows):
        for name in ("cold", "warm"):
            row[name]["seconds"] = median(walk[number][name]["seconds"] for walk in walks)
    return {"points": rows, "cold_over_warm": median(ratios), "ratios": ratios}


def curve(data: Dataset, values: Any) -> dict[str, list[float]]:
    """Return CPU seconds of one core and P@1 on the test part, with labels ordered by `values`.

    values: None means the most expensive first.
    """
    solver, train = PPDSparseSolver(), data.train
    local = solver.load(train.X, train.XT, train.YT)
    labels = frozen(np.arange(data.n_labels), np.int32)
    schedule = LabelScheduler(
        labels, solver.cost_terms(train.X, train.XT, train.YT), solver.cost_rates, values=values
    )
    solver.warm_up()
    clock = Clock(data.n_labels)
    run_schedule(schedule, SerialPool(solver, local), clock, stop=StopFlag())
    when = clock.when
    whole, total = merge(clock.blocks, data.n_labels, data.n_features), float(when.max())
    seconds, result = [], []
    for share in SHARES:
        done = when <= share * total + 1e-9
        lengths = np.where(done, np.diff(whole.W.indptr), 0)
        stay = np.repeat(done, np.diff(whole.W.indptr))
        W = CSR(
            frozen(np.concatenate([[0], np.cumsum(lengths)]), np.int64),
            frozen(whole.W.indices[stay], np.int32),
            frozen(whole.W.data[stay], np.float32),
            data.n_features,
        )
        seconds.append(share * total)
        result.append(p_at_1(W, np.where(done, whole.bias, -1.0), data["test"]))
    return {"seconds": seconds, "P@1": result}


def anytime(data: Dataset) -> dict[str, Any]:
    """Return the curve of each order."""
    solver, train = PPDSparseSolver(), data.train
    costs = np.asarray(solver.cost_terms(train.X, train.XT, train.YT) @ solver.cost_rates)
    counts = np.asarray(data.label_counts, np.float64)
    orders = {
        "most valuable": counts,
        "dearest": None,
        "value per cost": counts / costs,
        "by number": -np.arange(data.n_labels),
    }
    out = {}
    for name, values in orders.items():
        out[name] = curve(data, values)
        print(name, out[name], flush=True)
    return out


def picture(result: dict[str, Any], path: Path) -> None:
    """Draw cold and warm seconds of each point, and the any-time curves; one row per set."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    sets = result["sets"]
    figure, axes = plt.subplots(
        len(sets), 2, figsize=(11, 3.6 * len(sets)), squeeze=False, layout="constrained"
    )
    for (left, right), (name, output) in zip(axes, sets.items(), strict=True):
        points = output["path"]["points"]
        names = [
            "\n".join(f"{key} {value:g}" for key, value in point["params"].items())
            for point in points
        ]
        place = np.arange(len(points))
        for shift, kind in ((-0.2, "cold"), (0.2, "warm")):
            left.bar(place + shift, [point[kind]["seconds"] for point in points], 0.4, label=kind)
        left.set_xticks(place, names, fontsize=7)
        left.set(
            ylabel="CPU seconds",
            title=f"{name}: path, cold / warm = {output['path']['cold_over_warm']:.2f}",
        )
        left.legend()
        for order, line in output["anytime"].items():
            right.plot(
                line["seconds"], [100 * value for value in line["P@1"]], marker=".", label=order
            )
        right.set(
            xlabel="time limit in CPU seconds of one core",
            ylabel="P@1, percent",
            title=f"{name}: P@1 at the time limit",
        )
        right.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run both parts on every set and print the JSON."""
    chosen = arguments(
        __doc__ or "",
        sets={"nargs": "+", "default": ["synthetic"]},
        lam={"nargs": "+", "type": float, "default": [0.1, 0.03, 0.01]},
        C={"nargs": "+", "type": float, "default": [0.3, 1.0, 3.0]},
        repeats={"type": int, "default": 3},
    )

    def run(folder: Path) -> dict[str, Any]:
        points = plan_points({"lam": chosen.lam, "C": chosen.C})
        sets = {}
        for name in chosen.sets:
            data = dataset(name, chosen.data, folder)
            holdout = hold_out(data, 0.2, 0, folder / f"{name}-held")
            sets[name] = {
                "path": path_of(holdout, points, chosen.repeats),
                "anytime": anytime(data),
            }
        result = {"benchmark": "path", "sets": sets}
        if chosen.picture:
            picture(result, chosen.picture)
        return result

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
