"""Exact search, SW-graph and LSH on weights of MEMOIR: time of building and queries, and errors.

python -m benchmarks.memoir.oracles --data DIR [--sets gnd_tibkat,synthetic] [--json FILE]

gnd_tibkat: weights after three rounds of MEMOIR with exact search, the first label of each row, and
1,000 test rows as queries. synthetic: 100,000 classes with 100 weights each on 50,000 features,
drawn by Zipf's law, and 1,000 queries of 60 features. One core, processor seconds. The margin error
is the score of the best class less that of the class found, divided by the mean best score.
SW-graph needs nmslib; its wheel is built without AVX. Prints a line per index, and one JSON line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import run_benchmark
from benchmarks.memoir.__main__ import LARGE, load, train_solver
from xcray.arrays import CSR, csr
from xcray.index.approximate import build_index
from xcray.solvers.memoir.solver import MemoirSolver

QUERIES, CLASSES, FEATURES = 1000, 100_000, 50_000
INDEXES: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "exact": ("exact", {}),
    "LSH, 64 bits": ("lsh", {"bits": 64}),
    "LSH, 256 bits": ("lsh", {"bits": 256}),
    "LSH, 1,024 bits": ("lsh", {"bits": 1024}),
    "LSH, 64 bits of 128 singular vectors": ("lsh", {"bits": 64, "components": 128}),
    "LSH, 1,024 bits of 128 singular vectors": ("lsh", {"bits": 1024, "components": 128}),
    "SW-graph of nmslib, NN 10, ef 100": ("nmslib", {}),
}


def trained(folder: Path, data: Path) -> tuple[CSR, CSR]:
    """Return weights of MEMOIR on gnd_tibkat and test rows."""
    sets = load(LARGE, data, folder)
    model = train_solver(sets.train, sets.n_classes, MemoirSolver(rounds=3, row_norm="l2"))
    return to_csr(model["W"]), to_csr(sets.test.X[:QUERIES])


def synthetic(n_classes: int) -> tuple[CSR, CSR]:
    """Return random weights and queries with positive values, of length 1."""
    random = np.random.default_rng(0)
    share = 1.0 / np.arange(1, FEATURES + 1)
    ends = np.cumsum(share / share.sum())

    def rows(n: int, width: int, smallest: float) -> CSR:
        chosen = [
            np.unique(np.searchsorted(ends, random.random(width)).clip(0, FEATURES - 1))
            for _ in range(n)
        ]
        starts = np.cumsum([0, *map(len, chosen)])
        values = random.uniform(smallest, 1.0, starts[-1]) / np.sqrt(width)
        return csr(starts, np.concatenate(chosen), values, FEATURES)

    return rows(n_classes, 100, -0.5), rows(QUERIES, 60, 0.1)


def to_csr(matrix: Any) -> CSR:
    """Return a scipy matrix as arrays."""
    matrix = matrix.tocsr()
    matrix.sort_indices()
    return csr(matrix.indptr, matrix.indices, matrix.data.astype(np.float32), matrix.shape[1])


def measure(W: CSR, X: CSR, name: str, settings: dict[str, Any], best: Any) -> dict[str, Any]:
    """Return the figures of an index; best: exact best scores (n,)."""
    begin = time.process_time()
    index = build_index(name, W, **settings)
    built = time.process_time()
    top = index.query(X, 1)
    done = time.process_time()
    errors = np.maximum(0.0, best - top.scores[:, 0])
    errors[errors < 1e-5 * np.abs(best)] = 0.0
    return {
        "build_seconds": round(built - begin, 2),
        "queries_per_second": round(X.n_rows / (done - built)),
        "agreement": round(float((errors == 0.0).mean()), 4),
        "mean_error": round(float(errors.mean() / best.mean()), 3),
        "p95_error": round(float(np.quantile(errors, 0.95) / best.mean()), 3),
    }


def measure_sets(options: Any, folder: Path) -> dict[str, Any]:
    """Measure all indexes on all sets, with one thread of BLAS."""
    sources: dict[str, Callable[[], tuple[CSR, CSR]]] = {
        LARGE: lambda: trained(folder, options.data),
        "synthetic": lambda: synthetic(options.classes),
    }
    out: dict[str, Any] = {}
    with threadpool_limits(limits=1, user_api="blas"):
        for source in options.sets.split(","):
            W, X = sources[source]()
            out[source] = {"labels": W.n_rows, "weights": W.nnz}
            build_index("exact", W).query(X, 1)  # compile
            best = build_index("exact", W).query(X, 1).scores[:, 0]
            for label in options.indexes:
                name, settings = INDEXES[label]
                out[source][label] = figures = measure(W, X, name, settings, best)
                print(source, label, figures, flush=True)
    return {"benchmark": "oracles", "sets": out}


def main() -> None:
    """Run the benchmark."""
    run_benchmark(
        measure_sets,
        __doc__,
        quick={"sets": "synthetic", "classes": 2_000, "indexes": ["exact", "LSH, 64 bits"]},
        sets={"default": f"{LARGE},synthetic", "help": "names of sets"},
        classes={"type": int, "default": CLASSES, "help": "of the set synthetic"},
        indexes={"nargs": "+", "default": list(INDEXES), "choices": list(INDEXES)},
    )


if __name__ == "__main__":
    main()
