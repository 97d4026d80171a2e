"""Measure convergence: gap and objective of single classes by round and by eps, and P@k by eps.

`python -m benchmarks.training.convergence [--data DIR] [--sets synthetic cooking ...]
[--classes 60] [--repeats 3]`

Single classes, sampled over all label frequencies, are solved with max_rounds = 1, 2, 3, ... (and
an eps that none reaches before), and with eps = 0.3 ... 1e-4. For each, the figures are the time
(minimum of --repeats runs, one core), the duality gap, and the distance of the objective from the
best known one, both relative to the class's null objective (of predicting nothing). The best known
objective is the minimum of all these runs and of one with eps 1e-7. The certificate states gap >=
that distance; the last line states whether this always held (up to ROUNDING). Then all labels are
solved with each eps: core seconds, P@k. Times are processor times of the working thread, so that
they are comparable on a busy machine.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import matplotlib_page
from benchmarks.harness import dataset, run_benchmark, table
from xcray.arrays import frozen
from xcray.data.dataset import Dataset
from xcray.index.inverted import InvertedIndex
from xcray.measures import frequency_groups, precision_at_k
from xcray.solvers import make_solver
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.training.report.summary import summarize_block

ROUNDS = (1, 2, 3, 4, 5, 8, 13)
EPS = (0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4)
TIGHT = {"eps": 1e-7, "max_rounds": 1000, "max_sweeps": 200}
ROUNDING = 1e-6  # tolerance relative to the null objective: weights and data are float32
STEPS = [
    digit * 10.0**power for power in range(-3, 5) for digit in (1, 2, 5)
]  # ticks of a time axis
COLOURS = (*matplotlib_page.BLUES[:0:-1], matplotlib_page.ORANGE)  # of P@1, P@3, P@5


def sampled(data: Dataset, n: int) -> Any:
    """Return at most `n` labels (int32, ascending), equally many per tenth by frequency.

    The sample is the same in every run.
    """
    groups, rng = frequency_groups(data.label_counts), np.random.default_rng(0)
    chosen = [
        rng.permutation(np.flatnonzero(groups == group))[: -(-n // 10)] for group in range(10)
    ]
    return frozen(np.sort(np.concatenate(chosen)), np.int32)


def solved(local: Any, params: dict[str, Any], labels: Any, repeats: int) -> tuple[Any, Any]:
    """Return the seconds of each label (minimum of several runs) and its record, solved alone."""
    solver = make_solver("ppdsparse", params)
    seconds, records = np.full(len(labels), np.inf), []
    for i, label in enumerate(labels):
        for _ in range(repeats):
            began = time.thread_time()
            block = solver.solve(local, frozen([label], np.int32))
            seconds[i] = min(seconds[i], time.thread_time() - began)
        records.append(block.records)
    return seconds, np.concatenate(records)


def single_classes(data: Dataset, labels: Any, repeats: int) -> dict[str, Any]:
    """Return both paths of single classes and whether each gap was a bound.

    The paths are {"by_round", "by_eps"}, as rows of quantiles.
    """
    split = data.train
    local = PPDSparseSolver().load(split.X, split.XT, split.YT)
    settings: list[tuple[str, float, dict[str, Any]]] = [
        *(("by_round", rounds, {"eps": TIGHT["eps"], "max_rounds": rounds}) for rounds in ROUNDS),
        *(("by_eps", eps, {"eps": eps}) for eps in EPS),
    ]
    runs = [(path, at, *solved(local, params, labels, repeats)) for path, at, params in settings]
    _, tight = solved(local, TIGHT, labels, 1)
    best = np.min([tight["primal"], *(records["primal"] for _, _, _, records in runs)], axis=0)
    out: dict[str, Any] = {
        "by_round": [],
        "by_eps": [],
        "gap_of_best": float((tight["gap"] / tight["null"]).max()),
    }
    bounded = True
    for path, at, seconds, records in runs:
        gap, above = records["gap"] / records["null"], (records["primal"] - best) / records["null"]
        bounded &= bool((above <= gap + ROUNDING).all())
        row = {
            "ms": quantiles(1e3 * seconds),
            "gap": quantiles(gap),
            "above_best": quantiles(above),
        }
        out[path].append(
            {
                "at": at,
                **row,
                "rounds": float(records["rounds"].mean()),
                "work": float(records["work"].mean()),
            }
        )
    return {**out, "labels": len(labels), "gap_is_a_bound": bounded}


def quantiles(values: Any) -> dict[str, float]:
    """Return the 10th, 50th and 90th percentile, and the maximum."""
    return {
        name: float(np.quantile(values, q))
        for name, q in (("p10", 0.1), ("median", 0.5), ("p90", 0.9), ("max", 1.0))
    }


def whole_models(data: Dataset) -> list[dict[str, Any]]:
    """Solve all labels with each eps; return core seconds, certificates, weights, P@k."""
    split, labels = data.train, frozen(np.arange(data.n_labels), np.int32)
    local = PPDSparseSolver().load(split.X, split.XT, split.YT)
    rows = []
    for eps in EPS:
        began = time.thread_time()
        solver = PPDSparseSolver(eps=eps)
        block = solver.solve(local, labels)
        seconds = time.thread_time() - began
        row = {
            "eps": eps,
            "core_seconds": seconds,
            "ms_a_class": 1e3 * seconds / len(labels),
            **summarize_block(block, solver),
        }
        if data.test is not None:
            top = InvertedIndex.build(block.W, block.bias.astype(np.float32)).query(data.test.X, 5)
            row |= {f"P@{k}": precision_at_k(top, data.test.Y, k) for k in (1, 3, 5)}
        rows.append(row)
    return rows


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Run every set."""
    sets = []
    for name in options.sets:
        data = dataset(name, options.data, folder)
        single = single_classes(data, sampled(data, options.classes), options.repeats)
        sizes = {"set": name, "labels": data.n_labels, "rows": data.train.n_rows}
        sets.append({**sizes, **single, "models": whole_models(data)})
        print(table(sets[-1]["models"], list(sets[-1]["models"][-1])), flush=True)
    return {"benchmark": "convergence", "sets": sets}


