"""Least squares on MNIST: raw pixels, random Fourier features, stages, and LIBLINEAR.

python -m benchmarks.least_squares --data DIR [--features 512,4000] [--stages 8] [--seeds 3]
python -m benchmarks.least_squares --data DIR --features "" --held-out --settings 0.7:0.2:4,1:0.5:8

DIR holds `mnist.npz`; without it, the small digits of scikit-learn are used. Prints JSON lines with
the error on the 10,000 test rows in percent, and processor seconds of one core. The seconds of a
training contain the creation of the features, but not the projection on 50 components before it.
Lines of "stagewise" are a curve: one for each block, and one with the seconds of all. LIBLINEAR
(scikit-learn) gets the features for free, in double precision. A line per number of features has
the rate of the second moments, and the peak rate of syrk measured in the same run. It counts n d^2
operations for n rows of d features.

`--held-out` replaces the test rows by the last 10,000 training rows, to choose settings of stages:
bandwidth as a share of the median distance, ridge times the root of the number of rows, and inner
steps.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from benchmarks.harness import run_benchmark
from xcray import CalibratedLeastSquares, StagewiseRegression
from xcray.arrays import Float32
from xcray.features.fourier import RandomFourier, median_distance, random_fourier
from xcray.features.pca import fit_pca
from xcray.solvers.least_squares.gram import gram_of_chunks
from xcray.solvers.least_squares.stages import FittedStage, StageScores, feature_chunks

LIBLINEAR = {  # by the number of its option -s: the six of Figure 2, C = 1
    0: OneVsRestClassifier(LogisticRegression(solver="liblinear")),
    1: LinearSVC(dual=True),
    2: LinearSVC(dual=False),
    3: LinearSVC(loss="hinge", dual=True),
    4: LinearSVC(multi_class="crammer_singer"),
    5: LinearSVC(penalty="l1", dual=False),
}
SHARDS = 8
COMPONENTS = 50  # of the uncentred PCA before the random features, as in the paper
BLOCK = 2000  # features of a stage
PEAK_SIZE = 2000
Add = Callable[..., None]  # adds a line of figures
RIDGE = 0.05  # divided by the root of the number of rows


class Effort(NamedTuple):
    """Rounds of calibrated least squares, and steps of logistic regression, on one block."""

    rounds: int
    steps: int


RAW, FOURIER = Effort(10, 40), Effort(5, 20)


class StageSettings(NamedTuple):
    """Bandwidth as a share of the median distance, ridge like RIDGE, and inner steps."""

    bandwidth: float
    ridge: float
    steps: int


class Rows(NamedTuple):
    """Dense rows X (n, D) float32 and their classes y (n,)."""

    X: Float32
    y: Any


def load(path: Path, held_out: bool) -> tuple[Rows, Rows]:
    """Return training and test rows: pixels from 0 to 1.

    held_out: return the last 10,000 training rows as the test rows.
    """
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    train, test = (
        Rows(
            arrays[f"X_{part}"].reshape(-1, 784).astype(np.float32) / np.float32(255),
            arrays[f"y_{part}"].astype(np.int64),
        )
        for part in ("train", "test")
    )
    if not held_out:
        return train, test
    return Rows(train.X[:-10_000], train.y[:-10_000]), Rows(train.X[-10_000:], train.y[-10_000:])


def append_one(rows: Rows) -> Rows:
    """Return the rows with a constant feature."""
    return Rows(np.insert(rows.X, rows.X.shape[1], 1.0, axis=1), rows.y)


def measure_block(name: str, train: Rows, test: Rows, effort: Effort) -> Iterator[dict[str, Any]]:
    """Yield the final error and seconds of each method on one block of features.

    name: "raw" for the rows as they are, or the number of random Fourier features.
    """
    lam = RIDGE / math.sqrt(len(train.y))
    raw = name == "raw"
    size = {"block_size": train.X.shape[1] if raw else int(name), "lam": lam, "shards": SHARDS}
    stage = {"features": "columns" if raw else "fourier", "stages": 1, **size}
    if not raw:
        stage["bandwidth"] = 1.0
    source = "input" if raw else "fourier"
    calibrated = {"features": source, "rounds": effort.rounds, "held_out": 0.0, **size}
    methods = {
        "linear": StagewiseRegression(rule="linear", **stage),
        "calibrated": CalibratedLeastSquares(**calibrated),
        "logistic": StagewiseRegression(rule="logistic", inner_steps=effort.steps, **stage),
    }
    for method, model in methods.items():
        seconds = cpu_seconds(lambda model=model: model.fit(train.X, train.y))
        error = 100.0 * float((model.predict(test.X) != test.y).mean())
        yield {"method": method, "error": round(error, 2), "seconds": round(seconds, 2)}


def measure_liblinear(
    features: RandomFourier, train: Rows, test: Rows, number: int
) -> dict[str, Any]:
    """Return error and seconds of a solver of LIBLINEAR, by the number of its option -s."""
    Z, Z_test = (features.transform(each.X).astype(np.float64) for each in (train, test))
    model = LIBLINEAR[number]
    begin = time.process_time()
    model.fit(Z, train.y)
    seconds = time.process_time() - begin
    error = 100.0 * float((model.predict(Z_test) != test.y).mean())
    method = f"liblinear -s {number}"
    return {"method": method, "error": round(error, 2), "seconds": round(seconds, 2)}


def gram_rate(features: RandomFourier | None, train: Rows) -> dict[str, float]:
    """Return GFLOP/s of the second moments of stored features, and the peak of syrk."""
    rows = train.X[:20_000]
    chunks = [(lo, Z.copy()) for lo, Z in feature_chunks(rows, features)]
    d, weights = chunks[0][1].shape[1], np.ones(len(rows))
    A = np.random.default_rng(0).normal(size=(4 * PEAK_SIZE, PEAK_SIZE)).astype(np.float32)
    syrk = scipy.linalg.blas.ssyrk
    seconds, peak_seconds = math.inf, math.inf
    for _ in range(3):
        run = cpu_seconds(lambda: gram_of_chunks(lambda: iter(chunks), weights, d))
        seconds = min(seconds, run)
        peak_seconds = min(peak_seconds, cpu_seconds(lambda: syrk(1.0, A.T, lower=1)))
    rate, peak = len(rows) * d**2 / seconds, A.size * PEAK_SIZE / peak_seconds
    return {
        "gram_gflops": round(rate / 1e9, 1),
        "syrk_gflops": round(peak / 1e9, 1),
        "share": round(rate / peak, 2),
    }


def cpu_seconds(run: Callable[[], Any]) -> float:
    """Return the processor seconds of a call."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def measure_stages(train: Rows, test: Rows, settings: StageSettings, count: int, add: Add) -> None:
    """Print the curve of stagewise logistic regression."""
    model = StagewiseRegression(
        stages=count,
        block_size=BLOCK,
        bandwidth=settings.bandwidth,
        lam=settings.ridge / math.sqrt(len(train.y)),
        inner_steps=settings.steps,
        shards=SHARDS,
    )
    seconds = cpu_seconds(lambda: model.fit(train.X, train.y))
    at = StageScores(test.X, len(model.classes_))
    for number, stage in enumerate(model.stages_, 1):
        at.add(FittedStage(stage.W, stage.features, stage.calibration))
        error = 100.0 * float((at.scores.argmax(axis=1) != test.y).mean())
        name = {"features": BLOCK * number, "method": "stagewise logistic"}
        add(**name, settings=list(settings), error=round(error, 2))
    add(method="stagewise logistic", settings=list(settings), seconds=round(seconds, 2))


