"""Multinomial logistic regression: the variants of DS-MLR next to LC and L-BFGS.

Measured are objective and F1 against time.

`python -m benchmarks.multinomial [--data DIR] [--sets news20 mnist ...] [--cores 1 2] [--budget 10]
[--repeats 1]`

All methods minimise L1(W) = lam/2 |W|^2 + mean log-loss of the same rows with the same lam, from W
= 0, without a constant feature. First L-BFGS runs on all cores until its gradient is 1e-5 of the
first, or for --reference seconds; its smallest objective is "the best". Then every method runs on
threads until it is within --enough of the best or its clock reaches --budget. Clocks stop while a
run is evaluated (F1 of the first label of held-out rows), and start when workers have their rows.
L-BFGS and LC compute in double, DS-MLR in single precision, as in production. L-BFGS on all cores
is the reference run itself.

Reported are the seconds until the objective is within 5 % and 1 % of the best, for one and for two
cores (median of --repeats, which are interleaved; "-": not within the budget), and F1 at the end.
Runs with fewer than the maximum of cores are evaluated only for their objective, without the
asynchronous variants and LC as published. The picture has three panels per set, for the maximum of
cores. `--lambdas 1e-2 1e-3 ...` reports instead the optimum of L-BFGS and its F1 for each lam, see
`benchmarks.multinomial.data`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import matplotlib_page
from benchmarks.harness import run_benchmark
from benchmarks.multinomial.data import GENERATED, PROBLEMS, Problem, problem
from benchmarks.multinomial.run import ASYNC, SOLVERS, Point, run

WITHIN = (0.05, 0.01)
REFERENCE = "L-BFGS"
FEW = (*ASYNC, "LC as published")  # run only with the maximum of cores
LEAST = 1e-2  # percent above the best at which a line ends
LOOKS = {  # colour and style of each method's line
    "DS-MLR, two laps": (matplotlib_page.BLUES[0], "-"),
    "DS-MLR, merged": (matplotlib_page.BLUES[1], "-"),
    "DS-MLR, ring": (matplotlib_page.BLUES[2], "-"),
    "DS-MLR, NOMAD": (matplotlib_page.BLUES[2], ":"),
    "LC as published": (matplotlib_page.GREY, "--"),
    "LC, centred": (matplotlib_page.ORANGE, "-"),
    "L-BFGS": (matplotlib_page.RED, "-"),
}


def compare(inputs: Problem, chosen: Any) -> dict[str, Any]:
    """Run all methods on one problem."""
    most = max(chosen.cores)
    reference = run(REFERENCE, inputs, most, chosen.reference, -math.inf)
    best = min(point.objective for point in reference)
    settled = (
        within(
            [point for point in reference if point.seconds <= 0.8 * reference[-1].seconds],
            best,
            0.002,
        )
        is not None
    )
    sizes = {
        "rows": inputs.X.n_rows,
        "features": inputs.X.n_cols,
        "labels": inputs.Y.n_cols,
        "nonzeros": inputs.X.nnz,
    }
    print(
        f"\n{inputs.name}: {sizes}, lam {inputs.lam:g}, {inputs.note}; best {best:.6f} in {reference[-1].seconds:.1f} s",
        flush=True,
    )
    if not settled:
        print("  the best has not converged: increase --reference", flush=True)
    runs: dict[tuple[str, int], list[list[Point]]] = {(REFERENCE, most): [reference]}
    for repeat in range(chosen.repeats):
        for workers in chosen.cores:
            for name in chosen.methods or SOLVERS:
                if (workers < most and name in FEW) or (
                    (name, workers) == (REFERENCE, most) and not repeat
                ):
                    continue
                points = run(
                    name,
                    inputs,
                    workers,
                    chosen.budget * inputs.patience,
                    best * (1.0 + chosen.enough),
                    workers == most,
                )
                runs.setdefault((name, workers), []).append(points)
    rows = [
        row_of(name, workers, result, best)
        for (name, workers), result in sorted(runs.items(), key=lambda each: each[0][1])
    ]
    for row in rows:
        print(line(row), flush=True)
    fields = {"set": inputs.name, "lam": inputs.lam, "note": inputs.note, **sizes}
    return {
        **fields,
        "best": best,
        "settled": settled,
        "null": math.log(inputs.Y.n_cols),
        "runs": rows,
    }


def row_of(name: str, workers: int, results: list[list[Point]], best: float) -> dict[str, Any]:
    """Return the figures of a method: medians over repeats, and the points of the first run."""
    times = {share: [within(points, best, share) for points in results] for share in WITHIN}
    looked = [point for point in results[0] if point.micro is not None]
    last = looked[-1] if looked else results[0][-1]
    return {
        "method": name,
        "cores": workers,
        "seconds": {
            str(share): None if None in each else float(np.median(each))
            for share, each in times.items()
        },
        "above": min(point.objective for point in results[0]) / best - 1.0,
        "micro-F1": last.micro,
        "macro-F1": last.macro,
        "points": [list(point) for point in thinned(results[0])],
    }


def within(points: list[Point], best: float, share: float) -> float | None:
    """Return the seconds until the objective was within `share` of the best, or None."""
    return next(
        (point.seconds for point in points if point.objective <= best * (1.0 + share)), None
    )


def thinned(points: list[Point], most: int = 150) -> list[Point]:
    """Return the points at which held-out rows were evaluated, and others up to `most`, evenly."""
    step = max(1, len(points) // most)
    return [
        point
        for number, point in enumerate(points)
        if point.micro is not None or number % step == 0
    ]


def line(row: dict[str, Any]) -> str:
    """Format one row of the table."""
    times = {
        share: "     -" if seconds is None else f"{seconds:6.2f}"
        for share, seconds in row["seconds"].items()
    }
    shown = "  ".join(f"{100 * float(share):g} %: {seconds} s" for share, seconds in times.items())
    f1 = "  ".join(
        f"{name} {100 * row[name]:5.2f}"
        for name in ("micro-F1", "macro-F1")
        if row[name] is not None
    )
    return f"  {row['cores']} core(s)  {row['method']:<17} {shown}  finally {100 * row['above']:+8.3f} %  {f1}"


def picture(sets: list[dict[str, Any]], path: Path) -> None:
    """Draw one row of panels per set: objective, micro-F1 and macro-F1 against seconds."""
    most = max(row["cores"] for row in sets[0]["runs"])
    note = f"{most} cores; objective relative to the minimum of L-BFGS; dotted lines: 5 % and 1 % above it"
    with matplotlib_page.figure_page(
        path, 13, 3.1 * len(sets) + 1.0, "Multinomial logistic regression against time", note
    ) as figure:
        axes = figure.subplots(len(sets), 3, squeeze=False)
        for panels, result in zip(axes, sets, strict=True):
            runs = [row for row in result["runs"] if row["cores"] == most]
            for row in sorted(runs, key=lambda row: list(LOOKS).index(row["method"])):
                draw(panels, row, result["best"])
            panels[0].set_title(f"{result['set']} · {result['labels']:,} labels", fontweight="bold")
            panels[0].set(yscale="log", ylabel="above the best (%)")
            for share in WITHIN:
                panels[0].axhline(
                    100 * share, color=matplotlib_page.INK, linewidth=0.8, linestyle=":"
                )
            for axis, name in zip(panels[1:], ("micro-F1 (%)", "macro-F1 (%)"), strict=True):
                axis.set_ylabel(name)
            for axis in panels:
                axis.set(xscale="log", xlabel="seconds")
        axes[0, 0].legend(loc="lower left", fontsize=7)


def draw(panels: Any, row: dict[str, Any], best: float) -> None:
    """Draw one method in the panels of its set."""
    points = [Point(*point) for point in row["points"]]
    colour, form = LOOKS[row["method"]]
    above = [(point.seconds, 100 * (point.objective / best - 1.0)) for point in points]
    looked = [point for point in points if point.micro is not None]
    shown = np.array([each for each in above if each[1] > LEAST]).reshape(-1, 2)
    panels[0].plot(*shown.T, form, color=colour, linewidth=1.6, label=row["method"])
    for axis, name in zip(panels[1:], ("micro", "macro"), strict=True):
        values = [100 * getattr(point, name) for point in looked]
        axis.plot([point.seconds for point in looked], values, form, color=colour, linewidth=1.6)


def lambdas(name: str, chosen: Any, folder: Path) -> list[dict[str, Any]]:
    """Return the optimum and its F1 for each lam."""
    rows = []
    for lam in chosen.lambdas:
        points = run(
            REFERENCE,
            problem(name, chosen.data, folder, lam),
            max(chosen.cores),
            chosen.reference,
            -math.inf,
        )
        last = points[-1]
        rows.append(
            {
                "set": name,
                "lam": lam,
                "objective": last.objective,
                "micro-F1": last.micro,
                "macro-F1": last.macro,
            }
        )
        print(rows[-1], flush=True)
    return rows


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Compare the methods on every set, or report the optimum for each lam."""
    options.budget = options.budget or (10.0 if options.data else 3.0)
    place = options.cache or folder
    names = options.sets or (PROBLEMS if options.data else GENERATED)
    if options.lambdas:
        rows = [row for name in names for row in lambdas(name, options, place)]
        return {"benchmark": "mlr", "lambdas": rows}
    entries = ("budget", "reference", "enough", "repeats", "cores")
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
        draw=lambda result, path: picture(result["sets"], path),
        quick={"sets": list(GENERATED)[:1], "reference": 3.0, "budget": 1.0, "cores": [2]},
        sets={"nargs": "+", "choices": [*PROBLEMS, *GENERATED]},
        methods={"nargs": "+", "choices": list(SOLVERS)},
        cores={"type": int, "nargs": "+", "default": [1, 2]},
        budget={
            "type": float,
            "help": "seconds of each run (times `patience` of the set); 10, or 3 without --data",
        },
        reference={
            "type": float,
            "default": 40.0,
            "help": "time limit in seconds of the run that finds the best objective",
        },
        enough={
            "type": float,
            "default": 0.008,
            "help": "a run ends when it is within this share of the best",
        },
        repeats={"type": int, "default": 1},
        lambdas={"type": float, "nargs": "+", "help": "only report optimum and F1 of these lam"},
        cache={
            "type": Path,
            "help": "directory of the built data sets; default: a temporary one",
        },
    )


if __name__ == "__main__":
    main()
