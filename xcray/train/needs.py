"""What trainings of all labels together take: closed forms, where `xcray.train.preflight` has a probe of single labels.

N rows, D' features with the constant one, K labels, P workers. All of W has 4 K D' bytes in single precision, and each family
holds it elsewhere: L-BFGS on the driver many times over and at each worker, LC at the workers in parts.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from xcray.data.dataset import Dataset
from xcray.index.packed import ENTRY
from xcray.solvers.multinomial import DENSE
from xcray.train.preflight import (
    IN_FLIGHT,
    INDEXED,
    LABEL,
    MODEL_LABEL,
    PART_LABEL,
    PROCESS,
    PUBLISHED,
    RAY,
    RAY_DRIVER,
    Estimate,
    mapped,
    merge_budget,
    place_of,
)
from xcray.train.spec import TrainSpec

PRUNED: Final = 0.25  # of the weights stay where small ones are dropped: a guess
PRODUCT: Final = 1.5e-9  # seconds of one core for an entry of X and a label, where a matrix of a column a label is multiplied
DENSE_PRODUCT: Final = 1.5e-10  # the same where X is dense
ROUNDS: Final = {"lbfgs": 150, "lc": 40}  # that trainings take, about
PRODUCTS: Final = {"lbfgs": 2.1, "lc": 12.0}  # of X with a matrix of a column a label, in a round
SCRATCH: Final = 8  # arrays of a solver's cells at a worker
CELLS: Final = {"lbfgs": 4 << 20, "lc": 16 << 20}  # bytes of one of them


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
    """N, D', K, entries of X with the constant feature, bytes of X and targets as shards hold them, weights of the model."""

    rows: int
    features: int
    labels: int
    entries: int
    n_bytes: int
    weights: int
    dense: bool

    @property
    def cell(self) -> float:
        """Seconds of one core for a product of all rows with all weights."""
        return self.entries * self.labels * (DENSE_PRODUCT if self.dense else PRODUCT)


def sizes_of(dataset: Dataset, solver: Any) -> Sizes:
    """The sizes of a training."""
    train, constant = dataset.train, int(solver.bias > 0.0)
    n, d, entries = train.n_rows, dataset.n_features + constant, train.X.nnz + constant * train.n_rows
    dense = entries >= DENSE * n * d
    seen = int((np.diff(train.XT.indptr) > 0).sum())
    weights = int(seen * dataset.n_labels * (PRUNED if solver.prune > 0.0 else 1.0))
    return Sizes(n, d, dataset.n_labels, entries, 8 * entries + 32 * n + 12 * train.Y.nnz + 4 * n * d * dense, weights, dense)


def going(spec: TrainSpec, dataset: Dataset, solver: Any, workers: int) -> Estimate:
    """For solvers of the family "rounds"."""
    sizes, name = sizes_of(dataset, solver), spec.solver
    W = 8 * sizes.features * sizes.labels
    scratch = SCRATCH * min(CELLS[name], 8 * sizes.rows * sizes.labels)
    if solver.replicated:  # LC: all rows, with their squares, at every worker; W in parts
        worker = 4 * sizes.n_bytes + SCRATCH * W // workers + scratch
        driver = 16 * workers * (sizes.rows + sizes.features) + W // workers
    else:
        worker = int(2.5 * sizes.n_bytes) // workers + 2 * W + scratch
        driver = (2 * solver.memory + 6) * W
    core = ROUNDS[name] * PRODUCTS[name] * sizes.cell
    return estimate_of(spec, dataset, workers, sizes, Needs(driver, worker, 2 * W, 2 * W, core))


def estimate_of(spec: TrainSpec, dataset: Dataset, workers: int, sizes: Sizes, needs: Needs) -> Estimate:
    """The needs of a family with those of every training."""
    place, K = place_of(spec), dataset.n_labels
    model = INDEXED * sizes.weights + (MODEL_LABEL + 16) * K + 40 * dataset.n_features
    pieces = max(min(ENTRY * sizes.weights, merge_budget(spec, sizes.weights)), IN_FLIGHT * workers)
    beside = place != "here"
    return Estimate(
        driver=LABEL * K + 24 * dataset.n_features + max(pieces, needs.driver) + RAY_DRIVER * beside,
        worker=needs.worker,
        workers=workers,
        place=place,
        process=PROCESS * beside,
        ray=(needs.store + RAY * (spec.ray_address is None)) * (place == "beside"),
        reserved=0,
        mapped=mapped(dataset),
        parts=8 * sizes.weights + PART_LABEL * K,
        model=model,
        weights=sizes.weights,
        core_seconds=needs.core_seconds,
        seconds=needs.core_seconds / workers + model / PUBLISHED,
        probed=needs.probed,
        checkpoints=needs.checkpoints,
    )
