"""Probe of a training by shards: the time of one sweep, measured on some rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from xcray.solvers.declarations import ProblemShape, ResourceNeeds
from xcray.solvers.row_shards import make_shard
from xcray.solvers.shard_contract import ShardSolver
from xcray.training.capacity.preflight import MIN_PROBED_SECONDS
from xcray.training.shards.source import ShardSource

MAX_PROBE_ROWS: Final = 4096  # rows timed by a probe


def time_sweep(
    solver: ShardSolver,
    source: ShardSource,
    shape: ProblemShape,
    needs: ResourceNeeds,
    probe_seconds: float | None = None,
) -> ResourceNeeds | None:
    """Return the needs with the measured time of a sweep of steps; None if none was timed.

    probe_seconds: time limit of the probe; None probes long trainings.
    """
    guess = needs.sweep_seconds
    expected = needs.sweeps * guess
    default = min(1.0, expected / 50) if expected > MIN_PROBED_SECONDS else 0.0
    allowed = default if probe_seconds is None else probe_seconds
    if allowed <= 0.0 or not needs.sweeps:
        return None
    grid, split, rows = source
    width = -(-shape.labels // grid.blocks)  # labels of a block
    share = allowed / max(guess * width / shape.labels, 1e-9)  # share of the rows to time
    n = max(1, min(shape.rows, MAX_PROBE_ROWS, int(share * shape.rows)))
    numbers = np.unique(np.linspace(0, shape.rows - 1, n).astype(np.int64))
    shard = make_shard(
        rows.X, rows.Y, numbers, total=split.total, weights=rows.weights, bias=split.bias
    )
    solver.warm_up()
    took = max(solver.time_sweep(shard, width), 1e-6)
    sweep = took * shape.entries / max(shard.X.nnz, 1) * shape.labels / width
    core_seconds = needs.core_seconds + needs.sweeps * (sweep - guess)
    return needs._replace(core_seconds=core_seconds, sweep_seconds=sweep)
