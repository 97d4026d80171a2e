"""One worker against two on MNIST: calibrated least squares on 4,000 random Fourier features.

python -m benchmarks.least_squares.workers --data DIR [--pairs 3] [--json FILE]

DIR holds `mnist.npz`. Runs with one thread and with two take turns; the ratio is that of the median
wall seconds. A line per pair also has the ratio of two threads that each run the bare syrk of the
second moments, measured right after: what this machine can give. Other programs must be idle. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import threading
import time
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.common import arguments, in_folder
from benchmarks.least_squares.__main__ import COMPONENTS, Rows, load, write
from xcray import CalibratedLeastSquares
from xcray.features.pca import fit_pca
from xcray.system.blas import add_second_moments

FEATURES, ROUNDS = 4000, 5


def fit_seconds(rows: Rows, workers: int) -> float:
    """Return the wall seconds of a training."""
    model = CalibratedLeastSquares("fourier", ROUNDS, FEATURES, n_jobs=workers)
    begin = time.perf_counter()
    model.fit(rows.X, rows.y)
    return time.perf_counter() - begin


def syrk_ratio() -> float:
    """Return how much more syrk two threads do than one in the same time."""
    rows = np.random.default_rng(0).normal(size=(500, FEATURES)).astype(np.float32)
    grams = [np.zeros((FEATURES, FEATURES), np.float32, order="F") for _ in range(2)]

    def run(gram: Any) -> None:
        for _ in range(8):
            add_second_moments(gram, rows)

    begin = time.perf_counter()
    run(grams[0])
    middle = time.perf_counter()
    threads = [threading.Thread(target=run, args=(gram,)) for gram in grams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 2 * (middle - begin) / (time.perf_counter() - middle)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the pairs."""
    train, _ = load(options.data / "mnist.npz", held_out=False)
    rows = Rows(fit_pca(train.X, COMPONENTS, centred=False).transform(train.X), train.y)
    fit_seconds(Rows(rows.X[:2000], rows.y[:2000]), 2)  # compile
    pairs: list[dict[str, float]] = []
    for _ in range(options.pairs):
        one, two = (fit_seconds(rows, workers) for workers in (1, 2))
        pairs.append({"one": one, "two": two, "ratio": one / two, "syrk_ratio": syrk_ratio()})
        write(**{name: round(value, 2) for name, value in pairs[-1].items()})
    middle = {name: median(pair[name] for pair in pairs) for name in pairs[0]}
    return {"features": FEATURES, "ratio": middle["one"] / middle["two"], "medians": middle}


def main() -> None:
    """Run the benchmark."""
    options = arguments(__doc__ or "", pairs={"type": int, "default": 3})
    with threadpool_limits(limits=1, user_api="blas"):
        in_folder(lambda _: run(options), options.json)


if __name__ == "__main__":
    main()
