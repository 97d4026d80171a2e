"""Update models to changed rows, and train on the same rows, in one process.

`python -m benchmarks.training.updates --data DIR [--sets gutenberg_lcsh gnd_tibkat]
[--shares 0.001 0.01 0.05] [--corrections 100] [--row 10] [--check 2000]`

For each share, rows drawn at random are added to a model of all others, and removed from a model of
all; `corrections` rows get one label of another row in place of one of theirs. `row` updates of 1 %
follow each other. CPU seconds of the process, with loading and publishing:

- cpu_share: of the update, in percent of a full training on the changed rows, which also evaluates
  its model, as an update does on request.
- evaluated_share: of the update with the evaluation.
- solve_share: the seconds of the solver alone, in percent of those of the full training.
- untouched, solved, new: labels of each kind; bytes: whether untouched labels kept their bytes.
- P@1 and others: of the update minus of the full training, in points.
- certified: share of `check` labels (0: all) whose gap is at most eps by a computation in float64
  that shares no code with the solver: the objective of the published weights and biases, minus the
  dual objective of the stored dual variables, or the recorded bound where that one is better.
- by_duals: the same by the stored dual variables alone.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import dataset, run_benchmark, table
from benchmarks.peers.data import sample
from xcray.data.dataset import Dataset
from xcray.data.delta.rows import make_delta
from xcray.kernels.sparse import take_rows
from xcray.measures import evaluate
from xcray.model.model import Model
from xcray.solvers import make_solver
from xcray.training import TrainSpec, train
from xcray.training.edit.update import update_model

MEASURES = ("P@1", "P@3", "P@5")
CHECKED = 200  # labels whose scores of all rows are in memory


class Runs:
    """Trainings and updates in a folder, with their CPU seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0

    def path(self, name: str) -> Path:
        """Return a new path."""
        self.number += 1
        return self.folder / f"{name}-{self.number}"

    def train(self, data: Dataset) -> tuple[Model, float]:
        """Return a model with dual variables, and its CPU seconds."""
        began, out = time.process_time(), self.path("model")
        spec = TrainSpec(str(data.path), keep_duals=True)
        train(spec, run_dir=self.path("run"), out=out)
        return Model.open(out), time.process_time() - began

    def update(self, model: Model, data: Dataset) -> tuple[Model, float]:
        """Return the updated model, and its CPU seconds."""
        began, out = time.process_time(), self.path("model")
        update_model(model.path, data.path, out)
        return Model.open(out), time.process_time() - began


def measured(model: Model, data: Dataset) -> tuple[dict[str, float], float]:
    """Return measures on the held-out rows, and the CPU seconds that they take."""
    began, test = time.process_time(), data.test
    top = model.search.query(test.X, 5, threads=os.cpu_count()).top
    counts, n = data.label_counts, data.train.n_rows
    measures = evaluate(top, test.Y, ks=(1, 3, 5), label_counts=counts, n_train=n)
    return measures, time.process_time() - began


def add_rows(data: Dataset, rows: Any, runs: Runs) -> tuple[Dataset, Dataset]:
    """Return the data set without the rows, and a changed one to which they are added."""
    others = np.setdiff1d(np.arange(data.train.n_rows), rows)
    base = make_delta(data, runs.path("base"), remove=rows)
    return base, make_delta(
        base, runs.path("data"), add=make_delta(data, runs.path("rows"), remove=others)
    )


def correct(data: Dataset, rows: Any, rng: Any, runs: Runs) -> Dataset:
    """Return the data set in which each of the rows has a label of another row for one of its."""
    names, Y, changes = data.label_names.to_pylist(), data.train.Y, {}
    for row in rows:
        other = int(rng.integers(data.train.n_rows))
        labels = {*Y.row(row)[1:].tolist(), *Y.row(other)[:1].tolist()}
        if labels:
            changes[int(row)] = [names[k] for k in sorted(labels)]
    return make_delta(data, runs.path("data"), relabel=changes)


