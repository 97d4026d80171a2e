"""Models without zero weights: time per row of plain rows, packed lists and a matrix product.

`python -m studies.dense_models [--json FILE] [--rounds 9]`

All weights are random and non-zero. Rows have a share of the features. Lists and plain rows must
give the same bits, which is checked. The product is float32 (X @ W + b and numpy's partition),
which is less exact and has no fixed order of summation. Each method runs on one core: set
OMP_NUM_THREADS=1. Methods alternate in each round, and medians in microseconds are reported.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import arguments, in_folder
from xcray.arrays import csr_from
from xcray.index.log_partition import LogPartition
from xcray.index.search import SearchIndex

K = 5
SINGLES = 20  # rows that are queried one by one
CELLS = 40_000_000  # approximate number of products per batch


class Shape(NamedTuple):
    """Shape of a model and its rows: features, labels, and the share of features that a row has."""

    features: int
    labels: int
    share: float


SHAPES = (
    Shape(80, 63, 1.0),
    Shape(784, 10, 0.2),
    Shape(784, 10, 1.0),
    Shape(200, 1000, 1.0),
    Shape(1000, 5000, 0.05),
    Shape(20000, 1000, 0.003),
)


def measured(shape: Shape, rounds: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return sizes and the microseconds per row of each method."""
    W = rng.normal(size=(shape.labels, shape.features)).astype(np.float32)
    b = rng.normal(size=shape.labels).astype(np.float32)
    n = int(np.clip(CELLS // W.size, 50, 2000))
    X = np.where(
        rng.random((n, shape.features)) < shape.share, rng.normal(size=(n, shape.features)), 0
    ).astype(np.float32)
    rows, by_feature = csr_from(X), np.ascontiguousarray(W.T)
    lists, plain = (SearchIndex.build(csr_from(W), b, dense=dense) for dense in (False, True))
    singles = [csr_from(X[i : i + 1]) for i in range(SINGLES)]
    one, two = lists.query(rows, K), plain.query(rows, K)
    if not (np.array_equal(one.labels, two.labels) and np.array_equal(one.scores, two.scores)):
        raise SystemExit(f"{shape}: lists and plain rows answer differently")
    normaliser = LogPartition(plain)

    def product(part: Any) -> None:
        np.argpartition(-(part @ by_feature + b), K - 1, axis=1)

    ways: dict[str, tuple[int, Callable[[], Any]]] = {
        "lists": (n, lambda: lists.query(rows, K)),
        "plain": (n, lambda: plain.query(rows, K)),
        "normaliser": (n, lambda: normaliser.compute(rows)),
        "product": (n, lambda: product(X)),
        "lists_single": (SINGLES, lambda: [lists.query(row, K) for row in singles]),
        "plain_single": (SINGLES, lambda: [plain.query(row, K) for row in singles]),
        "product_single": (SINGLES, lambda: [product(X[i : i + 1]) for i in range(SINGLES)]),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, (count, run) in ways.items():
            began = perf_counter()
            run()
            took[name].append(1e6 * (perf_counter() - began) / count)
    sizes = {
        "rows": 8 * W.size,
        "lists": lists.n_bytes,
        "plain": plain.dense.nbytes if plain.dense is not None else 0,
    }
    medians = {
        name: round(float(np.median(times[1:])), 2) for name, times in took.items()
    }  # the first round warms up
    return {**shape._asdict(), "bytes": sizes, "us_a_row": medians}


def main() -> None:
    """Measure all shapes; print one line each, and JSON as the last line."""
    request = arguments(
        "Dense models: plain rows, lists and a matrix product.", rounds={"type": int, "default": 9}
    )

    def run(_: Path) -> dict[str, Any]:
        rng, result = np.random.default_rng(0), []
        for shape in SHAPES:
            result.append(measured(shape, request.rounds, rng))
            text = "  ".join(f"{name} {us}" for name, us in result[-1]["us_a_row"].items())
            print(f"{shape.features} x {shape.labels}, {shape.share:g}: {text}", flush=True)
        return {"shapes": result}

    in_folder(run, request.json)


if __name__ == "__main__":
    main()
