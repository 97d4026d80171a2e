"""Resource estimates of trainings by epochs or rounds, whose labels cannot be probed one by one.

The solver declares what it needs where, from the shape of the data; see
`xcray.solvers.declarations.ResourceNeeds`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from xcray.data.dataset import Dataset
from xcray.index.packed import ENTRY_BYTES
from xcray.solvers.declarations import ProblemShape, ResourceNeeds
from xcray.solvers.multinomial import MIN_DENSE_SHARE, make_shard
from xcray.solvers.rotation_contract import Grid, RotationSolver, Step
from xcray.training.capacity.preflight import (
    DRIVER_BYTES_PER_LABEL,
    IN_FLIGHT_BYTES,
    MIN_PROBED_SECONDS,
    PART_BYTES_PER_LABEL,
    PROCESS_BYTES,
    PUBLISH_BYTES_PER_SECOND,
    RAY_BYTES,
    RAY_DRIVER_BYTES,
    Estimate,
    merge_budget,
    model_bytes,
    worker_place,
)
from xcray.training.capacity.worker_memory import mapped_bytes, split_sizes
from xcray.training.spec import TrainSpec

if TYPE_CHECKING:
    from xcray.training.rotation.shard_worker import ShardSource

MAX_PROBE_ROWS: Final = 4096  # rows timed by a probe


def problem_shape(dataset: Dataset, features: int) -> ProblemShape:
    """Return the shape of a training on a data set; features: D', with added constant ones."""
    train = dataset.train
    n, inputs, labels, nnz = split_sizes(train)
    entries = nnz + max(0, features - inputs) * n
    dense = entries >= MIN_DENSE_SHARE * n * features
    return ProblemShape(
        rows=n,
        features=features,
        labels=labels,
        entries=entries,
        used_features=int((np.diff(train.XT.indptr) > 0).sum()),
        n_bytes=8 * entries + 32 * n + 12 * train.Y.nnz + 4 * n * features * dense,
        dense=dense,
    )


def time_sweep(
    solver: RotationSolver,
    rows: ShardSource,
    shape: ProblemShape,
    needs: ResourceNeeds,
    probe_seconds: float | None = None,
) -> ResourceNeeds | None:
    """Return the needs with the measured time of a sweep of steps; None if none was timed.

    rows: source of the shards. probe_seconds: time limit of the probe; None probes long trainings.
    """
    guess = needs.sweep_seconds
    expected = needs.sweeps * guess
    default = min(1.0, expected / 50) if expected > MIN_PROBED_SECONDS else 0.0
    allowed = default if probe_seconds is None else probe_seconds
    if allowed <= 0.0 or not needs.sweeps:
        return None
    split = rows.split
    block = solver.initial_block(0, -(-shape.labels // split.grid.blocks), shape.features)
    width = block.hi - block.lo
    share = allowed / max(guess * width / shape.labels, 1e-9)  # share of the rows to time
    n = max(1, min(shape.rows, MAX_PROBE_ROWS, int(share * shape.rows)))
    numbers = np.unique(np.linspace(0, shape.rows - 1, n).astype(np.int64))
    shard = make_shard(
        rows.X, rows.Y, numbers, total=split.total, weights=rows.weights, bias=split.bias
    )
    solver.warm_up()
    step = Step(solver.sweep_kinds(1, False)[0], 1, 1.0)
    # The first step touches all memory, which takes extra time once.
    state = solver.make_shard_state(shard, 0, Grid(1, 1), None)
    block = solver.step(state, block, step, owned=True)[0]
    state = solver.make_shard_state(shard, 0, Grid(1, 1), None)
    began = time.thread_time()
    solver.step(state, block, step, owned=True)
    took = max(time.thread_time() - began, 1e-6)
    sweep = took * shape.entries / max(shard.X.nnz, 1) * shape.labels / width
    core_seconds = needs.core_seconds + needs.sweeps * (sweep - guess)
    return needs._replace(core_seconds=core_seconds, sweep_seconds=sweep)


def complete_estimate(
    spec: TrainSpec,
    workers: int,
    dataset: Dataset,
    shape: ProblemShape,
    needs: ResourceNeeds,
    probed: int = 0,
) -> Estimate:
    """Return the estimate of a solver's needs, completed with those of every training.

    probed: 1 if a sweep was timed.
    """
    place, K = worker_place(spec), shape.labels
    model = model_bytes(needs.weights, K, shape.features)
    pieces = max(
        min(ENTRY_BYTES * needs.weights, merge_budget(spec, needs.weights)),
        IN_FLIGHT_BYTES * workers,
    )
    separate = place != "thread"
    return Estimate(
        driver=DRIVER_BYTES_PER_LABEL * K
        + 24 * shape.features
        + max(pieces, needs.driver)
        + RAY_DRIVER_BYTES * separate,
        worker=needs.worker,
        workers=workers,
        place=place,
        process=PROCESS_BYTES * separate,
        ray=(needs.store + RAY_BYTES * (spec.ray_address is None)) * (place == "process"),
        reserved=0,
        mapped=mapped_bytes(dataset),
        parts=8 * needs.weights + PART_BYTES_PER_LABEL * K,
        model=model,
        weights=needs.weights,
        core_seconds=needs.core_seconds,
        seconds=needs.core_seconds / workers + model / PUBLISH_BYTES_PER_SECOND,
        probed=probed,
        checkpoints=needs.checkpoints,
    )