def check(model: Model, data: Dataset, n_labels: int) -> dict[str, float]:
    """Return the shares of certified labels, see the module's docstring."""
    counts, recorded = data.label_counts, model.label_table["dual"].to_numpy()
    labels = sample(counts, n_labels) if n_labels else np.flatnonzero(counts)
    certified = by_duals = 0
    for first in range(0, len(labels), CHECKED):
        some = labels[first : first + CHECKED]
        primal, dual, allowed = bounds(model, data, some)
        certified += int((primal - np.maximum(dual, recorded[some]) <= allowed).sum())
        by_duals += int((primal - dual <= allowed).sum())
    return {"certified": certified / len(labels), "by_duals": by_duals / len(labels)}


def bounds(model: Model, data: Dataset, labels: Any) -> tuple[Any, Any, Any]:
    """Return primal and dual objective, and the allowed gap of labels, from their definitions.

    Float64. For v = sum_i alpha_i y_i x_i, the dual objective is sum_i alpha_i - alpha_i^2 / (4 C)
    - tau/2 |soft(v, lam) / tau|^2 - (sum_i alpha_i y_i)^2 / (2 tau_b).
    """
    solver = make_solver(model.manifest["solver"], model.manifest["params"])
    tau_b, C = solver.tau * solver.bias_penalty, solver.C
    X = data.train.X.to_scipy().astype(np.float64)
    Y = data.train.YT.to_scipy()[labels].astype(np.float64)
    W, b = model.W.to_scipy()[labels].astype(np.float64), model.b[labels].astype(np.float64)
    z = X @ W.toarray().T + (1.0 + b)
    positives = Y.nonzero()[::-1]
    z[positives] = 2.0 - z[positives]
    np.maximum(0.0, z, out=z)
    primal = solver.lam * abs(W).sum(1).A1 + 0.5 * solver.tau * W.power(2).sum(1).A1
    primal += C * np.einsum("ij,ij->j", z, z) + 0.5 * tau_b * b * b
    alpha = model.duals.to_scipy()[labels].astype(np.float64)
    signed = 2.0 * alpha.multiply(Y).tocsr() - alpha
    v = (signed @ X).tocsr()
    v.data = np.maximum(0.0, abs(v.data) - solver.lam)
    dual = alpha.sum(1).A1 - 0.25 / C * alpha.power(2).sum(1).A1
    dual -= 0.5 / solver.tau * v.power(2).sum(1).A1 + 0.5 / tau_b * signed.sum(1).A1 ** 2
    n, N = Y.sum(1).A1, X.shape[0]
    at = 2.0 * C * (2.0 * n - N) / (2.0 * C * N + tau_b)  # the best bias without weights
    null = C * (n * (1.0 - at) ** 2 + (N - n) * (1.0 + at) ** 2) + 0.5 * tau_b * at * at
    return primal, dual, solver.eps * null * (1.0 + 1e-5)


def compare(
    name: str, before: Model, data: Dataset, runs: Runs, n_checked: int
) -> tuple[dict[str, Any], Model]:
    """Update and train on the same rows; return the figures, and the updated model."""
    after, seconds = runs.update(before, data)
    measures, measuring = measured(after, data)
    full, full_seconds = runs.train(data)
    report = after.manifest["report"]
    counts = report["update"]
    untouched = np.flatnonzero(unchanged(after, before))
    row = {
        "change": name,
        "cpu_full": full_seconds,
        "cpu_share": 100.0 * seconds / full_seconds,
        "evaluated_share": 100.0 * (seconds + measuring) / full_seconds,
        "solve_share": 100.0
        * report.get("core_seconds", 0.0)
        / full.manifest["report"]["core_seconds"],
        **{kind: counts[kind] for kind in ("untouched", "solved", "new")},
        "used": counts["used_removed_rows"],
        "bytes": len(untouched) >= counts["untouched"],
        **{each: 100.0 * (measures[each] - full.measures[each]) for each in MEASURES},
        "certified_labels": report["labels_certified"],
        **check(after, data, n_checked),
    }
    print(table([row], list(row)), flush=True)
    return row, after


