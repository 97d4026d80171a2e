"""Resource estimates of trainings by epochs or rounds, whose labels cannot be probed one by one.

The solver declares what it needs where, from the shape of the data; see
`xcray.solvers.declarations.ResourceNeeds`.
"""

from __future__ import annotations

import numpy as np

from xcray.data.dataset import Dataset
from xcray.index.packed import ENTRY_BYTES
from xcray.solvers.declarations import ProblemShape, ResourceNeeds
from xcray.solvers.row_shards import MIN_DENSE_SHARE
from xcray.training.capacity.preflight import (
    DRIVER_BYTES_PER_LABEL,
    IN_FLIGHT_BYTES,
    PART_BYTES_PER_LABEL,
    PROCESS_BYTES,
    PUBLISH_BYTES_PER_SECOND,
    RAY_BYTES,
    RAY_DRIVER_BYTES,
    WEIGHTS_PER_ROOT,
    Estimate,
    merge_budget,
    model_bytes,
    worker_place,
)
from xcray.training.capacity.worker_memory import entries_per_label, mapped_bytes, split_sizes
from xcray.training.spec import TrainSpec


def problem_shape(dataset: Dataset, features: int) -> ProblemShape:
    """Return the shape of a training on a data set; features: D', with added constant ones."""
    train = dataset.train
    n, inputs, labels, nnz = split_sizes(train)
    entries = nnz + max(0, features - inputs) * n
    dense = entries >= MIN_DENSE_SHARE * n * features
    counts, index_bytes = np.diff(train.XT.indptr), 32 * n + 12 * train.Y.nnz
    weights = WEIGHTS_PER_ROOT * np.sqrt(entries_per_label(train))
    return ProblemShape(
        rows=n,
        features=features,
        labels=labels,
        entries=entries,
        used_features=int((counts > 0).sum()),
        n_bytes=8 * entries + index_bytes + 4 * n * features * dense,
        dense=dense,
        index_bytes=index_bytes,
        feature_counts=counts,
        sparse_weights=int(np.minimum(weights, inputs).sum()),
    )


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
