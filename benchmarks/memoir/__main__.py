"""MEMOIR and exact Crammer-Singer SVMs: accuracy, macro-F1 and processor seconds.

python -m benchmarks.memoir --data DIR [--json FILE] [--sets news20_bydate,cooking] [--seeds 3]
    [--picture FILE]

DIR holds a directory per set with train.txt.xz and test.txt.xz in XC format. Rows have length 1;
20 newsgroups has tf-idf weights from the training rows. The first label of a row is its class, and
test rows without labels are left out. Settings of MEMOIR (CHOICES) and C of the Crammer-Singer SVM
are chosen on every fifth training row, left out, by accuracy plus macro-F1. Then they are trained
on all training rows, MEMOIR with several seeds, and tested. Macro-F1 is the mean over the classes
of the test rows. Seconds are those of one core for a training, without reading, kernels compiled.
Prints a line per result, and one JSON line.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.metrics import f1_score
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from benchmarks.harness import dataset, run_benchmark
from benchmarks.memoir.picture import draw
from xcray.arrays import CSR, Pattern, csr, pattern
from xcray.solvers import make_solver
from xcray.solvers.group_contract import TrainingRows
from xcray.solvers.memoir.solver import MemoirSolver
from xcray.training.group_training import train_in_process

CHUNK = 500  # rows scored at once
LARGE = "gnd_tibkat"  # one training only, without a choice of settings, and without LIBLINEAR
CRAMMER_SINGER_C: Final = (0.3, 1.0, 3.0, 10.0)
# rounds x batch of the candidates of a set, so that a training takes less than 1 s, or 0.5 s for
# cooking; and the parameters that are chosen
EFFORT: Final[Mapping[str, tuple[int, int]]] = {
    "news20_bydate": (60, 1000),
    "cooking": (24, 2500),
    "clef_imclef07a": (90, 1000),
    "synthetic": (4, 500),
}
CHOICES: Final[Mapping[str, tuple[float, ...]]] = {
    "eta0": (0.1, 0.3, 1.0),
    "lam": (1e-5, 1e-4, 3e-4),
    "average": (0.0, 0.5),  # share of the rounds, the last ones, whose mean is the model
}
LARGE_SETTINGS: Final[Mapping[str, Any]] = {"rounds": 25}


class SingleLabel(NamedTuple):
    """Rows X (n, D), a SciPy CSR matrix, with their classes y (n,)."""

    X: Any
    y: Any


class ClassData(NamedTuple):
    """Training and test rows of a set with `n_classes` classes."""

    train: SingleLabel
    test: SingleLabel
    n_classes: int


def load(name: str, data: Path | None, folder: Path) -> ClassData:
    """Return the rows of a set that have a label, with the first label of each."""
    source = dataset(name, data, folder)
    parts = [first_labels(source[part].X, source[part].Y) for part in ("train", "test")]
    if name == "news20_bydate":
        X, n = parts[0].X, len(parts[0].y)
        idf = np.log(n / np.maximum(np.bincount(X.indices, minlength=X.shape[1]), 1))
        for rows in parts:
            rows.X.data = (1.0 + np.log(rows.X.data)) * idf[rows.X.indices]
    train, test = (SingleLabel(to_length_1(rows.X), rows.y) for rows in parts)
    return ClassData(train, test, source.n_labels)


def first_labels(X: CSR, Y: Pattern) -> SingleLabel:
    """Return the rows with labels, and the first label of each."""
    rows = np.flatnonzero(np.diff(Y.indptr))
    return SingleLabel(X.to_scipy()[rows].astype(np.float64), Y.indices[Y.indptr[rows]])


def to_length_1(X: Any) -> Any:
    """Return the rows divided by their norm; rows of zeros stay."""
    length = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    return sp.csr_matrix(sp.diags(1.0 / np.where(length > 0.0, length, 1.0)) @ X)


def leave_out(rows: SingleLabel) -> tuple[SingleLabel, SingleLabel]:
    """Return four fifths of the rows for training, and every fifth for validation."""
    is_left_out = np.arange(len(rows.y)) % 5 == 4
    train, validation = (
        SingleLabel(rows.X[part], rows.y[part]) for part in (~is_left_out, is_left_out)
    )
    return train, validation


def train_solver(rows: SingleLabel, n_classes: int, solver: Any) -> dict[str, Any]:
    """Return weights, bias and seconds of a training; samples per second of MEMOIR."""
    X = rows.X
    arrays = csr(X.indptr, X.indices, X.data.astype(np.float32), X.shape[1])
    data = TrainingRows(arrays, pattern(np.arange(len(rows.y) + 1), rows.y, n_classes))
    solver.warm_up()
    begin = time.process_time()
    [block] = train_in_process(solver, data, 1).labels
    seconds = time.process_time() - begin
    model = {
        "W": block.W.to_scipy(),
        "bias": block.bias,
        "seconds": seconds,
        "weights": block.W.nnz,
    }
    if isinstance(solver, MemoirSolver):
        samples = int(block.records["rounds"].max()) * solver.batch_size(len(np.unique(rows.y)))
        model["samples_per_second"] = round(samples / seconds)
    return model


def train_liblinear(rows: SingleLabel, n_classes: int, C: float) -> dict[str, Any]:
    """Return weights, bias and seconds of LIBLINEAR's Crammer-Singer SVM without bias.

    tol is the default of LIBLINEAR; with scikit-learn's 1e-4 it takes several times as long.
    """
    model = LinearSVC(
        multi_class="crammer_singer", C=C, tol=0.1, fit_intercept=False, random_state=0
    )
    begin = time.process_time()
    model.fit(rows.X, rows.y)
    seconds = time.process_time() - begin
    W, bias = np.zeros((n_classes, rows.X.shape[1])), np.full(n_classes, -np.inf)
    W[model.classes_], bias[model.classes_] = model.coef_, 0.0
    return {"W": sp.csr_matrix(W), "bias": bias, "seconds": seconds}


def score(model: Mapping[str, Any], rows: SingleLabel) -> tuple[float, float]:
    """Return accuracy and macro-F1 in percent."""
    predicted = np.concatenate(
        [
            ((rows.X[lo : lo + CHUNK] @ model["W"].T).toarray() + model["bias"]).argmax(axis=1)
            for lo in range(0, len(rows.y), CHUNK)
        ]
    )
    f1 = f1_score(rows.y, predicted, average="macro", labels=np.unique(rows.y), zero_division=0)
    return 100.0 * float((predicted == rows.y).mean()), 100.0 * float(f1)


def candidates(name: str) -> list[dict[str, Any]]:
    """Return the settings of MEMOIR that are tried on a set."""
    if name == LARGE:
        return [dict(LARGE_SETTINGS)]
    rounds, batch = EFFORT[name]
    return [
        {
            "rounds": rounds,
            "batch": batch,
            "eta0": eta0,
            "lam": lam,
            "average_from": round((1.0 - average) * rounds) if average else 0,
        }
        for eta0, lam, average in product(*CHOICES.values())
    ]


def choose_settings(name: str, data: ClassData) -> dict[str, Any]:
    """Return the settings of MEMOIR with the best sum of accuracy and macro-F1 on rows left out."""
    tried = candidates(name)
    if len(tried) == 1:
        return tried[0]
    train, validation = leave_out(data.train)
    sums = []
    for settings in tried:
        model = train_solver(train, data.n_classes, MemoirSolver(**settings))
        accuracy, f1 = score(model, validation)
        sums.append(accuracy + f1)
        show(name, f"validation {settings}", accuracy, f1, model["seconds"])
    return tried[int(np.argmax(sums))]


def choose_C(data: ClassData) -> float:
    """Return the C of the Crammer-Singer SVM with the best sum of measures on rows left out."""
    train, validation = leave_out(data.train)
    sums = []
    for C in CRAMMER_SINGER_C:
        solver = make_solver("crammer-singer", {"C": C})
        sums.append(sum(score(train_solver(train, data.n_classes, solver), validation)))
    return CRAMMER_SINGER_C[int(np.argmax(sums))]


def measure_set(name: str, data: ClassData, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield a result per method: mean over seeds of accuracy, macro-F1 and seconds."""
    settings = choose_settings(name, data)
    seeds = 1 if name == LARGE else seeds
    solvers = {f"memoir {settings}": [MemoirSolver(**settings, seed=i) for i in range(seeds)]}
    if name != LARGE:
        scripts = [make_solver("memoir-scripts", {"seed": i}) for i in range(seeds)]
        solvers["memoir-scripts"] = scripts
        random = [MemoirSolver(**settings, oracle="random", seed=i) for i in range(seeds)]
        solvers["the same settings, oracle=random"] = random
    for method, each in solvers.items():
        models = [train_solver(data.train, data.n_classes, solver) for solver in each]
        yield summarize(method, models, data.test)
    if name != LARGE:
        C = choose_C(data)
        exact = make_solver("crammer-singer", {"C": C})
        models = [train_solver(data.train, data.n_classes, exact)]
        yield summarize(f"crammer-singer, C={C:g}", models, data.test)
        models = [train_liblinear(data.train, data.n_classes, C)]
        yield summarize(f"LIBLINEAR, Crammer-Singer, C={C:g}", models, data.test)


