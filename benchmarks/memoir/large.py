"""MEMOIR and other solvers on gnd_tibkat: rates, accuracy and weights with many classes.

python -m benchmarks.memoir.large --data DIR [--samples first,all] [--methods memoir,ppdsparse,...]
    [--rounds 25] [--group 1000] [--json FILE]

first: the first label of each row is its class (15,450 classes), test rows likewise. all: one
sample per row and label (35,116 classes); a test row counts as right if its best class is one of
its labels, and macro-F1 is over the pairs of a row and its best class. Rows have length 1. The
number of rounds and other settings of MEMOIR can be tried on every fifth training row, left out
(--validation). Seconds are those of one core for a training, without reading, kernels compiled.
Prints a line per method, and one JSON line.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from benchmarks.common import arguments, dataset, in_folder
from benchmarks.memoir.__main__ import LARGE, to_length_1
from xcray.arrays import CSR, Pattern, csr, frozen
from xcray.kernels.sparse import take_pattern_rows, transpose, transpose_pattern
from xcray.solvers import make_solver
from xcray.solvers.memoir.solver import MemoirSolver

CHUNK = 200  # rows scored at once
METHODS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "memoir": ("memoir", {}),
    "memoir-l1-1e-8": ("memoir", {"penalty": "l1", "lam": 1e-8}),
    "memoir-l1-1e-6": ("memoir", {"penalty": "l1", "lam": 1e-6}),
    "memoir-l1-1e-4": ("memoir", {"penalty": "l1", "lam": 1e-4}),
    "memoir-l1-1e-3": ("memoir", {"penalty": "l1", "lam": 1e-3}),
    "ppdsparse": ("ppdsparse", {}),
    "pdsparse": ("pdsparse", {}),
    "crammer-singer": ("crammer-singer", {}),
}


class LabelledRows(NamedTuple):
    """Rows X (n, D), a SciPy matrix, and their labels Y (n, K)."""

    X: Any
    Y: Pattern


def load(samples: str, data: Path, folder: Path) -> tuple[LabelledRows, LabelledRows]:
    """Return training and test rows that have a label; with the first label only for "first"."""
    source = dataset(LARGE, data, folder)
    train, test = (_rows(source[part].X, source[part].Y, samples) for part in ("train", "test"))
    return train, test


def _rows(X: CSR, Y: Pattern, samples: str) -> LabelledRows:
    """Return the rows of a part that have a label."""
    rows = np.flatnonzero(np.diff(Y.indptr))
    Y = take_pattern_rows(Y, rows)
    if samples == "first":
        n = len(rows)
        Y = Pattern(
            frozen(np.arange(n + 1), np.int64), frozen(Y.indices[Y.indptr[:-1]], np.int32), Y.n_cols
        )
    return LabelledRows(to_length_1(X.to_scipy()[rows].astype(np.float64)), Y)


def leave_out(rows: LabelledRows) -> tuple[LabelledRows, LabelledRows]:
    """Return four fifths of the rows for training, and every fifth for validation."""
    is_left_out = np.arange(rows.X.shape[0]) % 5 == 4
    train, validation = (
        LabelledRows(rows.X[part], take_pattern_rows(rows.Y, np.flatnonzero(part)))
        for part in (~is_left_out, is_left_out)
    )
    return train, validation


def train(rows: LabelledRows, solver: Any) -> dict[str, Any]:
    """Return weights (K, D), bias (K,), seconds and number of weights of a training."""
    matrix = sp.csr_matrix(rows.X)
    X = csr(matrix.indptr, matrix.indices, matrix.data.astype(np.float32), matrix.shape[1])
    YT = transpose_pattern(rows.Y)
    solver.warm_up()
    begin = time.process_time()
    labels = frozen(np.arange(rows.Y.n_cols), np.int32)
    local = solver.load(X, transpose(X), YT)
    block = solver.solve(local, labels)
    seconds = time.process_time() - begin
    figures: dict[str, Any] = {"seconds": round(seconds, 1), "weights": block.W.nnz}
    if isinstance(solver, MemoirSolver):
        classes = int((np.diff(YT.indptr) > 0).sum())
        drawn = int(block.records["rounds"].max()) * solver.batch_size(classes)
        figures |= {"samples": drawn, "samples_per_second": round(drawn / seconds)}
    return {"W": block.W.to_scipy(), "bias": block.bias, "figures": figures}


def score(model: Mapping[str, Any], rows: LabelledRows) -> dict[str, float]:
    """Return accuracy and macro-F1 in percent: see the module."""
    WT = model["W"].T.tocsr()
    best = np.concatenate(
        [
            np.asarray((rows.X[lo : lo + CHUNK] @ WT).todense() + model["bias"]).argmax(axis=1)
            for lo in range(0, rows.X.shape[0], CHUNK)
        ]
    )
    owners = np.repeat(np.arange(len(best)), np.diff(rows.Y.indptr))
    hits = rows.Y.indices[best[owners] == rows.Y.indices]
    tested, predicted, right = (
        np.bincount(each, minlength=rows.Y.n_cols) for each in (rows.Y.indices, best, hits)
    )
    occurs = tested > 0
    f1 = 2.0 * right[occurs] / (tested + predicted)[occurs]
    return {
        "accuracy": round(100.0 * len(hits) / len(best), 2),
        "macro_f1": round(100.0 * float(f1.mean()), 2),
    }


def make(method: str, options: argparse.Namespace) -> Any:
    """Return the solver of a method."""
    name, params = METHODS[method]
    if name == "memoir":
        params = {**params, "rounds": options.rounds, "group": options.group, "eta0": options.eta0}
    return make_solver(name, params)


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure all methods."""
    out: dict[str, Any] = {}
    for samples in options.samples.split(","):
        rows, test = load(samples, options.data, folder)
        if options.validation:
            rows, test = leave_out(rows)
        classes = int((np.bincount(rows.Y.indices) > 0).sum())
        out[samples] = {"labels": classes, "samples": rows.Y.nnz}
        for method in options.methods.split(","):
            model = train(rows, make(method, options))
            out[samples][method] = figures = {**score(model, test), **model["figures"]}
            print(samples, method, figures, flush=True)
    return out


def main() -> None:
    """Run the benchmark."""
    own: Mapping[str, Mapping[str, Any]] = {
        "samples": {"default": "first,all", "help": "samples of a row"},
        "methods": {"default": "memoir,ppdsparse,pdsparse", "help": ", ".join(METHODS)},
        "rounds": {"type": int, "default": 25, "help": "rounds of MEMOIR"},
        "group": {"type": int, "default": 1000, "help": "samples per group of MEMOIR"},
        "eta0": {"type": float, "default": 0.1, "help": "first step size of MEMOIR"},
        "validation": {"action": "store_true", "help": "score training rows that are left out"},
    }
    options = arguments(__doc__ or "", **own)
    measure: Callable[[Path], dict[str, Any]] = lambda folder: run(options, folder)  # noqa: E731
    with threadpool_limits(limits=1, user_api="blas"):
        in_folder(measure, options.json)


if __name__ == "__main__":
    main()
