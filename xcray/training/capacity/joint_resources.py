"""What trainings of all labels together take: closed forms, where `xcray.training.capacity.preflight` has a probe of single labels.

N rows, D' features with the constant one, K labels, P workers. All of W has 4 K D' bytes in single precision, and each family
holds it elsewhere: DS-MLR nowhere as a whole, L-BFGS on the driver many times over and at each worker, LC at the workers in parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from xcray.data.dataset import Dataset
from xcray.index.packed import ENTRY
from xcray.solvers.multinomial import DENSE, shard_of
from xcray.solvers.quasi_newton import WHOLE
from xcray.solvers.rotation_contract import Grid, Step
from xcray.training.capacity.preflight import (
    IN_FLIGHT,
    LABEL,
    PART_LABEL,
    PROCESS,
    PUBLISHED,
    RAY,
    RAY_DRIVER,
    WORTH,
    Estimate,
    mapped,
    merge_budget,
    model_bytes,
    place_of,
)
from xcray.training.rotation.shard_worker import Rows
from xcray.training.spec import TrainSpec

PRUNED: Final = 0.25  # of the weights stay where small ones are dropped: a guess
PRODUCT: Final = 1.0e-9  # seconds of one core for an entry of X and a label, where a matrix of a column a label is multiplied
DENSE_PRODUCT: Final = 1.5e-10  # the same where X is dense
ROUNDS: Final = {
    "lbfgs": 100,
    "lc": 120,
}  # that trainings take: 15 to 260 and 31 to 500 on five small sets
PRODUCTS: Final = {"lbfgs": 2.1, "lc": 12.0}  # of X with a matrix of a column a label, in a round
SCRATCH: Final = 8  # arrays of a solver's cells at a worker
CELLS: Final = {"lbfgs": 4 << 20, "lc": 16 << 20}  # bytes of one of them
EPOCHS: Final = (
    65  # that trainings take: 49 to 150 on five small sets; at most as many as are allowed
)
VECTOR: Final = 4e-10  # seconds of one core for a number of an inner product
SCORED: Final = {
    "lbfgs": 1e-8,
    "lc": 1.2e-7,
}  # seconds of one core for a row and a label, in a round: exponentials, sums
KEPT_UP: Final = {
    "lbfgs": 1e-7,
    "lc": 1.2e-7,
}  # for a weight, in a round: what is remembered of steps, directions
TURN: Final = {
    "lbfgs": 8e-3,
    "lc": 2e-3,
    "dsmlr": 4e-3,
}  # of a round, or an epoch, whatever the data: asking and hearing
STEPS: Final = {False: 1.0, True: 3.0}  # a lap of steps, in products, by whether X is dense
SUMMED: Final = 0.5  # a lap that only sums, in laps of steps
KEPT: Final = 3  # checkpoints on disk while one is written
SHARD_ROW: Final = 64  # bytes that stay at a shard for each row: b, partial sums, and what was kept at the last rest
CELL: Final = 8 << 20  # bytes of scores in hand
PROBED: Final = 4096  # rows that are timed, at most

Pace: TypeAlias = Callable[[Any, float], tuple[float, int]]


class Needs(NamedTuple):
    """What differs from family to family. Bytes: driver, beside what every training needs there; worker, at each; store, what all
    hold in Ray's object store together; checkpoints, on disk. core_seconds: of training. probed: 1 when a cell was timed."""

    driver: int
    worker: int
    store: int
    checkpoints: int
    core_seconds: float
    probed: int = 0


class Sizes(NamedTuple):
    """N, D', K, entries of X with the constant feature, bytes of X and targets as shards hold them, weights of the model, bytes of
    the data's files; left: see `Shape`."""

    rows: int
    features: int
    labels: int
    entries: int
    n_bytes: int
    weights: int
    dense: bool
    mapped: int
    left: int | None = None

    @property
    def cell(self) -> float:
        """Seconds of one core for a product of all rows with all weights."""
        return self.entries * self.labels * (DENSE_PRODUCT if self.dense else PRODUCT)


def sizes_of(dataset: Dataset, solver: Any) -> Sizes:
    """The sizes of a training."""
    train = dataset.train
    seen = int((np.diff(train.XT.indptr) > 0).sum())
    return sizes_by(
        solver,
        (train.n_rows, dataset.n_features, dataset.n_labels, train.X.nnz),
        train.Y.nnz,
        seen,
        mapped(dataset),
    )


def sizes_by(
    solver: Any, sizes: tuple[int, int, int, int], pairs: int, seen: int, n_bytes: int
) -> Sizes:
    """The same by numbers: N, D, K and entries of X; pairs of row and label; features that rows have; bytes of the data's files."""
    n, features, labels, nnz = sizes
    constant = int(solver.bias > 0.0)
    d, entries = features + constant, nnz + constant * n
    dense = entries >= DENSE * n * d
    kept = min(
        seen * (PRUNED if solver.prune > 0.0 else 1.0), getattr(solver, "prune_keep", 0) or seen
    )
    return Sizes(
        n,
        d,
        labels,
        entries,
        8 * entries + 32 * n + 12 * pairs + 4 * n * d * dense,
        int(kept * labels),
        dense,
        n_bytes,
    )


