"""Compare `--auto` with the defaults on rows that neither has seen.

`python -m benchmarks.training.auto --data DIR [--sets cooking ...] [--splits 5] [--rows 20000]`

All rows of a set, or --rows of them, are split into --splits parts. Each part in turn is the test
rows; `--auto` chooses on held-out rows of the others. The gain is the difference of the measure
that it chooses by, in points, with its paired standard error over the test rows.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.harness import dataset, run_benchmark, table
from xcray.api.options import DEFAULT_MEASURE
from xcray.arrays import CSR, Float64, Pattern, TopK, csr_from, frozen, pattern_from
from xcray.data.dataset import Dataset
from xcray.index.search import SearchIndex
from xcray.kernels.sparse import take_pattern_rows, take_rows, transpose, transpose_pattern
from xcray.measures import evaluate
from xcray.solvers import make_solver
from xcray.training.selection.coordinate_search import Selector
from xcray.training.selection.held_out import selection_data

SETS = ["cooking", "bibtex", "clef_imclef07a", "news20_bydate", "gutenberg_lcsh", "gnd_tibkat"]
GROUPS = 50  # of test rows, from which the standard error is estimated
COLUMNS = ("set", "split", "default", "gain", "error", "trainings", "chosen")


def labelled_rows(data: Dataset, limit: int) -> tuple[CSR, Pattern]:
    """Return at most `limit` rows of all parts that have a label, in a random order."""
    parts = [part for part in (data.train, data.test) if part is not None]
    X = csr_from(sp.vstack([part.X.to_scipy() for part in parts], format="csr"))
    Y = pattern_from(sp.vstack([part.Y.to_scipy() for part in parts], format="csr"))
    rows = np.flatnonzero(np.diff(Y.indptr))
    rows = frozen(np.random.default_rng(0).permutation(rows)[:limit], np.int64)
    return take_rows(X, rows), take_pattern_rows(Y, rows)


def values(params: dict[str, Any], rows: tuple[CSR, Pattern], test: tuple[CSR, Pattern]) -> Float64:
    """Train and return the measure of each group of test rows: (GROUPS,) float64."""
    (X, Y), (test_X, test_Y) = rows, test
    solver: Any = make_solver("ppdsparse", params)
    YT = transpose_pattern(Y)
    labels = frozen(np.flatnonzero(np.diff(YT.indptr)), np.int32)
    block = solver.solve(solver.load(X, transpose(X), YT, None), labels)
    index = SearchIndex.build(block.W, frozen(block.bias, np.float32), row_norm=solver.row_norm)
    top = index.query(test_X, min(5, len(labels))).top
    found = frozen(labels[top.labels], np.int32)
    out = []
    for group in range(GROUPS):
        part = np.arange(group, test_X.n_rows, GROUPS)
        best = TopK(found[part], frozen(top.scores[part], np.float64))
        truth = take_pattern_rows(test_Y, frozen(part, np.int64))
        measures = evaluate(best, truth, ks=(1, best.labels.shape[1]))
        out.append(100 * (measures["P@1"] + measures[f"nDCG@{best.labels.shape[1]}"]))
    return np.array(out)


def compare(name: str, X: CSR, Y: Pattern, splits: int) -> list[dict[str, Any]]:
    """Return a row per split: the measure of the defaults, the gain of `--auto` and its error."""
    out = []
    for split in range(splits):
        is_test = np.arange(X.n_rows) % splits == split
        learn, held = (frozen(np.flatnonzero(part), np.int64) for part in (~is_test, is_test))
        rows = (take_rows(X, learn), take_pattern_rows(Y, learn))
        test = (take_rows(X, held), take_pattern_rows(Y, held))
        began = time.process_time()
        chosen, report = Selector(
            "ppdsparse", selection_data(*rows, None), {}, DEFAULT_MEASURE, 1
        ).run()
        seconds = time.process_time() - began
        plain = values({}, rows, test)
        best = values(chosen, rows, test) if chosen else plain
        usual = report["settings"][0]["params"]
        row = {
            "set": name,
            "split": split,
            "default": round(float(plain.mean()), 2),
            "gain": round(float((best - plain).mean()), 3),
            "error": round(float((best - plain).std(ddof=1) / np.sqrt(GROUPS)), 3),
            "trainings": report["trainings"],
            "cpu_seconds": round(seconds, 2),
            "settings": len(report["settings"]),
            "ended": report["ended"],
            "chosen": {k: v for k, v in chosen.items() if v != usual[k]},
        }
        out.append(row)
        print(table([row], COLUMNS).splitlines()[-1], flush=True)
    return out


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Compare on all splits of all sets."""
    rows = []
    for name in options.sets:
        X, Y = labelled_rows(dataset(name, options.data, folder), options.rows)
        rows += compare(name, X, Y, options.splits)
    print(table(rows, COLUMNS), flush=True)
    worse = [row for row in rows if row["gain"] < -row["error"]]
    return {"benchmark": "auto", "splits": rows, "worse": len(worse)}


def main() -> None:
    """Compare and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"sets": ["synthetic"], "splits": 2, "rows": 1000},
        sets={"nargs": "+", "default": SETS},
        splits={"type": int, "default": 5},
        rows={"type": int, "default": 20_000},
    )


if __name__ == "__main__":
    main()