def main() -> None:
    """Run every set and print the JSON. The picture shows the last set."""
    run_benchmark(
        measure,
        __doc__,
        draw=lambda result, path: picture(result["sets"][-1], path),
        quick={"classes": 10, "repeats": 1},
        sets={"nargs": "+", "default": ["synthetic"]},
        classes={"type": int, "default": 60},
        repeats={"type": int, "default": 3},
    )


def picture(record: dict[str, Any], path: Path) -> None:
    """Draw the distance to the optimum by time, the gap by eps, and P@k by eps."""
    note = (
        f"{record['labels']} classes of {record['labels']:,}, spread over all frequencies; {record['rows']:,} rows; "
        "lines: median, bands: 10 to 90 % of the classes"
    )
    with matplotlib_page.figure_page(
        path, 12.5, 4.4, f"Convergence · {record['set']}", note
    ) as figure:
        by_time, by_eps, models = figure.subplots(1, 3, gridspec_kw={"wspace": 0.06})
        draw_rounds(by_time, record["by_round"])
        draw_eps(by_eps, record["by_eps"])
        draw_models(models, record["models"])


def band(
    axis: Any,
    x: list[float],
    rows: list[dict[str, Any]],
    name: str,
    colour: str,
    mark: str,
    label: str,
) -> None:
    """Draw the median of a figure and a band of most classes. 0 is drawn at the lower end."""
    low, middle, high = (
        np.maximum([row[name][q] for row in rows], 1e-8) for q in ("p10", "median", "p90")
    )
    axis.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    axis.plot(x, middle, mark, color=colour, markersize=5, label=label)


def draw_rounds(axis: Any, rows: list[dict[str, Any]]) -> None:
    """Draw gap and distance to the best objective against time, one mark per number of rounds."""
    x = [row["ms"]["median"] for row in rows]
    band(axis, x, rows, "gap", matplotlib_page.BLUES[2], "o-", "duality gap")
    band(axis, x, rows, "above_best", matplotlib_page.ORANGE, "s--", "objective above the best")
    for row in rows[:4]:
        axis.annotate(
            f"{row['at']}",
            (row["ms"]["median"], row["gap"]["median"]),
            (4, 4),
            textcoords="offset points",
            fontsize=8,
        )
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="median time per label (ms); numbers: rounds",
        ylabel="of the null objective",
    )
    axis.set_xticks([step for step in STEPS if 0.8 * min(x) <= step <= 1.2 * max(x)])
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(lambda x, place: "")
    axis.set_title("Round by round", fontweight="bold")
    axis.legend(loc="lower left")


def draw_eps(axis: Any, rows: list[dict[str, Any]]) -> None:
    """Draw the requested, the certified and the true distance."""
    x = [row["at"] for row in rows]
    axis.plot(x, x, "--", color=matplotlib_page.MUTED, linewidth=1.3, label="requested")
    band(axis, x, rows, "gap", matplotlib_page.BLUES[2], "o-", "certified")
    band(axis, x, rows, "above_best", matplotlib_page.ORANGE, "s--", "true distance")
    axis.set(xscale="log", yscale="log", xlabel="eps", ylabel="of the null objective")
    axis.invert_xaxis()
    axis.set_title("Effect of eps", fontweight="bold")
    axis.legend(loc="lower left")


def draw_models(axis: Any, rows: list[dict[str, Any]]) -> None:
    """Draw P@k of the whole model by eps, as points above that of the smallest eps.

    The time per label is above.
    """
    x, last = [row["eps"] for row in rows], rows[-1]
    for name, colour, mark in zip(
        [name for name in last if name.startswith("P@")], COLOURS, ("o-", "s-", "^-"), strict=True
    ):
        points = [100 * (row[name] - last[name]) for row in rows]
        axis.plot(
            x,
            points,
            mark,
            color=colour,
            markersize=5,
            label=f"{name}, smallest eps {100 * last[name]:.2f} %",
        )
    low, high = axis.get_ylim()
    low, high = min(low, -0.5), max(high, 0.5)
    for row in rows:
        axis.annotate(
            f"{row['ms_a_class']:.2g}",
            (row["eps"], high + 0.08 * (high - low)),
            ha="center",
            fontsize=8,
        )
    axis.annotate(
        "ms per label",
        (x[0] * 1.2, high + 0.18 * (high - low)),
        ha="left",
        fontsize=8,
        color=matplotlib_page.MUTED,
    )
    axis.set(
        xscale="log",
        xlabel="eps",
        ylabel="P@k, points above smallest eps",
        ylim=(low, high + 0.28 * (high - low)),
    )
    axis.invert_xaxis()
    axis.set_title("Effect on predictions", fontweight="bold")
    axis.legend(loc="lower right")


if __name__ == "__main__":
    main()
