"""Deployment sizing, from N, D, K and the entries of X, or from a sample of labels solved here.

By numbers alone, the label frequencies are modelled on text data sets: label k of K has rows in
proportion to k^-s, where s follows from the mean and the maximum. The cost per label comes from
`xcray.training.capacity.cost_formulas`. No label is solved, so the result is a first guess;
docs/operations.md gives its error. `size_from_dataset` solves labels of a data set for some seconds
(`xcray.training.capacity.sampling`) and returns a range. Units are bytes unless stated otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, frozen
from xcray.data.dataset import Dataset
from xcray.errors import ParameterError
from xcray.index.packed import BUFFER_BYTES
from xcray.solvers import make_solver
from xcray.training.capacity.cost_formulas import (
    MatrixShape,
    PredictedCosts,
    predict_costs,
    uses_newton,
)
from xcray.training.capacity.joint_resources import (
    estimate_rotation,
    estimate_synchronous,
    make_joint_shape,
)
from xcray.training.capacity.preflight import (
    MAX_MERGE_PASSES,
    MIB,
    PROCESS_BYTES,
    Estimate,
    LabelCosts,
    MeasuredRates,
    TrainingShape,
    estimate_from,
    mapped_bytes,
    mean_sq_norm,
    split_sizes,
)
from xcray.training.capacity.sampling import (
    TIMING_NOISE,
    Range,
    estimate_total,
    scale_to_total,
    solve_sample,
)
from xcray.training.capacity.serving import (
    ANSWERING_BYTES,
    API_BYTES,
    LIBRARY_BYTES,
    SCAN_BYTES_PER_LABEL,
    uses_dense_search,
)
from xcray.training.planning.deployment_options import (
    DatasetShape,
    DeploymentOptions,
    check_options,
    check_shape,
)
from xcray.training.spec import TrainSpec
from xcray.training.strategies import make_strategy
from xcray.training.strategy import TrainingContext

GIB: Final = 1 << 30
# Smallest share of all entries in the postings of a row's features. 0.05 to 0.2 on six text sets.
MIN_OVERLAP: Final = 0.06
# Rows with at least this share of entries are assumed to be standardised, others of length 1.
MIN_DENSE_SHARE: Final = 0.1
# Share of rows with the most frequent label. 0.004 to 0.14 on these sets.
MAX_LABEL_SHARE: Final = 0.02
# Bytes of a data set's files: X by row and by column, targets, names of both.
BYTES_PER_ENTRY, BYTES_PER_ROW, BYTES_PER_PAIR, BYTES_PER_NAME = 16, 16, 8, 48
# Bytes per entry of an uploaded svmlight file, stored until its data set is built.
TEXT_BYTES_PER_ENTRY: Final = 12
# Bounds as factors of the core seconds and of the weights, see docs/operations.md.
FORMULA_SECONDS_RANGE: Final = Range(1.0, 0.35, 2.5)
FORMULA_WEIGHTS_RANGE: Final = Range(1.0, 0.3, 2.0)
# Bounds as factors of the expected passes of joint solvers.
JOINT_SECONDS_RANGE: Final = Range(1.0, 0.3, 2.5)
EXACT_RANGE: Final = Range(1.0, 1.0, 1.0)
# Request bodies in memory (XCRAY_MAX_BODY_MEMORY_BYTES), part of the limit.
BODY_BYTES: Final = 256 * 10**6
RUNNER_BYTES: Final = 330 * MIB  # process of a runner
RAY_HEAD_BYTES: Final = 1600 * MIB  # Ray's processes on a head with its dashboard
RAY_NODE_BYTES: Final = 320 * MIB  # Ray's processes on any other node
# Object store of a node whose data are mapped files: results in transit.
OBJECT_STORE_BYTES: Final = 512 * MIB
STORE_BYTES: Final = GIB  # job store, logs, uploads of texts
# Free disk that uploads must leave (XCRAY_DISK_RESERVE_BYTES).
DISK_RESERVE_BYTES: Final = 2 * 10**9
SAFETY_FACTOR: Final = 1.25  # of memory requests and the home's size
# Memory assumed to be free: a pod is made as large as necessary.
ASSUMED_FREE_BYTES: Final = 8 * MAX_MERGE_PASSES * BUFFER_BYTES
# Share of the worker cores that is busy; the rest is lost to packing and to the last batches.
BUSY_SHARE: Final = 0.9


class PodSize(NamedTuple):
    """Size of a kind of pod.

    number: replicas. memory: request. limit: memory limit. objects: Ray's object store, included in
    both.
    """

    number: int
    cores: int
    memory: int
    limit: int
    objects: int = 0


class DeploymentSize(NamedTuple):
    """Requirements of a deployment.

    training: see `Estimate`, with the workers of all nodes. pods: by name. disk: of the home
    directory, by kind of content. home: its total size, with a safety margin. core_hours, weights:
    of one training, with bounds. hours: of one training. known: description of the basis of these
    figures.
    """

    training: Estimate
    pods: dict[str, PodSize]
    disk: dict[str, int]
    home: int
    core_hours: Range
    weights: Range
    hours: float
    known: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        ranges = {"core_hours": self.core_hours._asdict(), "weights": self.weights._asdict()}
        plain = {**self._asdict(), "training": self.training.as_dict(), **ranges}
        return {**plain, "pods": {name: pod._asdict() for name, pod in self.pods.items()}}


def size_from_numbers(
    data: DatasetShape,
    options: DeploymentOptions,
    solver: str = "ppdsparse",
    params: Mapping[str, Any] | None = None,
) -> DeploymentSize:
    """Size a deployment that trains and serves a model, from numbers alone.

    Raises ParameterError for impossible numbers.
    """
    check_shape(data)
    check_options(options)
    basis = "sizes alone: no label was solved"
    weights_range = (
        FORMULA_WEIGHTS_RANGE
        if make_solver(solver, params or {}).family == "independent"
        else EXACT_RANGE
    )
    return build_size(
        data,
        options,
        partial(estimate_from_formula, data, options, solver, params or {}),
        basis,
        FORMULA_SECONDS_RANGE,
        weights_range,
    )


def size_from_dataset(
    path: Path | str,
    options: DeploymentOptions,
    solver: str = "ppdsparse",
    params: Mapping[str, Any] | None = None,
    seconds: float = 20.0,
) -> DeploymentSize:
    """Size a deployment for an existing data set.

    Labels are sampled and solved on this machine for about `seconds` of one core. For solvers that
    train all labels together, one pass is timed instead.
    Raises ParameterError, NotFound, Corrupt.
    """
    check_options(options)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ParameterError("seconds must be above 0: it is the time spent on solving labels")
    solver_object, dataset = make_solver(solver, params or {}), Dataset.open(path)
    train = dataset.train
    if not train.Y.nnz:
        raise ParameterError(
            "no row has a label, so nothing can be measured: check the label column of the source"
        )
    held_out = dataset.test.n_rows / train.n_rows if dataset.test is not None else 0.0
    data = DatasetShape(
        *split_sizes(train), train.Y.nnz / train.n_rows, held_out, mean_sq_norm=mean_sq_norm(train)
    )
    if solver_object.family != "independent":
        basis = "a pass timed here; the number of passes is a guess"
        return build_size(
            data,
            options,
            partial(estimate_with_timing, dataset, options, solver, params or {}, seconds),
            basis,
            JOINT_SECONDS_RANGE,
            EXACT_RANGE,
        )
    if solver_object.joint:
        raise ParameterError(
            f"{solver} solves all labels in one task, so labels cannot be sampled: "
            "use `xcray train DIR --estimate`"
        )
    guessed_seconds = guess_label_seconds(solver_object, dataset)
    sample = solve_sample(solver_object, train, guessed_seconds, seconds)
    core, weights = estimate_total(sample, floor=TIMING_NOISE), estimate_total(sample, 1)
    predicted = predict_label_costs(solver_object, data, dataset.label_counts.astype(np.float64))
    label_weights = scale_to_total(
        predicted.weights * (dataset.label_counts > 0), weights.value, float(data.features)
    )
    label_costs = LabelCosts(
        guessed_seconds * (core.value / guessed_seconds.sum()),
        label_weights,
        float(predicted.active.max()) * data.entries / data.rows,
    )
    shape = make_training_shape(data, label_costs, predicted.extra_bytes)._replace(
        mapped=mapped_bytes(dataset)
    )
    sample_basis = (
        f"{sample.n_labels:,} labels solved here, sampled by cost; "
        "9 of 10 such ranges contain the true value"
    )
    make = partial(estimate_independent, shape, options, solver, params or {})
    return build_size(
        data,
        options,
        make,
        sample_basis,
        core.relative_to(core.value),
        weights.relative_to(weights.value),
    )


def build_size(
    data: DatasetShape,
    options: DeploymentOptions,
    estimate_for: Callable[[int], Estimate],
    basis: str,
    seconds_range: Range,
    weights_range: Range,
) -> DeploymentSize:
    """Size a deployment around a training.

    estimate_for: returns the estimate for a number of workers. seconds_range, weights_range: bounds
    of time and weights as factors of the estimate.
    """
    one_pod = estimate_for(options.cores)
    hours = (
        one_pod.core_seconds / BUSY_SHARE / options.cores / 3600
        if options.hours is None
        else options.hours
    )
    nodes = (
        max(
            1,
            math.ceil(
                one_pod.core_seconds / BUSY_SHARE / options.cores / 3600 / max(hours, 1e-9) - 1e-9
            ),
        )
        if options.cluster
        else 1
    )
    training = estimate_for(nodes * options.cores) if nodes > 1 else one_pod
    disk = disk_usage(data, options, training)
    return DeploymentSize(
        training=training,
        pods=pod_sizes(options, training, data.labels, data.features, nodes),
        disk=disk,
        home=int(SAFETY_FACTOR * (sum(disk.values())) + DISK_RESERVE_BYTES),
        core_hours=seconds_range.scale(training.core_seconds / 3600),
        weights=weights_range.scale(training.weights),
        hours=training.seconds / BUSY_SHARE / 3600,
        known=basis,
    )


def make_train_spec(
    options: DeploymentOptions,
    workers: int,
    solver: str,
    params: Mapping[str, Any],
    path: str = "data",
) -> TrainSpec:
    """Return the spec of a training in such a deployment."""
    pool_fields = (
        {"pool": "ray", "ray_address": "cluster:6379"} if options.cluster else {"pool": "threads"}
    )
    return TrainSpec(
        path,
        solver=solver,
        params=params,
        workers=workers,
        **pool_fields,  # type: ignore[arg-type]
    )


def estimate_from_formula(
    data: DatasetShape,
    options: DeploymentOptions,
    solver: str,
    params: Mapping[str, Any],
    workers: int,
) -> Estimate:
    """Estimate one training by the formula of its solver family.

    Raises ParameterError for a solver that has no formula.
    """
    solver_object, spec = (
        make_solver(solver, params),
        make_train_spec(options, workers, solver, params),
    )
    if solver_object.family == "independent":
        if not hasattr(solver_object, "cost_terms_from_counts"):
            raise ParameterError(
                f"{solver} can be estimated only from data: "
                f"use `xcray train DIR --solver {solver} --estimate`"
            )
        predicted = predict_label_costs(solver_object, data, rows_per_label(data))
        label_costs = LabelCosts(
            predicted.seconds,
            predicted.weights,
            float(predicted.active.max()) * data.entries / data.rows,
        )
        return estimate_independent(
            make_training_shape(data, label_costs, predicted.extra_bytes),
            options,
            solver,
            params,
            workers,
        )
    numbers, pairs = (
        (data.rows, data.features, data.labels, data.entries),
        int(data.rows * data.labels_per_row),
    )
    shape = make_joint_shape(
        solver_object, numbers, pairs, data.features, dataset_bytes(data)
    )._replace(free_bytes=ASSUMED_FREE_BYTES)
    if solver_object.family == "synchronous":
        return estimate_synchronous(spec, shape, solver_object, workers)
    grid = solver_object.grid(data.rows, data.labels, shape.features, workers)
    return estimate_rotation(spec, shape, solver_object, grid.blocks, min(workers, grid.shards))


def estimate_independent(
    shape: TrainingShape,
    options: DeploymentOptions,
    solver: str,
    params: Mapping[str, Any],
    workers: int,
) -> Estimate:
    """Estimate a training whose labels are solved independently."""
    solver_object, spec = (
        make_solver(solver, params),
        make_train_spec(options, workers, solver, params),
    )
    return estimate_from(
        spec,
        shape,
        solver_object,
        frozen(np.arange(shape.labels), np.int32),
        workers,
        MeasuredRates(),
    )


def estimate_with_timing(
    dataset: Dataset,
    options: DeploymentOptions,
    solver: str,
    params: Mapping[str, Any],
    seconds: float,
    workers: int,
) -> Estimate:
    """Estimate a training of all labels together, from a pass timed on this machine."""
    spec = make_train_spec(options, workers, solver, params, str(dataset.path))
    strategy = make_strategy(
        TrainingContext(spec, dataset, make_solver(solver, params), dataset.path, "size")
    )
    return strategy.estimate(frozen(np.arange(dataset.n_labels), np.int32), seconds)


def predict_label_costs(solver: Any, data: DatasetShape, counts: Float64) -> PredictedCosts:
    """Predict the costs of labels with `counts` (K,) rows in such data."""
    length = data.entries / data.rows
    dense = data.entries >= MIN_DENSE_SHARE * data.rows * data.features
    norm = data.mean_sq_norm or (max(1.0, length) if dense else 1.0)
    # Dense rows read the lists of all features.
    overlap = data.postings_share or max(MIN_OVERLAP, length / data.features)
    return predict_costs(
        solver, MatrixShape(data.rows, data.features, data.entries, norm, overlap), counts
    )


def guess_label_seconds(solver: Any, dataset: Dataset) -> Float64:
    """Return the seconds per label, (K,), expected before any label is solved.

    This is the scheduler's guess. All labels are equal if Newton's method is used, because its
    passes read all rows.
    """
    train = dataset.train
    if uses_newton(solver, dataset.n_features, mean_sq_norm(train)):
        numbers = MatrixShape(
            train.n_rows, dataset.n_features, train.X.nnz, mean_sq_norm(train), 1.0
        )
        return predict_costs(solver, numbers, dataset.label_counts.astype(np.float64)).seconds
    return np.asarray(solver.cost_terms(train.X, train.XT, train.YT) @ np.array(solver.cost_rates))


def make_training_shape(
    data: DatasetShape, label_costs: LabelCosts, extra_bytes: int
) -> TrainingShape:
    """Return the shape of a training with known label costs."""
    of_labels, terms = np.zeros(data.labels), np.zeros((data.labels, 0))
    numbers = (data.rows, data.features, data.labels, data.entries)
    return TrainingShape(
        *numbers,
        of_labels,
        terms,
        dataset_bytes(data),
        free_bytes=ASSUMED_FREE_BYTES,
        label_costs=label_costs,
        extra_bytes=extra_bytes,
    )


def rows_per_label(data: DatasetShape) -> Float64:
    """Return the rows per label, most frequent first: (K,) float64.

    They are in proportion to k^-s and sum to the number of row-label pairs.
    """
    mean = data.rows * data.labels_per_row / data.labels
    most = min(float(data.rows), max(mean, (data.max_label_share or MAX_LABEL_SHARE) * data.rows))
    ranks = np.log(np.arange(1, data.labels + 1))
    low, high = 0.0, 4.0
    for _ in range(50):
        s = (low + high) / 2
        counts = np.maximum(most * np.exp(-s * ranks), min(1.0, mean))
        low, high = (s, high) if counts.mean() > mean else (low, s)
    out: Float64 = counts
    return out


def dataset_bytes(data: DatasetShape) -> int:
    """Return the bytes of the data set's files, all parts."""
    parts = 1.0 + data.held_out_share
    rows = parts * (
        BYTES_PER_ROW * data.rows
        + BYTES_PER_ENTRY * data.entries
        + BYTES_PER_PAIR * data.rows * data.labels_per_row
    )
    return int(rows + BYTES_PER_NAME * (data.labels + data.features))