def going(spec: TrainSpec, sizes: Sizes, solver: Any, workers: int) -> Estimate:
    """For solvers of the family "rounds"."""
    name = spec.solver
    W = 8 * sizes.features * sizes.labels
    scratch = SCRATCH * min(CELLS[name], 8 * sizes.rows * sizes.labels)
    if solver.replicated:  # LC: all rows, with their squares, at every worker; W in parts
        worker = 4 * sizes.n_bytes + SCRATCH * W // workers + scratch
        driver = 16 * workers * (sizes.rows + sizes.features) + W // workers
    else:
        worker = int(2.5 * sizes.n_bytes) // workers + 2 * W + scratch
        driver = (2 * solver.memory + 6) * W
    cells, held = sizes.rows * sizes.labels, sizes.features * sizes.labels
    core = ROUNDS[name] * (
        PRODUCTS[name] * sizes.cell + SCORED[name] * cells + KEPT_UP[name] * held + TURN[name]
    )
    return estimate_of(spec, workers, sizes, Needs(driver, worker, 2 * W, 2 * W, core))


def circulating(
    spec: TrainSpec, sizes: Sizes, solver: Any, blocks: int, workers: int, pace: Pace | None = None
) -> Estimate:
    """For solvers of the family "circulate", in so many blocks; pace: times a lap, given a block and the laps there will be."""
    block = solver.start(0, -(-sizes.labels // blocks), sizes.features)
    weights = block.W.nbytes
    gathered = min(sizes.features, WHOLE) if solver.pairs else 1  # of C, a row of numbers a feature
    size = (
        weights
        + 4 * gathered * sizes.features
        + weights * (2 * solver.pairs + 2 if solver.pairs else 0)
    )  # with what it remembers
    whole, shared = size * blocks, spec.pool == "ray"
    own = (
        -(-sizes.n_bytes // workers) + SHARD_ROW * -(-sizes.rows // workers) + CELL
    )  # rows of its shards, and what stays there
    worker = own + (
        2 * size if shared else 0
    )  # blocks of others are mapped from the store; one is copied, one is made
    epochs, exact = min(EPOCHS, solver.epochs), 0.0
    if solver.pairs:  # for most of them gradients are exact, and blocks tell the inner products of what they remember
        exact = (
            (2 * solver.pairs + 1) * (3 * solver.pairs + 2) * VECTOR * sizes.features * sizes.labels
        )
    laps = (
        sum(1.0 if verb != "observe" else SUMMED for verb in solver.laps(solver.rest_every, True))
        / solver.rest_every
    )
    lap, probed = (
        (STEPS[sizes.dense] * sizes.cell, 0) if pace is None else pace(block, epochs * laps)
    )
    core = epochs * (laps * lap + exact + TURN["dsmlr"])
    checkpoints = KEPT * (whole + 8 * sizes.rows)
    held = (
        whole + 2 * weights * blocks
    )  # at a rest the blocks of the rest before are still there, should the solver go back
    return estimate_of(
        spec,
        workers,
        sizes,
        Needs(0 if shared else held, worker, 2 * held, checkpoints, core, probed),
    )


def timed_lap(
    solver: Any, rows: Rows, sizes: Sizes, probe: float | None, block: Any, laps: float
) -> tuple[float, int]:
    """Seconds of one core for a lap of steps, and 1 when some rows were timed with a block (0: guessed).

    rows: what shards are cut from; probe: seconds it may take, None for what is worth it; laps: that there will be.
    """
    guess = STEPS[sizes.dense] * sizes.cell
    allowed = (
        (min(1.0, laps * guess / 50) if laps * guess > WORTH else 0.0) if probe is None else probe
    )
    if allowed <= 0.0:
        return guess, 0
    width = block.hi - block.lo
    share = allowed / max(guess * width / sizes.labels, 1e-9)  # of the rows, to meet this block
    numbers = np.linspace(
        0, sizes.rows - 1, max(1, min(sizes.rows, PROBED, int(share * sizes.rows)))
    ).astype(np.int64)
    shard = shard_of(
        rows.X,
        rows.Y,
        np.unique(numbers),
        total=rows.how.total,
        weights=rows.weights,
        bias=rows.how.bias,
    )
    entries = max(shard.X.nnz, 1)
    local = solver.local(shard, 0, Grid(1, 1), None)
    solver.warm_up()
    verb = solver.laps(1, False)[0]
    block = solver.step(local, block, Step(verb, 1, 1.0), owned=True)[
        0
    ]  # touches everything, which takes its time once
    local = solver.local(shard, 0, Grid(1, 1), None)
    began = time.thread_time()
    solver.step(local, block, Step(verb, 1, 1.0), owned=True)
    took = max(time.thread_time() - began, 1e-6)
    return took * sizes.entries / entries * sizes.labels / width, 1


def estimate_of(spec: TrainSpec, workers: int, sizes: Sizes, needs: Needs) -> Estimate:
    """The needs of a family with those of every training."""
    place, K = place_of(spec), sizes.labels
    model = model_bytes(sizes.weights, K, sizes.features)
    pieces = max(
        min(ENTRY * sizes.weights, merge_budget(spec, sizes.weights, sizes.left)),
        IN_FLIGHT * workers,
    )
    beside = place != "here"
    return Estimate(
        driver=LABEL * K + 24 * sizes.features + max(pieces, needs.driver) + RAY_DRIVER * beside,
        worker=needs.worker,
        workers=workers,
        place=place,
        process=PROCESS * beside,
        ray=(needs.store + RAY * (spec.ray_address is None)) * (place == "beside"),
        reserved=0,
        mapped=sizes.mapped,
        parts=8 * sizes.weights + PART_LABEL * K,
        model=model,
        weights=sizes.weights,
        core_seconds=needs.core_seconds,
        seconds=needs.core_seconds / workers + model / PUBLISHED,
        probed=needs.probed,
        checkpoints=needs.checkpoints,
    )