def unchanged(after: Model, before: Model) -> Any:
    """Return which labels have the weights and the bias of the earlier model, byte for byte."""
    n = before.n_labels
    old, new = before.W, take_rows(after.W, np.arange(n))
    same = (np.diff(old.indptr) == np.diff(new.indptr)) & (before.b == after.b[:n])
    for k in np.flatnonzero(same):
        same[k] = all(
            a.tobytes() == b.tobytes() for a, b in zip(old.row(k), new.row(k), strict=True)
        )
    return same


def measure_set(name: str, options: Any, folder: Path) -> list[dict[str, Any]]:
    """Return the figures of a data set."""
    complete, rows = dataset(name, options.data, options.cache or folder / "sets"), []
    rng, N = np.random.default_rng(0), complete.train.n_rows
    runs = Runs(folder / name)
    runs.folder.mkdir()
    whole, _ = runs.train(complete)
    for share in options.shares:
        drawn = np.sort(rng.choice(N, max(1, round(share * N)), replace=False))
        base, data = add_rows(complete, drawn, runs)
        before, _ = runs.train(base)
        rows.append(compare(f"add {share:.1%}", before, data, runs, options.check)[0])
        data = make_delta(complete, runs.path("data"), remove=drawn)
        rows.append(compare(f"remove {share:.1%}", whole, data, runs, options.check)[0])
    if options.corrections:
        drawn = rng.choice(N, options.corrections, replace=False)
        data = correct(complete, drawn, rng, runs)
        rows.append(compare("corrections", whole, data, runs, options.check)[0])
    if options.row:
        rows += in_a_row(complete, options, rng, runs)
    return [{"set": name, **row} for row in rows]


def in_a_row(complete: Dataset, options: Any, rng: Any, runs: Runs) -> list[dict[str, Any]]:
    """Return the figures of the last of several updates of 1 %, and their mean CPU share."""
    N = complete.train.n_rows
    drawn = rng.permutation(N)[: options.row * round(0.01 * N)].reshape(options.row, -1)
    data = make_delta(complete, runs.path("base"), remove=np.sort(drawn.ravel()))
    model, seconds = runs.train(data)[0], []
    for rows in drawn:
        added = make_delta(
            complete, runs.path("rows"), remove=np.setdiff1d(np.arange(N), np.sort(rows))
        )
        data = make_delta(data, runs.path("data"), add=added)
        if len(seconds) < options.row - 1:
            model, cpu = runs.update(model, data)
            seconds.append(cpu)
    row, _ = compare(f"{options.row} x 1 %", model, data, runs, options.check)
    return [{**row, "mean_share": 100.0 * float(np.mean(seconds)) / row["cpu_full"]}]


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Measure every set, after an update that loads the kernels."""
    rows = []
    warm, runs = dataset("synthetic", None, folder / "sets"), Runs(folder)
    base, data = add_rows(warm, np.array([0]), runs)
    runs.update(runs.train(base)[0], data)
    for name in options.sets if options.data else ["synthetic"]:
        rows += measure_set(name, options, folder)
    print(table(rows, list(rows[-1])), flush=True)
    wrong = [
        f"{row['set']}, {row['change']}: not certified" for row in rows if row["certified"] < 1
    ]
    wrong += [f"{row['set']}, {row['change']}: bytes changed" for row in rows if not row["bytes"]]
    return {"benchmark": "updates", "rows": rows, "wrong": wrong}


def main() -> None:
    """Measure every set and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"shares": [0.01], "row": 2, "corrections": 5, "check": 20},
        sets={"nargs": "+", "default": ["gutenberg_lcsh", "gnd_tibkat"]},
        shares={"nargs": "*", "type": float, "default": [0.001, 0.01, 0.05]},
        corrections={"type": int, "default": 100, "help": "rows with a corrected label"},
        row={"type": int, "default": 10, "help": "updates of 1 %% that follow each other"},
        check={"type": int, "default": 2000, "help": "labels to check; 0: all"},
        cache={"type": Path, "help": "directory of the data sets; default: a temporary one"},
    )


if __name__ == "__main__":
    main()