def summarize(method: str, models: list[dict[str, Any]], test: SingleLabel) -> dict[str, Any]:
    """Return the means over trainings of a method."""
    scores = np.mean([score(model, test) for model in models], axis=0)
    means = {
        key: float(np.mean([model[key] for model in models]))
        for key in ("seconds", "samples_per_second", "weights")
        if key in models[0]
    }
    return {"method": method, "accuracy": float(scores[0]), "macro_f1": float(scores[1]), **means}


def show(name: str, method: str, accuracy: float, f1: float, seconds: float) -> None:
    """Print a line of the table."""
    print(f"{name}: {method}: {accuracy:.1f} / {f1:.1f} % in {seconds:.2f} s", flush=True)


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Measure all sets, with one thread of BLAS."""
    sets: dict[str, Any] = {}
    with threadpool_limits(limits=1, user_api="blas"):
        for name in options.sets.split(","):
            data, sets[name] = load(name, options.data, folder), []
            for result in measure_set(name, data, options.seeds):
                figures = (result[key] for key in ("accuracy", "macro_f1", "seconds"))
                show(name, result["method"], *figures)
                sets[name].append(result)
    return {"benchmark": "memoir", "sets": sets}


def main() -> None:
    """Run the benchmark."""
    run_benchmark(
        measure,
        __doc__,
        draw=lambda result, path: draw(path, result["sets"]),
        quick={"sets": "synthetic", "seeds": 1},
        sets={
            "default": "news20_bydate,cooking,clef_imclef07a,gnd_tibkat",
            "help": "names of data sets",
        },
        seeds={"type": int, "default": 3, "help": "trainings of MEMOIR per setting"},
    )


if __name__ == "__main__":
    main()
