"""Check certificates of PPDSparse against optima that another method finds to high precision.

`python -m benchmarks.training.certificates --data DIR [--sets bibtex cooking ...] [--labels 20]
[--params eps=1e-4 loss=hinge ...]`

A sample of labels, spread over all frequencies, is trained with the defaults and `--params`. From
the exported weights and dual variables the objective and its lower bound are computed again in
float64, without the solver. `benchmarks.training.reference` finds bounds of the optimum. All
figures are relative to a label's null objective (w = 0, best bias), and the largest of the labels:

- gap: the certified gap of the record.
- distance: the objective of the exported weights minus the lower bound of the optimum. It cannot be
  above the gap; `excess` is the largest distance - gap of a label.
- primal_error: the objective of the record minus that of the exported weights, without sign.
- dual_excess: the lower bound of the record minus the upper bound of the optimum. It cannot be
  above 0, except by rounding.
- exported_gap: the gap that follows from the exported weights and the best multiple of the exported
  dual variables. It can be larger than that of the record, whose lower bound is the best of all
  rounds.
- reference_gap: the difference between the two bounds of the optimum.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from benchmarks.harness import dataset, run_benchmark, table
from benchmarks.peers.__main__ import SETS
from benchmarks.peers.data import sample
from benchmarks.training.reference import LabelProblem, solve
from xcray.arrays import frozen
from xcray.data.dataset import Split
from xcray.kernels.sparse import transpose
from xcray.solvers import make_solver

# of the null objective: sums of float32 scores are rounded by this much
ROUNDING = 1e-6
SUPPORTED = {"C", "lam", "tau", "bias_penalty", "loss", "eps", "max_rounds", "max_sweeps", "seed"}


def problem_of(solver: Any, X: Any, split: Split, label: int) -> LabelProblem:
    """Return the problem that `solver` states for a label. X: (N, D) float64."""
    y = np.full(split.n_rows, -1.0)
    y[split.YT.row(label)] = 1.0
    squared = solver.loss == "squared_hinge"
    tau_b = solver.tau * solver.bias_penalty
    return LabelProblem(X, y, squared, solver.lam, solver.tau, tau_b, solver.C)


def best_multiple(problem: LabelProblem, alpha: Any) -> float:
    """Return the largest dual objective at a multiple of alpha, clipped to what is feasible."""

    def value(factor: float) -> float:
        return -problem.point_of(np.clip(factor * alpha, 0.0, problem.upper))[1]

    return -float(min(value(1.0), minimize_scalar(value, bounds=(0.0, 2.0), method="bounded").fun))


def check_label(
    problem: LabelProblem, weights: Any, duals: Any, record: Any, precision: float
) -> dict[str, float]:
    """Compare a trained label with the optimum; figures as in the module's docstring.

    weights: (D,) exported; duals: (N,) exported; record: of the label.
    """
    null, optimum = problem.null_objective(), solve(problem, precision)
    primal = problem.primal(np.append(weights.astype(np.float64), record["bias"]))
    dual = best_multiple(problem, duals.astype(np.float64))
    return {
        "gap": record["gap"] / null,
        "distance": (primal - optimum.dual) / null,
        "excess": (primal - optimum.dual - record["gap"]) / null,
        "primal_error": abs(record["primal"] - primal) / null,
        "dual_excess": (record["dual"] - optimum.primal) / null,
        "exported_gap": (primal - dual) / null,
        "reference_gap": (optimum.primal - optimum.dual) / null,
        "null_error": abs(record["null"] / null - 1.0),
    }


def check(
    name: str, split: Split, labels: Any, params: dict[str, Any], precision: float
) -> dict[str, Any]:
    """Train `labels`, check each certificate, and return the largest figures."""
    if unknown := sorted(set(params) - SUPPORTED):
        raise SystemExit(f"the reference does not know {', '.join(unknown)}")
    solver, began = make_solver("ppdsparse", params), time.process_time()
    block = solver.solve(
        solver.load(split.X, transpose(split.X), split.YT),
        frozen(labels, np.int32),
        keep_duals=True,
    )
    X = split.X.to_scipy().astype(np.float64)
    W, duals = block.W.to_scipy(), block.duals.to_scipy()
    rows = [
        check_label(
            problem_of(solver, X, split, int(label)),
            W[[at]].toarray()[0],
            duals[[at]].toarray()[0],
            block.records[at],
            precision,
        )
        for at, label in enumerate(labels)
    ]
    largest = {key: float(max(row[key] for row in rows)) for key in rows[0]}
    out = {
        "set": name,
        "labels": len(rows),
        "eps": solver.eps,
        "within_eps": sum(bool(row["gap"] <= solver.eps) for row in rows),
        "within_gap": sum(bool(row["excess"] <= ROUNDING) for row in rows),
        **largest,
        "seconds": time.process_time() - began,
    }
    print({k: f"{v:.3g}" if isinstance(v, float) else v for k, v in out.items()}, flush=True)
    return out


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Check every set."""
    params = dict(each.split("=", 1) for each in options.params)
    place, rows = options.cache or folder / "sets", []
    for name in options.sets or (SETS if options.data else ["synthetic"]):
        data = dataset(name, options.data, place)
        labels = sample(data.label_counts, options.labels)
        rows.append(check(name, data.train, labels, params, options.precision))
        print(table(rows[-1:], list(rows[-1])), flush=True)
    return {"benchmark": "certificates", "params": params, "sets": rows, "rounding": ROUNDING}


def main() -> None:
    """Check every set and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"sets": ["synthetic"], "labels": 5},
        sets={"nargs": "+"},
        labels={"type": int, "default": 20, "help": "labels of each set"},
        params={"nargs": "+", "default": [], "help": "parameters of the solver, NAME=VALUE"},
        precision={"type": float, "default": 1e-8, "help": "reference_gap to reach"},
        cache={"type": Path, "help": "directory of the data sets; default: a temporary one"},
    )


if __name__ == "__main__":
    main()
