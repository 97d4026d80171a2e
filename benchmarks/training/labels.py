"""Milliseconds of a core that PPDSparse takes per label, and what it visits.

`python -m benchmarks.training.labels [--data DIR] [--sets bibtex cooking ...]`

Solves a sample of labels, spread over all frequencies, with C = 1 and the defaults.
`work_over_floor` is the number of visited entries of X, divided by those of the posting lists of
the final weights: the entries that a single exact scoring pass reads. To compare two revisions, run
it in turn in both checkouts: the sample depends on the data set only.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import dataset, run_benchmark, table
from benchmarks.peers.data import sample
from xcray.arrays import frozen
from xcray.data.dataset import Dataset
from xcray.solvers import make_solver

SETS = {
    "bibtex": 60,
    "cooking": 150,
    "news20_bydate": 20,
    "gutenberg_lcsh": 2000,
    "gnd_tibkat": 500,
}
MEANS = ("rounds", "sweeps", "support", "work", "nnz")


def solve(name: str, data: Dataset, runs: int) -> dict[str, Any]:
    """Solve the sample `runs` times; CPU times are of this thread."""
    solver = make_solver("ppdsparse", {"C": 1.0})
    local = solver.load_dataset(data)
    labels = frozen(sample(data.label_counts, SETS.get(name, 100)), np.int32)
    solver.solve(local, labels[:2])  # compile or load the kernels
    seconds = []
    for _ in range(runs):
        began = time.thread_time()
        block = solver.solve(local, labels)
        seconds.append(time.thread_time() - began)
    records = block.records
    floor = int(np.diff(data.train.XT.indptr)[block.W.indices].sum())
    return {
        "set": name,
        "labels": len(labels),
        "ms_per_label": 1e3 * median(seconds) / len(labels),
        "work_over_floor": float(records["work"].sum()) / floor,
        "largest_gap": solver.largest_gap(records),
        **{field: float(records[field].mean()) for field in MEANS},
    }


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Measure every set."""
    place, rows = options.cache or folder / "sets", []
    for name in options.sets or (list(SETS) if options.data else ["synthetic"]):
        rows.append(solve(name, dataset(name, options.data, place), options.runs))
        print(table(rows[-1:], list(rows[-1])), flush=True)
    return {"benchmark": "labels", "sets": rows}


def main() -> None:
    """Measure every set and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"sets": ["synthetic"], "runs": 1},
        sets={"nargs": "+"},
        runs={"type": int, "default": 3},
        cache={"type": Path, "help": "directory of the data sets; default: a temporary one"},
    )


if __name__ == "__main__":
    main()
