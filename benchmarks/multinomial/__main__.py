"""Multinomial logistic regression: the variants of DS-MLR next to LC and L-BFGS.

Measured are objective and F1 against time.

`python -m benchmarks.multinomial [--data DIR] [--sets news20 mnist ...] [--cores 1 2] [--budget 10]
[--repeats 1]`

All methods minimise L1(W) = lam/2 |W|^2 + mean log-loss of the same rows with the same lam, from W
= 0, without a constant feature, on threads. First L-BFGS runs on all cores until its gradient is
1e-5 of the first, or for --reference seconds; its smallest objective is "the best". Then every
method runs for --budget seconds. Times are those of a training without held-out rows, from when
workers have their rows. A second training of as many rounds evaluates held-out rows (F1 of the
first label). L-BFGS and LC compute in double, DS-MLR in single precision, as in production.

Reported are the seconds until the objective is within 5 % and 1 % of the best, for one and for two
cores (median of --repeats, which are interleaved; "-": not within the budget), and F1 at the end.
The asynchronous variants, LC as published and F1 are measured with the maximum of cores only. The
picture has three panels per set, for the maximum of cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize  # noqa: F401 - loaded before any clock starts

from benchmarks import matplotlib_page
from benchmarks.harness import run_benchmark, table
from benchmarks.multinomial.data import GENERATED, PROBLEMS, Problem, problem
from xcray.solvers.dsmlr.solver import DSMLRSolver
from xcray.solvers.lbfgs.solver import LBFGSSolver
from xcray.solvers.lc.solver import LCSolver
from xcray.training.group_training import train_in_process

ENDLESS = 10**6
OPEN = {"epochs": ENDLESS, "tolerance": 0.0}  # the clock ends the run
MERGED = {"passes": 1, "sync_every": 4, **OPEN}  # an epoch takes 5/4 laps instead of two
EXACT = {"centre": "no", "inner": 0.1, "inner_steps": 10}  # LC as published: only solves classes
SOLVERS: dict[str, Any] = {
    "DS-MLR, two laps": DSMLRSolver(passes=2, order="sync", **OPEN),
    "DS-MLR, merged": DSMLRSolver(order="sync", **MERGED),
    "DS-MLR, ring": DSMLRSolver(order="ring", **MERGED),
    "DS-MLR, NOMAD": DSMLRSolver(order="shortest", **MERGED),
    "LC as published": LCSolver(tolerance=1e-5, max_rounds=ENDLESS, **EXACT),
    "LC, centred": LCSolver(tolerance=1e-5, max_rounds=ENDLESS),
    "L-BFGS": LBFGSSolver(tolerance=1e-5, max_iterations=ENDLESS),
}
REFERENCE = "L-BFGS"
# with one worker the first two equal the merged form
FEW = ("DS-MLR, ring", "DS-MLR, NOMAD", "LC as published")
WITHIN = (0.05, 0.01)
LEAST = 1e-2  # percent above the best at which a line ends
MOST_POINTS = 150  # of a line
LOOKS = {  # colour and style of each method's line
    "DS-MLR, two laps": (matplotlib_page.BLUES[0], "-"),
    "DS-MLR, merged": (matplotlib_page.BLUES[1], "-"),
    "DS-MLR, ring": (matplotlib_page.BLUES[2], "-"),
    "DS-MLR, NOMAD": (matplotlib_page.BLUES[2], ":"),
    "LC as published": (matplotlib_page.GREY, "--"),
    "LC, centred": (matplotlib_page.ORANGE, "-"),
    "L-BFGS": (matplotlib_page.RED, "-"),
}


@contextmanager
def cores(n: int) -> Iterator[None]:
    """Run on the first n cores this process can use."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(mine)[:n]))  # inherited by threads that start later
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def run(name: str, inputs: Problem, workers: int, budget: float, looks: bool) -> list[Any]:
    """Return the history of a training that ends after `budget` seconds: seconds and objectives.

    looks: also F1 of the held-out rows, of a second training.
    """
    solver, rows = replace(SOLVERS[name], lam=inputs.lam), inputs.rows
    with cores(workers):
        timed = history(solver, rows._replace(held_out=None), workers, budget)
        if looks:
            limit = {solver.stopping.names[1]: timed[-1]["epoch"]}
            measured = history(replace(solver, **limit), rows, workers, None)
            by_round = {entry["epoch"]: entry for entry in measured}
            timed = [{**by_round.get(entry["epoch"], {}), **entry} for entry in timed]
    return timed


def history(solver: Any, rows: Any, workers: int, budget: float | None) -> list[dict[str, Any]]:
    """Return the rounds of a training that count."""
    outcome = train_in_process(solver, rows, workers, max_seconds=budget).outcome
    return [entry for entry in outcome.history if not entry.get("back")]