def disk_usage(
    data: DatasetShape, options: DeploymentOptions, training: Estimate
) -> dict[str, int]:
    """Return the bytes in the home directory by kind.

    The source of a model waits as an upload while its data set is built.
    """
    text = int(
        (1.0 + data.held_out_share)
        * TEXT_BYTES_PER_ENTRY
        * (data.entries + data.rows * data.labels_per_row)
    )
    return {
        "upload": text,
        "data": training.mapped * options.models,
        "parts": (training.parts + training.checkpoints) * options.jobs,
        "models": training.model * options.models * options.versions,
        "store and logs": STORE_BYTES,
    }


def pod_sizes(
    options: DeploymentOptions, training: Estimate, labels: int, features: int, nodes: int
) -> dict[str, PodSize]:
    """Return the pods by name: api, runner, head, worker.

    Without a cluster there is only api, which then trains as well.
    """
    process_bytes = (
        options.processes * (ANSWERING_BYTES + SCAN_BYTES_PER_LABEL * labels * options.threads)
        + API_BYTES
        + (options.processes - 1) * (API_BYTES - LIBRARY_BYTES)
    )
    dense_bytes = (
        4 * labels * features if uses_dense_search(labels, features, training.weights) else 0
    )
    models = (training.model + options.processes * dense_bytes) * options.models
    limit_extra = training.model + BODY_BYTES  # while one version takes over from another
    cores = options.processes * options.threads
    if not options.cluster:
        job = options.jobs * (PROCESS_BYTES + training.memory) + training.mapped
        memory = int(SAFETY_FACTOR * (process_bytes + models + job))
        return {"api": PodSize(1, max(cores, options.cores), memory, memory + limit_extra)}
    api = int(SAFETY_FACTOR * (process_bytes + models))
    head = int(
        SAFETY_FACTOR
        * (
            RAY_HEAD_BYTES
            + LIBRARY_BYTES
            + options.jobs * (PROCESS_BYTES + training.driver)
            + OBJECT_STORE_BYTES
        )
    )
    store = max(OBJECT_STORE_BYTES, int(SAFETY_FACTOR * training.ray / nodes))
    worker_bytes = options.cores * (training.process + training.worker)
    worker = (
        int(SAFETY_FACTOR * (RAY_NODE_BYTES + LIBRARY_BYTES + worker_bytes + training.mapped))
        + store
    )
    runner = int(SAFETY_FACTOR * RUNNER_BYTES) + options.jobs * 64 * MIB
    return {
        "api": PodSize(options.replicas, cores, api, api + limit_extra),
        "runner": PodSize(1, 1, runner, 2 * runner),
        "head": PodSize(1, 2, head, head, OBJECT_STORE_BYTES),
        "worker": PodSize(nodes, options.cores, worker, worker, store),
    }
