"""What `xcray size` foresees from sizes alone, beside what a sample of labels really takes.

`python -m benchmarks.sizing --data DIR [--sets bibtex gnd_tibkat] [--shapes lshtc1 wiki amazon] [--seconds 20]`

Labels are sorted by the cost foreseen and cut into equal groups; one of each is solved, and stands for its group. Seconds are those
of this thread on its core, so others may be at work. Shapes are generated at full size (`benchmarks.shapes`): 15 s, 1.5 GB.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, dataset, in_folder
from benchmarks.shapes import TASKS
from benchmarks.shapes_corpus import generate
from xcray.arrays import frozen
from xcray.data.dataset import Dataset
from xcray.solvers import make_solver
from xcray.train.preflight import entries_of_labels, mapped
from xcray.train.sizing import Data, Wishes, size

GROUPS = 400


def solved(data: Dataset, params: dict[str, Any], seconds: float) -> dict[str, float]:
    """Core seconds and weights of all labels, from a sample that takes about `seconds`."""
    train, solver = data.train, make_solver("ppdsparse", params)
    costs = solver.cost_terms(train.X, train.XT, train.YT) @ np.array(solver.cost_rates)
    order = np.argsort(costs, kind="stable")
    order = order[np.diff(train.YT.indptr)[order] > 0]
    rng = np.random.default_rng(1)
    groups = np.array_split(order, min(GROUPS, len(order)))
    chosen = [(int(rng.choice(group)), len(group)) for group in groups]
    rng.shuffle(chosen)  # type: ignore[arg-type]
    local = solver.load(train.X, train.XT, train.YT, train.weights)
    solver.warm_up()
    solver.solve(local, frozen([chosen[0][0]], np.int32))  # touches the mapped files, which takes its time once
    core, weights, stood_for, n, began = 0.0, 0.0, 0, 0, time.thread_time()
    while n < len(chosen) and time.thread_time() - began <= seconds:
        label, many = chosen[n]
        before = time.thread_time()
        block = solver.solve(local, frozen([label], np.int32))
        core += many * (time.thread_time() - before)
        weights += many * block.W.nnz
        stood_for, n = stood_for + many, n + 1
    scale = len(order) / stood_for
    return {"labels_solved": n, "core_seconds": core * scale, "weights": weights * scale}


def judged(name: str, data: Dataset, params: dict[str, Any], seconds: float) -> dict[str, Any]:
    """One set: foreseen from N, D, K, nnz and labels a row, beside what happened."""
    train = data.train
    held_out = data.test.n_rows / train.n_rows if data.test is not None else 0.0
    sizes = Data(train.n_rows, data.n_features, data.n_labels, train.X.nnz, train.Y.nnz / train.n_rows, held_out)
    frequencies = np.diff(train.XT.indptr).astype(np.float64)
    found, really = size(sizes, Wishes(cluster=False, cores=1), "ppdsparse", params).training, solved(data, params, seconds)
    row = {
        "set": name,
        "params": params,
        "sizes": sizes._asdict(),
        "overlap": float((frequencies**2).sum() / train.n_rows / train.X.nnz),
        "most": float(data.label_counts.max() / train.n_rows),
        "entries_of_largest_label": int(entries_of_labels(train).max()),
        "core_seconds": [found.core_seconds, really["core_seconds"]],
        "weights": [found.weights, really["weights"]],
        "mapped": [found.mapped, mapped(data)],
        "labels_solved": really["labels_solved"],
    }
    ratios = {what: round(row[what][1] / row[what][0], 2) for what in ("core_seconds", "weights", "mapped")}
    print(f"{name} {params or ''}: really over foreseen {ratios}; {really['core_seconds']:.1f} core seconds", flush=True)
    return row


def main() -> None:
    """Every set, and the JSON."""
    chosen = arguments(
        __doc__ or "",
        sets={"nargs": "*", "default": ["bibtex", "cooking", "news20_bydate", "gutenberg_lcsh", "gnd_tibkat"], "help": "of --data"},
        shapes={"nargs": "*", "default": [], "help": f"of {', '.join(TASKS)}"},
        seconds={"type": float, "default": 20.0, "help": "core seconds for each"},
    )

    def run(folder: Path) -> dict[str, Any]:
        rows = [judged(name, dataset(name, chosen.data, folder), {}, chosen.seconds) for name in chosen.sets if chosen.data]
        for name in chosen.shapes:
            data = generate(TASKS[name].shape, folder / name)
            rows += [judged(name, data, params, chosen.seconds) for params in ({}, TASKS[name].params)]
        return {"benchmark": "sizing", "sets": rows}

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
