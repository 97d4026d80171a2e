"""Compare PPDSparse with PD-Sparse: core seconds, P@k, weights and gap of both.

`python -m benchmarks.training.pdsparse [--data DIR]
[--sets synthetic bibtex cooking news20_bydate gutenberg_lcsh]`

The PPDSparse paper compares with PD-Sparse, its predecessor. Each set is solved by both with lam
0.01 and C 1, and with the other settings in SETTINGS. A gap is relative to the objective of W = 0:
for PPDSparse the sum over the classes, for PD-Sparse that of its single problem. Seconds are
processor seconds of one core. Both stop at eps 0.01.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import arguments, dataset, in_folder
from xcray.data.dataset import Dataset
from xcray.index.inverted import InvertedIndex
from xcray.metrics import evaluate
from xcray.solvers import make_solver

PLAIN = {"lam": 0.01, "C": 1.0}
SETTINGS: dict[str, dict[str, list[dict[str, float]]]] = {  # in addition to PLAIN
    "bibtex": {
        "ppdsparse": [{"lam": 0.01, "C": 0.01}],
        "pdsparse": [{"lam": 0.01, "C": 0.01}, {"lam": 0.01, "C": 0.1}],
    },
    "synthetic": {"pdsparse": [{"lam": 0.1, "C": 1.0}]},
}
PUBLISHED = {  # per cent; PPDSparse paper, table 2; its seconds of PPDSparse are of 100 cores
    "bibtex": {
        "pdsparse": {"P@1": 62.36, "P@3": 36.50, "P@5": 26.50, "seconds": 7.71},
        "ppdsparse": {"P@1": 63.69, "P@3": 39.43, "P@5": 28.67, "seconds": 0.232},
    },
}
COLOURS = {"ppdsparse": "#0072b2", "pdsparse": "#d55e00"}


class Case(NamedTuple):
    """One training: a solver and its parameters."""

    solver: str
    params: dict[str, float]


def cases(name: str) -> list[Case]:
    """Return the cases of a set, the two plain ones first."""
    more = SETTINGS.get(name, {})
    plain = [Case(solver, PLAIN) for solver in COLOURS]
    return plain + [Case(solver, params) for solver in COLOURS for params in more.get(solver, [])]


def solve(data: Dataset, case: Case) -> dict[str, Any]:
    """Run one training on one core, and return its measures on the held-out part."""
    solver = make_solver(case.solver, case.params)
    train = data.train
    local = solver.load(train.X, train.XT, train.YT)
    began = time.process_time()
    block = solver.solve(local, np.arange(data.n_labels, dtype=np.int32))
    seconds = time.process_time() - began
    row = {
        "solver": case.solver,
        "params": case.params,
        "seconds": round(seconds, 3),
        "weights": block.W.nnz,
        "gap": float(block.records["gap"].sum() / max(block.records["null"].sum(), 1e-300)),
        "passes": int(block.records["rounds"].max(initial=0)),
    }
    if data.test is not None:
        index = InvertedIndex.build(block.W, block.bias.astype(np.float32))
        measures = evaluate(index.query(data.test.X, 5), data.test.Y)
        row |= {
            name: round(100.0 * value, 2)
            for name, value in measures.items()
            if name.startswith("P@")
        }
    print(json.dumps(row), flush=True)
    return row


def compare(name: str, data: Dataset) -> dict[str, Any]:
    """Run all cases of one set."""
    print(
        f"-- {name}: {data.train.n_rows} rows, {data.n_features} features, {data.n_labels} labels",
        flush=True,
    )
    runs = [solve(data, case) for case in cases(name)]
    return {
        "set": name,
        "labels": data.n_labels,
        "rows": data.train.n_rows,
        "runs": runs,
        "published": PUBLISHED.get(name, {}),
    }


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the seconds of the plain settings, and P@1 of the better setting, by set.

    The published value is a line.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    place = np.arange(len(rows))
    for shift, solver in ((-0.2, "ppdsparse"), (0.2, "pdsparse")):
        runs = [[run for run in row["runs"] if run["solver"] == solver] for row in rows]
        seconds, best = (
            [each[0]["seconds"] for each in runs],
            [max(run.get("P@1", 0.0) for run in each) for each in runs],
        )
        left.plot(place + shift, seconds, "o", color=COLOURS[solver], markersize=9, label=solver)
        right.bar(place + shift, best, 0.38, color=COLOURS[solver])
        for x, s, p, row in zip(place + shift, seconds, best, rows, strict=True):
            left.annotate(
                f"{s:.3g} s",
                (x, s),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
            right.annotate(f"{p:.1f}", (x, 2.0), color="white", ha="center", fontsize=8)
            if solver in row["published"]:
                right.hlines(
                    row["published"][solver]["P@1"],
                    x - 0.19,
                    x + 0.19,
                    color="black",
                    linewidth=1.5,
                )
    left.set(
        yscale="log",
        title="Seconds of one core, lam 0.01, C 1",
        ylim=(None, 3.0 * left.get_ylim()[1]),
    )
    right.set(title="P@1 in %, the better setting; black: published", ylim=(0, 110))
    for axis in (left, right):
        axis.set_xticks(place, [row["set"] for row in rows], rotation=12)
        axis.set_xlim(-0.6, len(rows) - 0.4)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Compare every set, print the JSON, draw the picture."""
    chosen = arguments(__doc__ or "", sets={"nargs": "+", "default": ["synthetic"]})

    def run(folder: Path) -> dict[str, Any]:
        for solver in COLOURS:
            make_solver(solver, {}).warm_up()
        rows = [compare(name, dataset(name, chosen.data, folder)) for name in chosen.sets]
        if chosen.picture:
            picture(rows, chosen.picture)
        return {"benchmark": "ancestor", "sets": rows}

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
