"""Compare quality and time with scikit-learn's OneVsRestClassifier(LinearSVC).

`python -m benchmarks.training.quality --data DIR [--sets bibtex:0.01 cooking ...]` (name:C; C = 1
by default).

Split, C and loss are the same. Sets with more labels than --peer-labels are not trained completely
by the peer: its time is measured on a random sample of classes, without P@k.
"""

from __future__ import annotations

import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

from benchmarks.harness import dataset, in_turns, run_benchmark, table
from benchmarks.matplotlib_page import figure_page
from xcray.arrays import TopK, frozen
from xcray.data.dataset import Dataset
from xcray.measures import evaluate
from xcray.model.model import Model
from xcray.training import TrainSpec, train

SETS = ["bibtex:0.01", "cooking", "news20_bydate", "clef_imclef07a"]
WHO = ("xcray", "xcray_lam0", "sklearn")
COLUMNS = ("program", "ms_a_class", "P@1", "P@3", "P@5", "megabytes")
SAMPLE = 200  # classes of a large set on which the peer is timed


def xcray_run(data: Dataset, C: float, folder: Path, params: dict[str, Any]) -> dict[str, Any]:
    """Run one serial training; return core seconds, measures and size."""
    for name in ("run", "model"):
        shutil.rmtree(folder / name, ignore_errors=True)
    spec = TrainSpec(str(data.path), params={"C": C, **params}, pool="serial")
    result = train(spec, run_dir=folder / "run", out=folder / "model")
    model = Model.open(result.model_path)
    seconds = result.report["core_seconds"]
    return {
        "seconds": seconds,
        "ms_a_class": 1e3 * seconds / data.n_labels,
        "certified": result.report["labels_certified"],
        "weights": model.nnz,
        "megabytes": round((data.n_labels * 4 + model.nnz * 8) / 1e6, 2),
        **{k: v for k, v in result.measures.items() if k.startswith("P@")},
    }


def peer_run(data: Dataset, C: float, labels: np.ndarray) -> dict[str, Any]:
    """Run LIBLINEAR through scikit-learn on `labels`; return measures if they are all labels."""
    X, Y = (
        data.train.X.to_scipy(),
        data.train.Y.to_scipy()[:, labels].astype(np.int64),
    )  # scikit-learn overflows with int8
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", ConvergenceWarning)
        with warnings.catch_warnings(record=True) as caught:
            model = OneVsRestClassifier(LinearSVC(C=C, random_state=0)).fit(X, Y)
    seconds = time.process_time() - began
    out = {
        "seconds": seconds,
        "ms_a_class": 1e3 * seconds / len(labels),
        "not_converged": len(caught),
    }
    if len(labels) == data.n_labels and data.test is not None:
        scores = model.decision_function(data.test.X.to_scipy())
        scores[
            :, data.label_counts == 0
        ] = (
            -np.inf
        )  # scikit-learn gives labels without training rows a score of 0, above most others
        order = np.argsort(-scores, axis=1, kind="stable")[:, :5]
        top = TopK(
            frozen(order, np.int32), frozen(np.take_along_axis(scores, order, 1), np.float64)
        )
        out |= {k: v for k, v in evaluate(top, data.test.Y).items() if k.startswith("P@")}
        out["megabytes"] = round(8 * data.n_labels * (data.n_features + 1) / 1e6, 2)
    return out


def compare(
    name: str, C: float, data: Dataset, folder: Path, repeats: int, peer_labels: int
) -> dict[str, Any]:
    """Run both, interleaved; return medians of time."""
    whole = data.n_labels <= peer_labels
    labels = (
        np.arange(data.n_labels)
        if whole
        else np.sort(np.random.default_rng(0).permutation(data.n_labels)[:SAMPLE])
    )
    methods: dict[str, Any] = {
        "xcray": lambda: xcray_run(data, C, folder, {}),
        "sklearn": lambda: peer_run(data, C, labels),
    }
    if whole:
        methods["xcray_lam0"] = lambda: xcray_run(data, C, folder, {"lam": 0.0})
    row: dict[str, Any] = {
        "set": name,
        "C": C,
        "labels": data.n_labels,
        "peer_on_all_labels": whole,
        **in_turns(methods, repeats),
    }
    return row | {"times_faster": row["sklearn"]["ms_a_class"] / row["xcray"]["ms_a_class"]}


def picture(result: dict[str, Any], path: Path) -> None:
    """Draw milliseconds per label and P@1, side by side."""
    rows = result["sets"]
    note = "one core; same split, C and loss"
    with figure_page(path, 10, 4.2, "xcray and scikit-learn's LinearSVC", note) as figure:
        left, right = figure.subplots(1, 2)
        place, names = np.arange(len(rows)), [row["set"] for row in rows]
        for shift, who in ((-0.2, "xcray"), (0.2, "sklearn")):
            left.bar(place + shift, [row[who]["ms_a_class"] for row in rows], 0.4, label=who)
            shares = [100 * row[who].get("P@1", 0.0) for row in rows]
            right.bar(place + shift, shares, 0.4, label=who)
        left.set(yscale="log", ylabel="ms per label", xticks=place)
        right.set(ylabel="P@1 (%)", xticks=place)
        for axis in (left, right):
            axis.set_xticklabels(names, rotation=20)
            axis.legend()


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Compare on every set."""
    rows = []
    for entry in options.sets:
        name, _, C = entry.partition(":")
        data = dataset(name, options.data, folder)
        rows.append(
            compare(name, float(C or 1.0), data, folder, options.repeats, options.peer_labels)
        )
        flat = [{"program": who, **rows[-1][who]} for who in WHO if who in rows[-1]]
        print(f"{name}, C = {C or 1}", table(flat, COLUMNS), sep="\n", flush=True)
    return {"benchmark": "quality", "sets": rows}


def main() -> None:
    """Compare every set and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        draw=picture,
        quick={"sets": ["synthetic"], "repeats": 1, "peer_labels": 0},
        sets={"nargs": "+", "default": SETS},
        repeats={"type": int, "default": 3},
        peer_labels={"type": int, "default": 2000},
    )


if __name__ == "__main__":
    main()
