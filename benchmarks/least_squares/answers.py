"""Time of a row through a chain of stages and of its plain matrix products, and exactness.

python -m benchmarks.least_squares.answers [--stages 16] [--features 2000] [--json FILE]

Random models of 50 inputs and 10 labels. The plain products are those of NumPy with the arrays of
the model: inputs with frequencies (float32), features with weights (float64). A round measures all
of them one after the other; figures are medians in milliseconds of one core, of single rows.
Exactness: the largest difference of a score to the formulas in float64, on features in float32.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.common import arguments, in_folder
from xcray.features.fourier import RandomFourier, random_fourier
from xcray.index.staged import Stage, StagedScorer

INPUTS, LABELS, ROUNDS = 50, 10, 400


def chain(n_stages: int, n_features: int) -> list[Stage]:
    """Return stages with random weights."""
    random = np.random.default_rng(0)
    zeros = np.zeros(LABELS, np.float32)
    return [
        Stage(
            (random.normal(size=(n_features, LABELS)) / n_features).astype(np.float32),
            zeros,
            random_fourier(INPUTS, n_features, 8.0, seed=0, block=number),
        )
        for number in range(n_stages)
    ]


def pipeline(stage: Stage) -> RandomFourier:
    """Return the random Fourier features of a stage."""
    assert isinstance(stage.features, RandomFourier)
    return stage.features


def plain_products(stages: list[Stage]) -> Callable[[Any], Any]:
    """Return a function of a row (1, INPUTS) that computes the matrix products alone."""
    arrays = [(pipeline(each).frequencies, np.asarray(each.W, np.float64)) for each in stages]

    def run(row: Any) -> Any:
        total = np.zeros((1, LABELS))
        for frequencies, W in arrays:
            total += (row @ frequencies).astype(np.float64) @ W
        return total

    return run


def in_float64(stages: list[Stage], row: Any) -> Any:
    """Return the scores (LABELS,) of a row by the formula."""
    return sum(
        pipeline(each).transform(row)[0].astype(np.float64) @ np.asarray(each.W, np.float64)
        for each in stages
    )


def milliseconds(runs: dict[str, Callable[[Any], Any]], rows: Any) -> dict[str, float]:
    """Return the median milliseconds of each function, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(ROUNDS):
        row = rows[i % len(rows)][None]
        for name, run in runs.items():
            begin = time.perf_counter()
            run(row)
            times[name].append(time.perf_counter() - begin)
    return {name: round(1e3 * float(np.median(each)), 3) for name, each in times.items()}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures."""
    stages = chain(options.stages, options.features)
    scorer = StagedScorer(stages, INPUTS)
    rows = np.random.default_rng(1).normal(size=(64, INPUTS)).astype(np.float32)
    functions = {"answer": lambda row: scorer.top_k(row, 5), "products": plain_products(stages)}
    report: dict[str, Any] = {"stages": options.stages, "features": options.features}
    report["milliseconds"] = milliseconds(functions, rows)
    scores = scorer.scores(rows, list(range(LABELS)))
    exact = np.array([in_float64(stages, row[None]) for row in rows])
    report["largest_difference"] = float(np.abs(scores - exact).max())
    return report


def main() -> None:
    """Run the benchmark."""
    options = arguments(
        __doc__ or "",
        stages={"type": int, "default": 16},
        features={"type": int, "default": 2000},
    )
    with threadpool_limits(limits=1, user_api="blas"):
        in_folder(lambda _: run(options), options.json)


if __name__ == "__main__":
    main()
