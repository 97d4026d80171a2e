"""xcray and LIBLINEAR alternating on the same labels in one process.

The ratio of their times does not depend on the load of the machine.

`python -m benchmarks.peers.paired --data DIR [--sets gutenberg_lcsh:300 gnd_tibkat:60] [--turn 10]`

SET:LABELS draws that many labels stratified by frequency (see `benchmarks.peers.data.sample`). Both
have the data loaded in their own format before. Only the CPU seconds of solving count: xcray with
its defaults and its certificate, LIBLINEAR through scikit-learn's LinearSVC, dual, tol 0.1, as in
`benchmarks.peers`. Other processes on the same core slow both alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.svm import LinearSVC

from benchmarks.harness import dataset, run_benchmark
from benchmarks.peers.data import sample
from benchmarks.peers.worker import cpu_seconds
from xcray.arrays import frozen
from xcray.data.dataset import Dataset, Split
from xcray.solvers import make_solver

C = {"bibtex": 0.01, "mnist": 0.01}  # 1 elsewhere


def turns(name: str, data: Dataset, size: int, turn: int) -> dict[str, Any]:
    """Solve `size` labels with both, `turn` of them at a time."""
    cost, split = C.get(name, 1.0), data.train
    solver = make_solver("ppdsparse", {"C": cost})
    solver.warm_up()
    local, X = solver.load(split.X, split.XT, split.YT), split.X.to_scipy().astype(np.float64)
    labels = np.random.default_rng(0).permutation(sample(data.label_counts, size))
    times = []
    for batch in np.array_split(labels, max(len(labels) // turn, 1)):
        began = cpu_seconds()
        solver.solve(local, frozen(batch, np.int32))
        between = cpu_seconds()
        for label in batch.tolist():
            LinearSVC(C=cost, tol=0.1, dual=True, random_state=0).fit(X, signs(split, label))
        times.append((between - began, cpu_seconds() - between))
    ours, theirs = np.array(times).T
    row = {
        "set": name,
        "labels": len(labels),
        "turns": len(times),
        "xcray_ms": 1e3 * float(ours.sum()) / len(labels),
        "liblinear_ms": 1e3 * float(theirs.sum()) / len(labels),
        "times_faster": float(theirs.sum() / ours.sum()),
        "times_faster_by_turn": np.quantile(
            theirs / np.maximum(ours, 1e-9), [0.25, 0.5, 0.75]
        ).tolist(),
    }
    print(row, flush=True)
    return row


def signs(split: Split, label: int) -> Any:
    """Return (N,) +1 for the rows of a label, -1 for the others."""
    y = np.full(split.n_rows, -1, np.int64)
    y[split.YT.row(label)] = 1
    return y


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Compare on every set."""
    rows = []
    for entry in options.sets or (
        ["gutenberg_lcsh:300", "gnd_tibkat:60"] if options.data else ["synthetic:100"]
    ):
        name, _, size = entry.partition(":")
        data = dataset(name, options.data, (options.cache or folder) / "sets")
        rows.append(turns(name, data, int(size or 100), options.turn))
    return {"benchmark": "peers_paired", "sets": rows}


def main() -> None:
    """Compare on every set and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"sets": ["synthetic:20"]},
        sets={"nargs": "+"},
        turn={"type": int, "default": 10, "help": "labels per turn"},
        cache={"type": Path, "help": "directory of the data sets; default: a temporary one"},
    )


if __name__ == "__main__":
    main()
