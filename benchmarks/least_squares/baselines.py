"""LIBLINEAR's solvers, Vowpal Wabbit, a ridge on sampled kernels, and our three rules.

python -m benchmarks.least_squares.baselines --data DIR [--features 512] [--methods NAME,...]

DIR holds `mnist.npz`. All programs get the same 512 random Fourier features of 50 components and
have C = 1 (LIBLINEAR) or their defaults. Error on the 10,000 test rows in percent, processor
seconds of one core without the creation of the features. The last line is one JSON object. Vowpal
Wabbit is measured where `pip install vowpalwabbit` was done; Falkon and EigenPro have no wheels.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from benchmarks.common import arguments, in_folder
from benchmarks.least_squares.__main__ import (
    COMPONENTS,
    FOURIER,
    Rows,
    curve,
    fourier,
    load,
    methods,
    write,
)
from xcray.features.fourier import median_distance
from xcray.features.pca import fit_pca

# name -> an estimator of scikit-learn around a LIBLINEAR solver (-s number)
LIBLINEAR: dict[str, Callable[[], Any]] = {
    "liblinear -s 0": lambda: OneVsRestClassifier(LogisticRegression(solver="liblinear")),
    "liblinear -s 1": lambda: LinearSVC(dual=True),
    "liblinear -s 2": lambda: LinearSVC(dual=False),
    "liblinear -s 3": lambda: LinearSVC(dual=True, loss="hinge"),
    "liblinear -s 4": lambda: LinearSVC(multi_class="crammer_singer"),
    "liblinear -s 7": lambda: OneVsRestClassifier(
        LogisticRegression(solver="liblinear", dual=True)
    ),
}


def measure(train: Rows, test: Rows, model: Any) -> dict[str, float]:
    """Fit an estimator; return its error and processor seconds."""
    begin = time.process_time()
    model.fit(train.X, train.y)
    return result(model.predict(test.X), test, begin)


def result(predicted: Any, test: Rows, begin: float) -> dict[str, float]:
    """Return the error in percent, and the processor seconds since `begin`."""
    seconds = time.process_time() - begin
    error = 100.0 * float((predicted != test.y).mean())
    return {"error": round(error, 2), "seconds": round(seconds, 2)}


def measure_ours(rule: str, train: Rows, test: Rows, n_features: int) -> dict[str, float]:
    """Return the error and seconds of one of our rules on random Fourier features."""
    method, count = methods(len(train.y), FOURIER)[rule]
    features = [fourier(train, n_features, 0)] * count
    *_, (error, seconds) = curve(method, features, train, test)
    return {"error": round(error, 2), "seconds": round(seconds, 2)}


def measure_ridge(train: Rows, test: Rows, n_features: int) -> dict[str, float]:
    """Return those of scikit-learn's RBFSampler and ridge, with the creation of the features."""
    begin = time.process_time()
    gamma = 0.5 / median_distance(train.X, seed=0) ** 2
    sampler = RBFSampler(gamma=gamma, n_components=n_features, random_state=0).fit(train.X)
    model = RidgeClassifier(alpha=0.05 * len(train.y) ** 0.5)
    model.fit(sampler.transform(train.X), train.y)
    return result(model.predict(sampler.transform(test.X)), test, begin)


def measure_vw(train: Rows, test: Rows) -> dict[str, Any]:
    """Return those of Vowpal Wabbit, one against all, ten passes, with parsing."""
    try:
        from vowpalwabbit import Workspace
    except ModuleNotFoundError:
        return {"skipped": "pip install vowpalwabbit"}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("train", "test", "model", "cache")]
        write_vw(files[0], train)
        write_vw(files[1], test)
        begin = time.process_time()
        Workspace(
            f"--oaa 10 -d {files[0]} --passes 10 -c --cache_file {files[3]} -f {files[2]} --quiet"
        ).finish()
        tester = Workspace(f"-t -i {files[2]} --quiet")
        predicted = [tester.predict(line) for line in files[1].read_text().splitlines()]
        tester.finish()
        return result(np.array(predicted) - 1, test, begin)


def write_vw(path: Path, rows: Rows) -> None:
    """Write rows in the text format of Vowpal Wabbit; classes count from 1."""
    with path.open("w") as out:
        for label, values in zip(rows.y, rows.X, strict=True):
            pairs = " ".join(f"{j}:{value:.5g}" for j, value in enumerate(values))
            out.write(f"{label + 1} | {pairs}\n")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run all programs one after the other."""
    raw = load(options.data / "mnist.npz", held_out=False)
    pca = fit_pca(raw[0].X, COMPONENTS, centred=False)
    inputs = [Rows(pca.transform(each.X), each.y) for each in raw]
    features = fourier(inputs[0], options.features, 0)
    rows = [Rows(features.transform(each.X), each.y) for each in inputs]
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        f"xcray {rule}": partial(measure_ours, rule, *inputs, options.features)
        for rule in ("linear", "calibrated", "logistic")
    }
    runs["RBFSampler and ridge"] = partial(measure_ridge, *inputs, options.features)
    runs["vw --oaa"] = partial(measure_vw, *rows)
    runs |= {name: partial(_liblinear, name, *rows) for name in LIBLINEAR}
    chosen = options.methods.split(",") if options.methods else list(runs)
    results = {}
    for name in chosen:
        results[name] = runs[name]()
        write(method=name, features=options.features, **results[name])
    return {"features": options.features, "results": results}


def main() -> None:
    """Run the benchmark."""
    options = arguments(
        __doc__ or "",
        features={"type": int, "default": 512},
        methods={"default": "", "help": "names, separated by commas; default: all"},
    )
    with threadpool_limits(limits=1, user_api="blas"):
        in_folder(lambda _: run(options), options.json)


def _liblinear(name: str, train: Rows, test: Rows) -> dict[str, float]:
    """Return those of a LIBLINEAR solver, which works in double precision."""
    wide = [Rows(each.X.astype(np.float64), each.y) for each in (train, test)]
    return measure(*wide, LIBLINEAR[name]())


if __name__ == "__main__":
    main()
