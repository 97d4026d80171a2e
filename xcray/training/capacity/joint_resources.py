"""Resource model of joint trainings, whose labels cannot be probed one by one.

N rows, D' features with the constant one, K labels, P workers. All of W takes 4 K D' bytes in
single precision, and each family holds it elsewhere: DS-MLR never holds it as a whole, L-BFGS holds
several copies on the driver and one per worker, LC holds parts at the workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from xcray.data.dataset import Dataset
from xcray.index.packed import ENTRY_BYTES
from xcray.solvers.multinomial import MIN_DENSE_SHARE, make_shard
from xcray.solvers.quasi_newton import MAX_FULL_FEATURES
from xcray.solvers.rotation_contract import Grid, Step
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
    mapped_bytes,
    merge_budget,
    model_bytes,
    split_sizes,
    worker_place,
)
from xcray.training.spec import TrainSpec

if TYPE_CHECKING:
    from xcray.training.rotation.shard_worker import ShardSource

# Share of the weights that remains if small ones are dropped. A guess.
UNPRUNED_SHARE: Final = 0.25
# Core seconds per entry of X and label in a product with a matrix that has a column per label.
PRODUCT_SECONDS: Final = 1.0e-9
DENSE_PRODUCT_SECONDS: Final = 1.5e-10  # the same for dense X
# Rounds of a training: 15 to 260 and 31 to 500 on five small sets.
TYPICAL_ROUNDS: Final = {"lbfgs": 100, "lc": 120}
# Products of X per round with a matrix that has a column per label.
PRODUCTS_PER_ROUND: Final = {"lbfgs": 2.1, "lc": 12.0}
SCRATCH_ARRAYS: Final = 8  # arrays of a solver's cells at a worker
SCRATCH_BYTES: Final = {"lbfgs": 4 << 20, "lc": 16 << 20}  # bytes of one of them
# Epochs of a training: 49 to 150 on five small sets. Never more than the solver allows.
TYPICAL_EPOCHS: Final = 65
INNER_PRODUCT_SECONDS: Final = 4e-10  # core seconds per number of an inner product
# Core seconds per row, label and round: exponentials, sums.
SCORE_SECONDS: Final = {"lbfgs": 1e-8, "lc": 1.2e-7}
# Core seconds per weight and round: history of steps, directions.
UPDATE_SECONDS: Final = {"lbfgs": 1e-7, "lc": 1.2e-7}
# Seconds per round or epoch for any data: calls to the workers and their replies.
ROUND_OVERHEAD_SECONDS: Final = {"lbfgs": 8e-3, "lc": 2e-3, "dsmlr": 4e-3}
# Products in a sweep of steps, by whether X is dense.
PRODUCTS_PER_SWEEP: Final = {False: 1.0, True: 3.0}
OBSERVE_COST: Final = 0.5  # cost of a sweep that only sums, in sweeps of steps
MAX_CHECKPOINTS: Final = 3  # checkpoints on disk while one is written
# Permanent bytes per row of a shard: b, partial sums, and the state of the last sync point.
SHARD_BYTES_PER_ROW: Final = 64
SCORE_BYTES: Final = 8 << 20  # bytes of scores in use
MAX_PROBE_ROWS: Final = 4096  # rows timed by a probe

SweepTimer: TypeAlias = Callable[[Any, float], tuple[float, int]]


class ResourceNeeds(NamedTuple):
    """The part of an estimate that differs between solver families.

    Bytes: driver, in addition to what every training needs there; worker, per worker; store, of all
    objects in Ray's object store; checkpoints, on disk. core_seconds: of the training. probed: 1 if
    a cell was timed.
    """

    driver: int
    worker: int
    store: int
    checkpoints: int
    core_seconds: float
    probed: int = 0


class JointShape(NamedTuple):
    """Size of a joint training.

    N, D', K and the entries of X with the constant feature; n_bytes: of X and targets in the
    shards;
    weights: of the model; mapped: bytes of the data files.
    """

    rows: int
    features: int
    labels: int
    entries: int
    n_bytes: int
    weights: int
    dense: bool
    mapped: int

    @property
    def product_seconds(self) -> float:
        """Return the seconds of one core for a product of all rows with all weights."""
        return (
            self.entries * self.labels * (DENSE_PRODUCT_SECONDS if self.dense else PRODUCT_SECONDS)
        )


def joint_shape(dataset: Dataset, solver: Any) -> JointShape:
    """Return the shape of a training on a data set."""
    train = dataset.train
    n, features, labels, nnz = split_sizes(train)
    used_features = int((np.diff(train.XT.indptr) > 0).sum())
    constant = int(solver.bias > 0.0)
    d, entries = features + constant, nnz + constant * n
    dense = entries >= MIN_DENSE_SHARE * n * d
    weights_per_label = min(
        used_features * (UNPRUNED_SHARE if solver.prune > 0.0 else 1.0),
        getattr(solver, "prune_keep", 0) or used_features,
    )
    return JointShape(
        n,
        d,
        labels,
        entries,
        8 * entries + 32 * n + 12 * train.Y.nnz + 4 * n * d * dense,
        int(weights_per_label * labels),
        dense,
        mapped_bytes(dataset),
    )


def estimate_synchronous(spec: TrainSpec, shape: JointShape, solver: Any, workers: int) -> Estimate:
    """Estimate a training of the family "synchronous"."""
    name = spec.solver
    W = 8 * shape.features * shape.labels
    scratch = SCRATCH_ARRAYS * min(SCRATCH_BYTES[name], 8 * shape.rows * shape.labels)
    # LC: every worker holds all rows with their squares; W is distributed.
    if solver.replicated:
        worker = 4 * shape.n_bytes + SCRATCH_ARRAYS * W // workers + scratch
        driver = 16 * workers * (shape.rows + shape.features) + W // workers
    else:
        worker = int(2.5 * shape.n_bytes) // workers + 2 * W + scratch
        driver = (2 * solver.memory + 6) * W
    cells, n_weights = shape.rows * shape.labels, shape.features * shape.labels
    core = TYPICAL_ROUNDS[name] * (
        PRODUCTS_PER_ROUND[name] * shape.product_seconds
        + SCORE_SECONDS[name] * cells
        + UPDATE_SECONDS[name] * n_weights
        + ROUND_OVERHEAD_SECONDS[name]
    )
    return complete_estimate(
        spec, workers, shape, ResourceNeeds(driver, worker, 2 * W, 2 * W, core)
    )


def estimate_rotation(
    spec: TrainSpec,
    shape: JointShape,
    solver: Any,
    blocks: int,
    workers: int,
    time_sweep: SweepTimer | None = None,
) -> Estimate:
    """Estimate a training of the family "rotation" with `blocks` label blocks.

    time_sweep: times a sweep, given a block and the expected number of sweeps.
    """
    block = solver.initial_block(0, -(-shape.labels // blocks), shape.features)
    weights = block.W.nbytes
    # Width of C, which has one row of numbers per feature.
    gathered = min(shape.features, MAX_FULL_FEATURES) if solver.history else 1
    # A block includes its L-BFGS history.
    size = (
        weights
        + 4 * gathered * shape.features
        + weights * (2 * solver.history + 2 if solver.history else 0)
    )
    all_blocks, on_ray = size * blocks, spec.pool == "ray"
    # The rows of the worker's shards and their permanent state.
    shard_bytes = (
        -(-shape.n_bytes // workers) + SHARD_BYTES_PER_ROW * -(-shape.rows // workers) + SCORE_BYTES
    )
    # Blocks of other workers are mapped from the object store. One is copied, one is created.
    worker = shard_bytes + (2 * size if on_ray else 0)
    epochs, lbfgs_seconds = min(TYPICAL_EPOCHS, solver.epochs), 0.0
    # Most epochs have exact gradients, and blocks return the inner products of their history.
    if solver.history:
        lbfgs_seconds = (
            (2 * solver.history + 1)
            * (3 * solver.history + 2)
            * INNER_PRODUCT_SECONDS
            * shape.features
            * shape.labels
        )
    sweeps = (
        sum(
            1.0 if verb != "observe" else OBSERVE_COST
            for verb in solver.sweep_kinds(solver.sync_every, True)
        )
        / solver.sync_every
    )
    sweep_seconds, probed = (
        (PRODUCTS_PER_SWEEP[shape.dense] * shape.product_seconds, 0)
        if time_sweep is None
        else time_sweep(block, epochs * sweeps)
    )
    core = epochs * (sweeps * sweep_seconds + lbfgs_seconds + ROUND_OVERHEAD_SECONDS["dsmlr"])
    checkpoints = MAX_CHECKPOINTS * (all_blocks + 8 * shape.rows)
    # At a sync point the blocks of the previous one still exist, because the solver can roll back.
    driver_bytes = all_blocks + 2 * weights * blocks
    return complete_estimate(
        spec,
        workers,
        shape,
        ResourceNeeds(
            0 if on_ray else driver_bytes, worker, 2 * driver_bytes, checkpoints, core, probed
        ),
    )


def time_sweep(
    solver: Any,
    rows: ShardSource,
    shape: JointShape,
    probe_seconds: float | None,
    block: Any,
    sweeps: float,
) -> tuple[float, int]:
    """Return the core seconds of a sweep of steps, and 1 if some rows were timed (0 for a guess).

    rows: source of the shards. probe_seconds: time limit of the probe; None probes long trainings.
    sweeps: expected number of sweeps.
    """
    guess = PRODUCTS_PER_SWEEP[shape.dense] * shape.product_seconds
    allowed = (
        (min(1.0, sweeps * guess / 50) if sweeps * guess > MIN_PROBED_SECONDS else 0.0)
        if probe_seconds is None
        else probe_seconds
    )
    if allowed <= 0.0:
        return guess, 0
    width = block.hi - block.lo
    share = allowed / max(guess * width / shape.labels, 1e-9)  # share of the rows to time
    numbers = np.linspace(
        0, shape.rows - 1, max(1, min(shape.rows, MAX_PROBE_ROWS, int(share * shape.rows)))
    ).astype(np.int64)
    shard = make_shard(
        rows.X,
        rows.Y,
        np.unique(numbers),
        total=rows.split.total,
        weights=rows.weights,
        bias=rows.split.bias,
    )
    entries = max(shard.X.nnz, 1)
    state = solver.make_shard_state(shard, 0, Grid(1, 1), None)
    solver.warm_up()
    verb = solver.sweep_kinds(1, False)[0]
    # The first step touches all memory, which takes extra time once.
    block = solver.step(state, block, Step(verb, 1, 1.0), owned=True)[0]
    state = solver.make_shard_state(shard, 0, Grid(1, 1), None)
    began = time.thread_time()
    solver.step(state, block, Step(verb, 1, 1.0), owned=True)
    took = max(time.thread_time() - began, 1e-6)
    return took * shape.entries / entries * shape.labels / width, 1


def complete_estimate(
    spec: TrainSpec, workers: int, shape: JointShape, needs: ResourceNeeds
) -> Estimate:
    """Return the estimate of a family, completed with the needs of every training."""
    place, K = worker_place(spec), shape.labels
    model = model_bytes(shape.weights, K, shape.features)
    pieces = max(
        min(ENTRY_BYTES * shape.weights, merge_budget(spec, shape.weights)),
        IN_FLIGHT_BYTES * workers,
    )
    separate = place != "here"
    return Estimate(
        driver=DRIVER_BYTES_PER_LABEL * K
        + 24 * shape.features
        + max(pieces, needs.driver)
        + RAY_DRIVER_BYTES * separate,
        worker=needs.worker,
        workers=workers,
        place=place,
        process=PROCESS_BYTES * separate,
        ray=(needs.store + RAY_BYTES * (spec.ray_address is None)) * (place == "beside"),
        reserved=0,
        mapped=shape.mapped,
        parts=8 * shape.weights + PART_BYTES_PER_LABEL * K,
        model=model,
        weights=shape.weights,
        core_seconds=needs.core_seconds,
        seconds=needs.core_seconds / workers + model / PUBLISH_BYTES_PER_SECOND,
        probed=needs.probed,
        checkpoints=needs.checkpoints,
    )
