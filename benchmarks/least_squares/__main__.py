"""Least-squares solvers on MNIST, raw pixels and random Fourier features, as JSON lines.

python -m benchmarks.least_squares --data DIR [--features 0,512] [--rows 60000] [--seeds 3]

DIR holds `mnist.npz`. 0 features stands for the raw pixels. A line of a training has the error on
the 10,000 test rows in percent and processor seconds. `train_seconds` contains neither the features
(`feature_seconds`, of training and test rows) nor the creation of the row shards. A line per number
of features has the rate of the second moments and the peak rate of syrk, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg  # noqa: F401 - loaded before any clock starts
from threadpoolctl import threadpool_limits

from xcray.arrays import Float32, Float64, csr_from, frozen
from xcray.features.chain import Chain
from xcray.features.fourier import median_distance, random_fourier
from xcray.features.pca import fit_pca
from xcray.solvers.least_squares.gram import weighted_gram
from xcray.solvers.least_squares.solver import GeneralizedLeastSquaresSolver, LeastSquaresSolver
from xcray.solvers.least_squares.worker import LeastSquaresWorker
from xcray.solvers.multinomial import Shard
from xcray.workers.local_group import SerialGroup
from xcray.workers.synchronous_calls import SynchronousCalls

COMPONENTS = 50  # of the uncentred PCA before the random features, as in the paper
PEAK_SIZE = 2000


class Rows(NamedTuple):
    """Dense rows X (n, D) float32 and their classes y (n,)."""

    X: Float32
    y: Any


class Work:
    """Creates the only worker of a training from dense rows."""

    def __init__(self, solver: GeneralizedLeastSquaresSolver, rows: Rows) -> None:
        self._solver, self._rows = solver, rows

    def create_worker(self, worker: str, stopped: Callable[[], bool]) -> LeastSquaresWorker:
        """Return a worker with all shards."""
        n = len(self._rows.y)
        parts = np.array_split(np.arange(n), self._solver.shards)
        shards = [shard_of(self._rows, part) for part in parts]
        return LeastSquaresWorker(shards, None, self._solver.link, stopped)

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        self._solver.warm_up()


def shard_of(rows: Rows, part: Any) -> Shard:
    """Return some of the rows as a dense shard."""
    X = frozen(rows.X[part], np.float32)
    targets = np.eye(10, dtype=np.float32)[rows.y[part]]
    weights = np.full(len(part), 1.0 / len(rows.y))
    return Shard(csr_from(X), X, csr_from(targets), frozen(weights, np.float64), part)


def load(path: Path, rows: int) -> tuple[Rows, Rows]:
    """Return training and test rows: pixels from 0 to 1."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    train, test = (
        Rows(
            arrays[f"X_{part}"].reshape(-1, 784).astype(np.float32) / np.float32(255),
            arrays[f"y_{part}"].astype(np.int64),
        )
        for part in ("train", "test")
    )
    return Rows(train.X[:rows], train.y[:rows]), test


def featurize(train: Rows, test: Rows, n_features: int, seed: int) -> tuple[Rows, Rows]:
    """Return both parts with random Fourier features; unchanged for 0 features."""
    if not n_features:
        return train, test
    pca = fit_pca(train.X, COMPONENTS, centred=False)
    bandwidth = median_distance(pca.transform(train.X), seed=seed)
    features = Chain((pca, random_fourier(COMPONENTS, n_features, bandwidth, seed=seed)))
    return tuple(Rows(np.asarray(features.transform(each.X)), each.y) for each in (train, test))


def train_and_score(
    solver: GeneralizedLeastSquaresSolver, train: Rows, test: Rows
) -> dict[str, Any]:
    """Train with one worker; return the test error in percent, rounds and seconds."""
    group = SerialGroup(Work(solver, train), 1)
    group.open()
    begin = time.process_time()
    result = solver.train(SynchronousCalls(group), train.X.shape[1], 10)
    seconds = time.process_time() - begin
    W = np.concatenate([part.W for part in result.parts()], axis=1)
    wrong = (test.X @ W).argmax(axis=1) != test.y
    return {
        "error": round(100.0 * float(wrong.mean()), 2),
        "rounds": result.last.number,
        "reason": result.reason,
        "train_seconds": round(seconds, 2),
    }


def gram_rate(train: Rows) -> dict[str, float]:
    """Return GFLOP/s of the second moments of the rows, and the peak of syrk."""
    d = train.X.shape[1]
    shard = shard_of(train, np.arange(min(len(train.y), 20_000)))
    seconds = cpu_seconds(lambda: weighted_gram(shard, double=False))
    A = np.random.default_rng(0).normal(size=(4 * PEAK_SIZE, PEAK_SIZE)).astype(np.float32)
    peak_seconds = min(cpu_seconds(lambda: A.T @ A) for _ in range(3))
    rate, peak = len(shard.rows) * d**2 / seconds, A.size * PEAK_SIZE / peak_seconds
    return {"gram_gflops": round(rate / 1e9, 1), "syrk_gflops": round(peak / 1e9, 1)}


def cpu_seconds(run: Callable[[], Float64 | Float32]) -> float:
    """Return the processor seconds of a call."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def main() -> None:
    """Run all trainings and print one JSON line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--features", default="0,512")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    raw = load(options.data / "mnist.npz", options.rows)
    for n_features in map(int, options.features.split(",")):
        for seed in range(options.seeds if n_features else 1):
            begin = time.process_time()
            train, test = featurize(*raw, n_features, seed)
            seconds = round(time.process_time() - begin, 2)
            for solver in (
                LeastSquaresSolver(),
                GeneralizedLeastSquaresSolver(tolerance=1e-4),
            ):
                line = {"features": n_features, "seed": seed, "link": solver.link}
                line |= {"rows": len(train.y), "feature_seconds": seconds}
                print(json.dumps(line | train_and_score(solver, train, test)), flush=True)
            print(json.dumps({"features": n_features, **gram_rate(train)}), flush=True)


if __name__ == "__main__":
    with threadpool_limits(limits=1, user_api="blas"):
        main()