def compare(inputs: Problem, chosen: Any) -> dict[str, Any]:
    """Run all methods on one problem."""
    most, X = max(chosen.cores), inputs.rows.X
    best = min(e["objective"] for e in run(REFERENCE, inputs, most, chosen.reference, False))
    sizes = {"rows": X.n_rows, "features": X.n_cols, "labels": inputs.rows.Y.n_cols}
    print(f"\n{inputs.name}: {sizes}, lam {inputs.lam:g}; best {best:.6f}", flush=True)
    runs: dict[tuple[str, int], list[list[Any]]] = {}
    for _ in range(chosen.repeats):
        for workers in chosen.cores:
            for name in chosen.methods or SOLVERS:
                if workers == most or name not in FEW:
                    budget = chosen.budget * inputs.patience
                    entries = run(name, inputs, workers, budget, workers == most)
                    runs.setdefault((name, workers), []).append(entries)
    rows = [
        row_of(*key, results, best) for key, results in sorted(runs.items(), key=lambda e: e[0][1])
    ]
    print(table(rows, [name for name in rows[-1] if name != "points"]), flush=True)
    return {"set": inputs.name, "lam": inputs.lam, **sizes, "best": best, "runs": rows}


def row_of(name: str, workers: int, results: list[list[Any]], best: float) -> dict[str, Any]:
    """Return the figures of a method: medians over repeats, and the points of the first run."""
    row: dict[str, Any] = {"method": name, "cores": workers}
    for share in WITHIN:
        times = [within(entries, best * (1.0 + share)) for entries in results]
        row[f"s to {100 * share:g} %"] = None if None in times else float(np.median(times))
    first = results[0]
    row["above %"] = 100.0 * (min(entry["objective"] for entry in first) / best - 1.0)
    row |= {each: first[-1].get(each) for each in ("micro-F1", "macro-F1")}
    step = max(1, len(first) // MOST_POINTS)
    names = ("seconds", "objective", "micro-F1", "macro-F1")
    row["points"] = [[entry.get(each) for each in names] for entry in first[::step]]
    return row


def within(entries: list[Any], objective: float) -> float | None:
    """Return the seconds until the objective was reached, or None."""
    return next((e["seconds"] for e in entries if e["objective"] <= objective), None)


def picture(result: dict[str, Any], path: Path) -> None:
    """Draw one row of panels per set: objective, micro-F1 and macro-F1 against seconds."""
    sets = result["sets"]
    most = max(row["cores"] for row in sets[0]["runs"])
    note = f"{most} cores; objective relative to the minimum of L-BFGS; dotted: 5 and 1 % above it"
    title = "Multinomial logistic regression against time"
    with matplotlib_page.figure_page(path, 13, 3.1 * len(sets) + 1.0, title, note) as figure:
        axes = figure.subplots(len(sets), 3, squeeze=False)
        for panels, each in zip(axes, sets, strict=True):
            for row in each["runs"]:
                if row["cores"] == most:
                    draw(panels, row, each["best"])
            panels[0].set_title(f"{each['set']} · {each['labels']:,} labels", fontweight="bold")
            panels[0].set(yscale="log", ylabel="above the best (%)")
            for share in WITHIN:
                panels[0].axhline(100 * share, color=matplotlib_page.INK, linewidth=0.8, ls=":")
            for axis, name in zip(panels[1:], ("micro-F1 (%)", "macro-F1 (%)"), strict=True):
                axis.set_ylabel(name)
            for axis in panels:
                axis.set(xscale="log", xlabel="seconds")
        axes[0, 0].legend(loc="lower left", fontsize=7)


def draw(panels: Any, row: dict[str, Any], best: float) -> None:
    """Draw one method in the panels of its set."""
    points = np.array(row["points"], float).T
    colour, form = LOOKS[row["method"]]
    values = [100 * (points[1] / best - 1.0), *(100 * points[2:])]
    values[0][values[0] <= LEAST] = np.nan
    for axis, each in zip(panels, values, strict=True):
        axis.plot(points[0], each, form, color=colour, linewidth=1.6, label=row["method"])


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Compare the methods on every set."""
    options.budget = options.budget or (10.0 if options.data else 3.0)
    place = options.cache or folder
    names = options.sets or (PROBLEMS if options.data else GENERATED)
    entries = ("budget", "reference", "repeats", "cores")
    return {
        "benchmark": "mlr",
        **{name: getattr(options, name) for name in entries},
        "sets": [compare(problem(name, options.data, place), options) for name in names],
    }


def main() -> None:
    """Run every set and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        draw=picture,
        quick={"sets": list(GENERATED)[:1], "reference": 3.0, "budget": 1.0, "cores": [2]},
        sets={"nargs": "+", "choices": [*PROBLEMS, *GENERATED]},
        methods={"nargs": "+", "choices": list(SOLVERS)},
        cores={"type": int, "nargs": "+", "default": [1, 2]},
        budget={"type": float, "help": "seconds of a run (times `patience`); 10, or 3 generated"},
        reference={
            "type": float,
            "default": 40.0,
            "help": "seconds of the run that finds the best",
        },
        repeats={"type": int, "default": 1},
        cache={"type": Path, "help": "directory of the data sets; default: a temporary one"},
    )


if __name__ == "__main__":
    main()
