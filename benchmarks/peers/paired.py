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

from benchmarks.common import arguments, dataset, in_folder
from benchmarks.peers.data import sample
from benchmarks.peers.worker import cpu_seconds
from benchmarks.training.objective import signs
from xcray.arrays import frozen
from xcray.data.dataset import Dataset
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


def main() -> None:
    """Compare on every set and print the JSON."""
    chosen = arguments(
        __doc__ or "",
        sets={"nargs": "+"},
        turn={"type": int, "default": 10, "help": "labels per turn"},
        cache={
            "type": Path,
            "help": "directory of the data sets; default: a temporary one",
        },
    )

    def run(folder: Path) -> dict[str, Any]:
        rows = []
        for entry in chosen.sets or (
            ["gutenberg_lcsh:300", "gnd_tibkat:60"] if chosen.data else ["synthetic:100"]
        ):
            name, _, size = entry.partition(":")
            data = dataset(name, chosen.data, (chosen.cache or folder) / "sets")
            rows.append(turns(name, data, int(size or 100), chosen.turn))
        return {"benchmark": "peers_paired", "sets": rows}

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
