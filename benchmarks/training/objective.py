"""Compare xcray's objective with LIBLINEAR's, class by class, and check every certificate.

`python -m benchmarks.training.objective [--data DIR] [--sets bibtex cooking ...]
[--certify gnd_tibkat ...]`

With lam = 0 and bias_penalty = 1 both minimise
1/2 (|w|^2 + b^2) + C sum_i max(0, 1 - y_i (w.x_i + b))^2  (LIBLINEAR: intercept_scaling = 1).
Both solutions, xcray's as stored in float32, are evaluated by this formula in float64. xcray runs
with eps 1e-4, LIBLINEAR with tol 1e-6. Rows of sets in NORMALISED are scaled to length 1 first,
because LIBLINEAR does not converge on raw counts. Large sets are compared on a sample of labels
stratified by frequency. --certify names sets of which all labels are trained with the defaults, to
check that every class's duality gap is at most eps times its null objective.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from benchmarks.common import arguments, dataset, in_folder
from benchmarks.peers.data import sample
from xcray.arrays import CSR, csr_from, frozen
from xcray.data.dataset import Split
from xcray.kernels.sparse import transpose
from xcray.solvers import make_solver
from xcray.solvers.solved_labels import SolvedLabels

SETS = ("bibtex", "cooking", "news20_bydate", "gutenberg_lcsh")
C = {"bibtex": 0.01, "mnist": 0.01}  # 1 elsewhere
NORMALISED = ("news20_bydate", "clef_imclef07a")
SAMPLE = 200  # labels of a set with more than FEW
FEW = 2000
BAR = 1e-3


def rows_of(name: str, split: Split) -> CSR:
    """Return X, with rows of length 1 if the set is in NORMALISED."""
    if name not in NORMALISED:
        return split.X
    X = split.X.to_scipy().astype(np.float64)
    lengths = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    return csr_from(sp.diags_array(1.0 / np.maximum(lengths, 1e-30)) @ X)


def solved(X: CSR, split: Split, labels: Any, params: dict[str, Any]) -> SolvedLabels:
    """Return xcray's solution of `labels`."""
    solver = make_solver("ppdsparse", params)
    local = solver.load(X, transpose(X), split.YT)
    return solver.solve(local, frozen(labels, np.int32))


def signs(split: Split, label: int) -> Any:
    """Return (N,) +1 for the rows of a label, -1 for the others."""
    y = np.full(split.n_rows, -1, np.int64)
    y[split.YT.row(label)] = 1
    return y


def objective(X: sp.csr_matrix, y: Any, w: Any, b: float, cost: float) -> float:
    """Return the primal objective at (w, b), in float64.

    X: (N, D) float64; y: (N,) of +1 and -1; w: (D,).
    """
    w = np.asarray(w, np.float64)
    losses = np.maximum(0.0, 1.0 - y * (X @ w + b))
    return float(0.5 * (w @ w + b * b) + cost * (losses @ losses))


def liblinear(X: sp.csr_matrix, y: Any, cost: float, tol: float) -> tuple[Any, float, bool]:
    """Return w, b, and whether LIBLINEAR's dual solver converged."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model = LinearSVC(C=cost, tol=tol, dual=True, max_iter=100_000, random_state=0).fit(X, y)
    return model.coef_[0], float(model.intercept_[0]), not caught


def compare(name: str, split: Split, labels: Any, eps: float, tol: float) -> dict[str, Any]:
    """Compare the objectives of every label; differences are relative to LIBLINEAR's."""
    cost, X = C.get(name, 1.0), rows_of(name, split)
    problem = {"C": cost, "lam": 0.0, "bias_penalty": 1.0}
    block = solved(X, split, labels, {**problem, "eps": eps, "max_rounds": 1000, "max_sweeps": 200})
    X64, weights = X.to_scipy().astype(np.float64), block.W.to_scipy().astype(np.float64)
    ours, theirs, converged = np.zeros(len(labels)), np.zeros(len(labels)), 0
    for place, label in enumerate(labels.tolist()):
        y = signs(split, label)
        w, b, fine = liblinear(X64, y, cost, tol)
        ours[place] = objective(
            X64, y, weights[[place]].toarray()[0], float(block.bias[place]), cost
        )
        theirs[place] = objective(X64, y, w, b, cost)
        converged += fine
    difference = (ours - theirs) / theirs
    row = {
        "set": name,
        "labels": len(labels),
        "normalised": name in NORMALISED,
        "liblinear_converged": converged,
        "largest": float(np.abs(difference).max()),
        "median": float(np.median(np.abs(difference))),
        "ours_above_at_most": float(difference.max()),
        "ours_below_at_most": float(-difference.min()),
        "within_bar": int((np.abs(difference) <= BAR).sum()),
        "record_differs_at_most": float(np.abs(block.records["primal"] / ours - 1.0).max()),
        "differences": difference.tolist(),
        **certificates(block, eps),
    }
    print({key: value for key, value in row.items() if key != "differences"}, flush=True)
    return row


def certificates(block: SolvedLabels, eps: float) -> dict[str, Any]:
    """Return how many classes have gap <= eps times the null objective, and the largest ratio."""
    with_rows = block.records["positives"] > 0
    quotient = block.records["gap"][with_rows] / block.records["null"][with_rows]
    return {
        "eps": eps,
        "labels": int(with_rows.sum()),
        "certified": int((quotient <= eps).sum()),
        "largest_gap": float(quotient.max()),
    }


def certify(name: str, split: Split) -> dict[str, Any]:
    """Train all labels of a set with the defaults."""
    params = {"C": C.get(name, 1.0)}
    block = solved(split.X, split, np.arange(split.YT.n_rows), params)
    row = {"set": name, **certificates(block, make_solver("ppdsparse", params).eps)}
    print(row, flush=True)
    return row


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw every class's difference, sorted, one line per set; the limit is a dashed line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for row in rows:
        values = np.sort(np.abs(row["differences"]))
        axis.plot(
            np.linspace(0, 100, len(values)),
            np.maximum(values, 1e-12),
            label=f"{row['set']} ({row['labels']} classes)",
        )
    axis.axhline(BAR, color="black", linewidth=0.8, linestyle="--")
    axis.set(
        yscale="log",
        xlabel="classes (%), sorted",
        ylabel="|difference| of the objectives,\nrelative to LIBLINEAR's",
    )
    axis.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Compare every set and print the JSON."""
    chosen = arguments(
        __doc__ or "",
        sets={"nargs": "+"},
        certify={"nargs": "*", "default": []},
        cache={
            "type": Path,
            "help": "directory of the data sets; default: a temporary one",
        },
        eps={"type": float, "default": 1e-4},
        tol={"type": float, "default": 1e-6},
    )

    def run(folder: Path) -> dict[str, Any]:
        place, rows = (chosen.cache or folder) / "sets", []
        for name in chosen.sets or (SETS if chosen.data else ["synthetic"]):
            data = dataset(name, chosen.data, place)
            labels = sample(
                data.label_counts, SAMPLE if data.n_labels > FEW or not chosen.data else FEW
            )
            rows.append(compare(name, data.train, labels, chosen.eps, chosen.tol))
        sealed = [certify(name, dataset(name, chosen.data, place).train) for name in chosen.certify]
        if chosen.picture:
            picture(rows, chosen.picture)
        return {"benchmark": "objective", "sets": rows, "certified": sealed, "bar": BAR}

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