def measure_features(train: Rows, test: Rows, n_features: int, seed: int, add: Add) -> None:
    """Print the lines of one number of random Fourier features."""
    features = fourier(train, n_features, seed)
    for line in measure_block(str(n_features), train, test, FOURIER):
        add(features=n_features, seed=seed, **line)
    add(features=n_features, **gram_rate(features, train))


def fourier(train: Rows, n_features: int, seed: int) -> RandomFourier:
    """Return random Fourier features with the median distance as bandwidth."""
    bandwidth = median_distance(train.X, seed=seed)
    return random_fourier(COMPONENTS, n_features, bandwidth, seed=seed)


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Run all trainings with one thread of BLAS; print a line for each."""
    raw = digits() if options.data is None else load(options.data / "mnist.npz", options.held_out)
    lines: list[dict[str, Any]] = []

    def add(**line: Any) -> None:
        lines.append(line)
        print(json.dumps(line), flush=True)

    with threadpool_limits(limits=1, user_api="blas"):
        for line in measure_block("raw", *(append_one(each) for each in raw), RAW):
            add(features="raw", **line)
        pca = fit_pca(raw[0].X, COMPONENTS, centred=False)
        train, test = (Rows(pca.transform(each.X), each.y) for each in raw)
        for seed in range(options.seeds):
            for n_features in map(int, filter(None, options.features.split(","))):
                measure_features(train, test, n_features, seed, add)
        for each in options.settings.split(","):
            bandwidth, ridge, steps = each.split(":")
            settings = StageSettings(float(bandwidth), float(ridge), int(steps))
            measure_stages(train, test, settings, options.stages, add)
        if options.liblinear:
            features = fourier(train, options.liblinear, 0)
            for number in options.liblinear_solvers:
                figures = measure_liblinear(features, train, test, number)
                add(features=options.liblinear, seed=0, **figures)
    return {"benchmark": "least_squares", "lines": lines}


def digits() -> tuple[Rows, Rows]:
    """Return the small digits of scikit-learn, a sixth of them as test rows."""
    X, y = load_digits(return_X_y=True)
    rows = Rows((X / 16).astype(np.float32), y.astype(np.int64))
    return Rows(rows.X[:1500], rows.y[:1500]), Rows(rows.X[1500:], rows.y[1500:])


def main() -> None:
    """Run all trainings and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"features": "64", "stages": 1},
        features={"default": "512,4000"},
        stages={"type": int, "default": 8, "help": f"blocks of {BLOCK} features"},
        settings={"default": "0.7:0.2:4", "help": "bandwidth:ridge:steps of stages"},
        seeds={"type": int, "default": 1},
        liblinear_solvers={
            "type": int,
            "nargs": "+",
            "choices": list(LIBLINEAR),
            "default": [0],
            "help": "its solvers, see LIBLINEAR",
        },
        liblinear={"type": int, "default": 0, "help": "features of LIBLINEAR; 0: none"},
        held_out={"action": "store_true", "help": "test on training rows left out"},
    )


if __name__ == "__main__":
    main()
