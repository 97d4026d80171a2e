"""Stagewise least squares over blocks of columns, and LIBLINEAR, on 20 newsgroups.

python -m benchmarks.least_squares.text --data DIR [--seeds 3] [--held-out] [--order random]

DIR holds `news20_bydate/train.txt.xz` and `test.txt.xz` in XC format. As in the paper: training and
test rows together are split at random, 15,000 for training; values are log(1 + count); words that
occur less than 3 times in training rows are left out; blocks of 500 columns and two passes. The
paper orders the columns by the size of their gradient before each pass, with ridge 30
(`--order gradient --ridge 30`). A random order and ridge 60 were better on held-out rows. Prints a
JSON line for each seed and method with the error on the other rows in percent, and processor
seconds of one core: of the order and the training, without reading. `--held-out` tests on 3,000
training rows.
"""

from __future__ import annotations

import json
import lzma
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_svmlight_file
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from benchmarks.harness import run_benchmark
from xcray.arrays import csr, frozen
from xcray.data.synthetic import SyntheticParams, generate
from xcray.features.columns import column_blocks
from xcray.solvers.least_squares.stage_worker import StageWorker
from xcray.solvers.least_squares.stages import FittedStage
from xcray.solvers.least_squares.stagewise import StageFitter
from xcray.solvers.row_shards import Shard
from xcray.workers.calls import GroupCalls
from xcray.workers.local_group import SerialGroup
from xcray.workers.parts import ShareWorker

N_LABELS = 20
N_TRAINING, N_HELD_OUT = 15_000, 3_000
MIN_COUNT = 3


class Documents(NamedTuple):
    """Sparse rows X (n, D) float32 and their classes y (n,)."""

    X: Any
    y: Any


class TextWork:
    """Creates the only worker of a training."""

    def __init__(self, rows: Documents, shards: int) -> None:
        self._rows, self._shards = rows, shards

    def create_worker(self, worker: str, stopped: Any) -> ShareWorker:
        """Return a worker with all shards."""
        parts = np.array_split(np.arange(len(self._rows.y)), self._shards)
        shards = [shard_of(self._rows, part) for part in parts]
        return ShareWorker(lambda share: StageWorker(shards, "identity", stopped))

    def warm_up(self) -> None:
        """Do nothing."""


def shard_of(rows: Documents, part: Any) -> Shard:
    """Return some of the rows as a sparse shard."""
    n, X = len(part), rows.X[part]
    targets = csr(np.arange(n + 1), rows.y[part], np.ones(n), N_LABELS)
    weights = frozen(np.full(n, 1 / len(rows.y)), np.float64)
    return Shard(csr(X.indptr, X.indices, X.data, X.shape[1]), None, targets, weights, part)


def load(folder: Path) -> Documents:
    """Return all rows of both files, with counts of words as values."""
    parts = []
    for name in ("train", "test"):
        with lzma.open(folder / f"{name}.txt.xz") as file:
            n_columns = int(file.readline().split()[1])
            parts.append(
                load_svmlight_file(file, n_features=n_columns, dtype=np.float32, zero_based=True)
            )
    X = sp.vstack([X for X, _ in parts]).tocsr()
    return Documents(X, np.concatenate([y for _, y in parts]).astype(np.int64))


def split(rows: Documents, seed: int, held_out: bool) -> tuple[Documents, Documents]:
    """Return training and test rows, without words that training rows have less than MIN_COUNT."""
    order = np.random.default_rng(seed).permutation(len(rows.y))
    n_training = N_TRAINING - N_HELD_OUT if held_out else N_TRAINING
    train, test = order[:n_training], order[n_training:]
    if held_out:
        test = test[:N_HELD_OUT]
    kept = np.flatnonzero(np.asarray(rows.X[train].sum(axis=0)).ravel() >= MIN_COUNT)
    X = rows.X[:, kept].log1p()
    return Documents(X[train], rows.y[train]), Documents(X[test], rows.y[test])


def fit(train: Documents, options: Any, seed: int) -> Any:
    """Return the weights (D, K): those of all stages added."""
    n_columns = train.X.shape[1]
    method = StageFitter("linear", options.ridge / len(train.y), options.shards)
    group = SerialGroup(TextWork(train, options.shards), 1)
    group.open()
    workers, stages = GroupCalls(group), ()
    for number in range(options.passes):
        if options.order == "random":
            order = np.random.default_rng((seed, number)).permutation(n_columns)
        else:
            order = method.order_by_gradient(workers, stages)
        blocks = column_blocks(n_columns, order, options.block)
        stages = (*stages, *method.fit(workers, blocks, stages))
    return weights_of(stages, n_columns)


def weights_of(stages: tuple[FittedStage, ...], n_columns: int) -> Any:
    """Return the weights (D, K) of all stages, which are linear in the input."""
    W = np.zeros((n_columns, N_LABELS))
    for stage in stages:
        W[stage.features.numbers] += stage.W
    return W


def measure_split(
    train: Documents, test: Documents, options: Any, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield the lines of one split."""
    shared = {"seed": seed, "columns": train.X.shape[1]}
    begin = time.process_time()
    W = fit(train, options, seed)
    seconds = time.process_time() - begin
    yield line(f"stagewise {options.order}", (test.X @ W).argmax(axis=1) != test.y, seconds, shared)
    for C in options.liblinear:
        model = LinearSVC(C=C, dual=True)
        begin = time.process_time()
        model.fit(train.X, train.y)
        seconds = time.process_time() - begin
        yield line(f"liblinear l2-svm C={C:g}", model.predict(test.X) != test.y, seconds, shared)


def line(method: str, wrong: Any, seconds: float, shared: dict[str, int]) -> dict[str, Any]:
    """Return the figures of a method."""
    error = round(100.0 * float(wrong.mean()), 2)
    return {"method": method, "error": error, "seconds": round(seconds, 2), **shared}


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Run all trainings with one thread of BLAS; print a line for each."""
    lines = []
    with threadpool_limits(limits=1, user_api="blas"):
        rows = generated() if options.data is None else load(options.data / "news20_bydate")
        for seed in range(options.seeds):
            for each in measure_split(*split(rows, seed, options.held_out), options, seed):
                lines.append(each)
                print(json.dumps(each), flush=True)
    return {"benchmark": "least_squares_text", "lines": lines}


def generated() -> Documents:
    """Return random rows of the size of 20 newsgroups, without --data."""
    X, Y = generate(SyntheticParams(rows=18_774, features=2_000, labels=N_LABELS, nnz_per_row=30))
    return Documents(X.to_scipy(), Y.indices[Y.indptr[:-1]].astype(np.int64))


def main() -> None:
    """Run all trainings and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"passes": 1},
        seeds={"type": int, "default": 1},
        order={"choices": ("gradient", "random"), "default": "random"},
        block={"type": int, "default": 500},
        passes={"type": int, "default": 2},
        ridge={"type": float, "default": 60.0},
        shards={"type": int, "default": 2},
        liblinear={"type": float, "nargs": "*", "default": [], "help": "values of C"},
        held_out={"action": "store_true", "help": "test on training rows left out"},
    )


if __name__ == "__main__":
    main()
