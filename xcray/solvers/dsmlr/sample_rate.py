"""The rate of plain steps: the best for a sample of the rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from xcray.arrays import CSR, csr, frozen
from xcray.solvers.dsmlr.parameters import DSMLRParameters
from xcray.solvers.dsmlr.shard_state import ShardState, Step
from xcray.solvers.dsmlr.worker import initial_block, run_step
from xcray.solvers.group_contract import TrainingRows
from xcray.solvers.row_shards import Shard, make_shard, total_weight

SAMPLE_ROWS: Final = 1000
SAMPLE_EPOCHS: Final = 5
MAX_SAMPLE_WEIGHTS: Final = 1 << 24
MIN_RATE: Final = 1e-4
SAMPLE_STREAM: Final = 3  # of the random numbers


def sample_rate(params: DSMLRParameters, rows: TrainingRows) -> float:
    """Return the power of 2 that minimises the objective of a sample of the rows; 1 without rows.

    The sample is trained for some epochs, as a problem of its own. Steps "sqrt" fall with the
    number of steps (Theorem 1), so they are reduced by the root of the sample's share of all rows;
    adaptive ones fall by themselves.
    """
    sample = draw_sample(params, rows, SAMPLE_ROWS)
    while sample.X.n_cols * sample.targets.n_cols > MAX_SAMPLE_WEIGHTS:
        sample = draw_sample(params, rows, len(sample.rows) // 2)
    share = float(sample.weights.sum())
    if share <= 0.0:
        return 1.0
    sample = sample._replace(weights=frozen(sample.weights / share, np.float64))

    rate, best = 1.0, _objective(params, sample, 1.0)
    for factor in (4.0, 0.25, 2.0, 0.5):
        while MIN_RATE < rate < 1.0 / MIN_RATE:
            value = _objective(params, sample, factor * rate)
            if not value < best:
                break
            rate, best = factor * rate, value
    return rate * (math.sqrt(share) if params.steps == "sqrt" else 1.0)


def draw_sample(params: DSMLRParameters, rows: TrainingRows, size: int) -> Shard:
    """Return at most `size` random rows without the features and labels that none of them has."""
    n, random = rows.X.n_rows, np.random.default_rng((params.seed, SAMPLE_STREAM))
    numbers = np.sort(random.choice(n, min(n, size), replace=False, shuffle=False))
    sample = make_shard(
        rows.X,
        rows.Y,
        numbers,
        total=total_weight(rows.Y, rows.weights),
        weights=rows.weights,
        bias=params.bias,
    )
    X, targets = (_without_empty_columns(each) for each in (sample.X, sample.targets))
    return sample._replace(X=X, dense=None, targets=targets)


def _without_empty_columns(A: CSR) -> CSR:
    """Return A without the columns that have no entries; the order of the others is kept."""
    columns, indices = np.unique(A.indices, return_inverse=True)
    return csr(A.indptr, indices, A.data, max(len(columns), 1))


def _objective(params: DSMLRParameters, sample: Shard, rate: float) -> float:
    """Return the objective of a sample after some epochs, infinity if it is not finite."""
    params, local = replace(params, rate=1.0), ShardState(sample, 0, 1, None)
    block = initial_block(0, sample.targets.n_cols, sample.X.n_cols)
    for epoch in range(1, SAMPLE_EPOCHS + 1):
        for kind in ("update", "sum"):
            block, metrics = run_step(params, local, block, Step(kind, epoch, rate), owned=True)
    loss = math.inf if metrics.sweep is None else metrics.sweep.loss
    value = 0.5 * params.lam * (metrics.squared or 0.0) + loss
    return value if math.isfinite(value) else math.inf
