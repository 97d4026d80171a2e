"""Compare `--auto`, with and without label groups, with the defaults on rows that none has seen.

`python -m benchmarks.training.auto --data DIR [--sets cooking ...] [--splits 5] [--rows 20000]
[--groups auto]`

All rows of a set, or --rows of them, are split into --splits parts. Each part in turn is the test
rows; `--auto` chooses on held-out rows of the others. The gain is the difference of the measure
that it chooses by, in points, with its paired standard error over the test rows. "groups" is what
groups of similar labels (--groups; none: not tried) gain over the chosen setting, and the weight
that their training has chosen on held-out rows.
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
from xcray.estimators import PPDSparse
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.measures import evaluate
from xcray.training.selection.coordinate_search import Selector
from xcray.training.selection.held_out import selection_data

SETS = ["cooking", "bibtex", "clef_imclef07a", "news20_bydate", "gutenberg_lcsh", "gnd_tibkat"]
GROUPS = 50  # of test rows, from which the standard error is estimated
COLUMNS = (
    "set",
    "split",
    "default",
    "gain",
    "error",
    "groups_gain",
    "groups_error",
    "weight",
    "trainings",
    "chosen",
)


def labelled_rows(data: Dataset, limit: int) -> tuple[CSR, Pattern]:
    """Return at most `limit` rows of all parts that have a label, in a random order."""
    parts = [part for part in (data.train, data.test) if part is not None]
    X = csr_from(sp.vstack([part.X.to_scipy() for part in parts], format="csr"))
    Y = pattern_from(sp.vstack([part.Y.to_scipy() for part in parts], format="csr"))
    rows = np.flatnonzero(np.diff(Y.indptr))
    rows = frozen(np.random.default_rng(0).permutation(rows)[:limit], np.int64)
    return take_rows(X, rows), take_pattern_rows(Y, rows)


def values(
    params: dict[str, Any], rows: tuple[CSR, Pattern], test: tuple[CSR, Pattern], groups: str
) -> tuple[Float64, float]:
    """Train; return the measure of each group of test rows, (GROUPS,) float64, and the weight.

    groups: of similar labels. weight: of these groups, 0 without.
    """
    (X, Y), (test_X, test_Y) = rows, test
    labels = np.flatnonzero(np.bincount(Y.indices, minlength=Y.n_cols))
    model = PPDSparse(**params, groups=groups).fit(X.to_scipy(), Y.to_scipy()[:, labels])
    top = model.predict_top_k(test_X.to_scipy(), k=min(5, len(labels)))
    found = frozen(labels[top.labels], np.int32)
    out = []
    for group in range(GROUPS):
        part = np.arange(group, test_X.n_rows, GROUPS)
        best = TopK(found[part], frozen(top.scores[part], np.float64))
        truth = take_pattern_rows(test_Y, frozen(part, np.int64))
        measures = evaluate(best, truth, ks=(1, best.labels.shape[1]))
        out.append(100 * (measures["P@1"] + measures[f"nDCG@{best.labels.shape[1]}"]))
    return np.array(out), 0.0 if model.groups_ is None else model.groups_.weight


def paired(name: str, differences: Float64) -> dict[str, float]:
    """Return the mean of the differences of groups of rows, and its standard error."""
    error = differences.std(ddof=1) / np.sqrt(GROUPS)
    return {
        f"{name}gain": round(float(differences.mean()), 3),
        f"{name}error": round(float(error), 3),
    }


def compare(name: str, X: CSR, Y: Pattern, options: Any) -> list[dict[str, Any]]:
    """Return a row per split: the measure of the defaults, the gains and their errors."""
    splits = options.splits
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
        plain, _ = values({}, rows, test, "none")
        best = values(chosen, rows, test, "none")[0] if chosen else plain
        began = time.process_time()
        grouped, weight = values(chosen, rows, test, options.groups)
        more = time.process_time() - began
        usual = report["settings"][0]["params"]
        row = {
            "set": name,
            "split": split,
            "default": round(float(plain.mean()), 2),
            **paired("", best - plain),
            **paired("groups_", grouped - best),
            "weight": weight,
            "groups_cpu_seconds": round(more, 2),
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
        rows += compare(name, X, Y, options)
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
        groups={"default": "auto"},
    )


if __name__ == "__main__":
    main()
