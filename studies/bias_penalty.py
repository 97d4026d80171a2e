"""PPDSparse's default of `bias_penalty`: accuracy, weights and time with weaker penalties.

`python -m studies.bias_penalty [--data DIR] [--sets cooking gutenberg_lcsh ...]
[--penalties 1 0.1 0.01] [--row-norm l2] [--C 1] [--json FILE]`

A fifth of the training rows is held out; test rows are not read. All labels are solved with each
penalty in turn, with the other parameters at their defaults. Reported per penalty: CPU ms per
label, weights, measures on the held-out rows in %, and the change of P@1 from the first penalty
with its standard error over these rows.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import arguments, dataset, in_folder
from xcray.arrays import CSR, Float64, Pattern, frozen
from xcray.data.dataset import Dataset
from xcray.data.splits import HashSplit
from xcray.index.search import SearchIndex
from xcray.kernels.sparse import take_pattern_rows, take_rows, transpose, transpose_pattern
from xcray.metrics import evaluate, matches
from xcray.solvers.ppdsparse import PPDSparseSolver

HOLDOUT = 0.2
MEASURES = ("P@1", "P@5", "nDCG@5", "PSP@1")


class Split(NamedTuple):
    """Rows to learn from, X (n, D), XT and YT (K, n), and held-out rows."""

    X: CSR
    XT: CSR
    YT: Pattern
    held_X: CSR
    held_Y: Pattern


def split(data: Dataset) -> Split:
    """Return the training rows in two parts, by a hash of their number."""
    train, held_out = data.train, HashSplit(HOLDOUT).mask(0, data.train.X.n_rows)
    learn, held = (frozen(np.flatnonzero(mask), np.int64) for mask in (~held_out, held_out))
    X = take_rows(train.X, learn)
    return Split(
        X,
        transpose(X),
        transpose_pattern(take_pattern_rows(train.Y, learn)),
        take_rows(train.X, held),
        take_pattern_rows(train.Y, held),
    )


def measure(parts: Split, params: dict[str, Any]) -> tuple[dict[str, Any], Float64]:
    """Return the row of one penalty, and for each held-out row whether its first label is right."""
    solver = PPDSparseSolver(**params)
    state = solver.load(parts.X, parts.XT, parts.YT)
    counts = np.diff(parts.YT.indptr)
    labels = frozen(np.flatnonzero(counts), np.int32)
    solver.solve(state, labels[:1])  # compile or load the kernels
    began = time.thread_time()
    block = solver.solve(state, labels)
    took = time.thread_time() - began
    bias = frozen(block.bias, np.float32)
    index = SearchIndex.build(block.W, bias, row_norm=solver.row_norm)
    held_Y = take_pattern_rows(transpose_pattern(parts.held_Y), frozen(labels, np.int64))
    truth = transpose_pattern(held_Y)
    found = index.query(parts.held_X, min(5, len(labels)))
    n_train = parts.X.n_rows
    measures = evaluate(found.top, truth, ks=(1, 5), label_counts=counts[labels], n_train=n_train)
    row = {
        "penalty": solver.bias_penalty,
        "ms_per_label": round(1e3 * took / len(labels), 3),
        "weights": block.W.nnz,
        "postings_read": round(float(found.postings_read.mean()), 1),
        **{name: round(100.0 * measures[name], 2) for name in MEASURES if name in measures},
    }
    return row, matches(found.top, truth)[:, 0].astype(np.float64)


def compare(parts: Split, penalties: list[float], params: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of all penalties; print each."""
    rows: list[dict[str, Any]] = []
    base: Float64 | None = None
    for penalty in penalties:
        row, hits = measure(parts, {**params, "bias_penalty": penalty})
        base = hits if base is None else base
        change = 100.0 * (hits - base)
        error = change.std(ddof=1) / np.sqrt(len(change))
        rows.append({**row, "change": [round(float(change.mean()), 2), round(float(error), 2)]})
        print("  ", rows[-1], flush=True)
    return rows


def main() -> None:
    """Compare the penalties on every set; print the JSON as the last line."""
    chosen = arguments(
        __doc__ or "",
        sets={"nargs": "+", "default": ["synthetic"]},
        penalties={"nargs": "+", "type": float, "default": [1.0, 0.1, 0.01]},
        row_norm={"default": "none"},
        C={"type": float, "default": 1.0},
        cache={"type": Path, "help": "directory of the data sets; default: a temporary one"},
    )

    def run(folder: Path) -> dict[str, Any]:
        params = {"C": chosen.C, "row_norm": chosen.row_norm}
        result = []
        for name in chosen.sets:
            print(name, params, flush=True)
            parts = split(dataset(name, chosen.data, chosen.cache or folder / "sets"))
            rows = compare(parts, chosen.penalties, params)
            result.append({"set": name, "held_out": parts.held_X.n_rows, "rows": rows})
        return {"study": "bias_penalty", "params": params, "sets": result}

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
