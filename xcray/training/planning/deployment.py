"""Deployment sizing for a data set, from a sample of its labels solved here.

`size_from_dataset` solves labels for some seconds (`xcray.training.capacity.sampling`) and returns
ranges; docs/operations.md gives their accuracy. Units are bytes unless stated otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import frozen
from xcray.data.dataset import Dataset
from xcray.errors import ParameterError
from xcray.index.packed import BUFFER_BYTES
from xcray.solvers import make_solver
from xcray.solvers.contract import IndependentSolver
from xcray.training.capacity.preflight import (
    MAX_MERGE_PASSES,
    MIB,
    PROCESS_BYTES,
    Estimate,
    MeasuredRates,
    TrainingShape,
    estimate_from,
    training_shape,
)
from xcray.training.capacity.sampling import TIMING_NOISE, Range, estimate_total, solve_sample
from xcray.training.capacity.serving import (
    ANSWERING_BYTES,
    API_BYTES,
    LIBRARY_BYTES,
    SCAN_BYTES_PER_LABEL,
    uses_dense_search,
)
from xcray.training.spec import TrainSpec
from xcray.training.strategies import make_strategy
from xcray.training.strategy import TrainingContext

GIB: Final = 1 << 30
# Bytes per entry of an uploaded svmlight file, stored until its data set is built.
TEXT_BYTES_PER_ENTRY: Final = 12
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


class DeploymentOptions(NamedTuple):
    """Requirements of a deployment.

    cluster: trainings run on Ray; otherwise everything runs in one pod. cores: of a worker pod, or
    of the one pod. hours: time limit of a training; None accepts the time that one worker pod
    takes.
    jobs: simultaneous trainings. replicas: API pods. processes: per API pod. threads: per process.
    models: served models of this size. versions: retained versions per model.
    """

    cluster: bool = True
    cores: int = 4
    hours: float | None = None
    jobs: int = 1
    replicas: int = 2
    processes: int = 1
    threads: int = 1
    models: int = 1
    versions: int = 3


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


def size_from_dataset(
    path: Path | str,
    options: DeploymentOptions,
    solver: str = "ppdsparse",
    params: Mapping[str, Any] | None = None,
    seconds: float = 20.0,
) -> DeploymentSize:
    """Size a deployment that trains on a data set and serves the model.

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
    if solver_object.family == "rotation" or solver_object.family == "synchronous":
        basis = "a pass timed here; the number of passes is a guess"
        estimate = partial(estimate_with_timing, dataset, options, solver, params or {}, seconds)
        return build_size(dataset, options, estimate, basis, JOINT_SECONDS_RANGE, EXACT_RANGE)
    if solver_object.family == "joint":
        raise ParameterError(
            f"{solver} solves all labels in one task, so labels cannot be sampled: "
            "use `xcray train DIR --estimate`"
        )
    guess = guessed_shape(solver_object, dataset)
    sample = solve_sample(solver_object, train, guess.seconds, seconds)
    core, weights = estimate_total(sample, floor=TIMING_NOISE), estimate_total(sample, 1)
    # Only the sum of the weights matters, because all labels are trained.
    shape = guess._replace(
        seconds=guess.seconds * (core.value / guess.seconds.sum()),
        weights=np.full(dataset.n_labels, weights.value / dataset.n_labels),
        free_bytes=ASSUMED_FREE_BYTES,
    )
    return build_size(
        dataset,
        options,
        partial(estimate_independent, shape, options, solver, solver_object),
        f"{sample.n_labels:,} labels solved here, sampled by cost; "
        "9 of 10 such ranges contain the true value",
        core.relative_to(core.value),
        weights.relative_to(weights.value),
    )


def build_size(
    dataset: Dataset,
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
    training, nodes = estimate_for(options.cores), 1
    if options.cluster and options.hours is not None:
        pod_hours = training.core_seconds / BUSY_SHARE / options.cores / 3600
        nodes = max(1, math.ceil(pod_hours / max(options.hours, 1e-9) - 1e-9))
    if nodes > 1:
        training = estimate_for(nodes * options.cores)
    disk = disk_usage(dataset, options, training)
    return DeploymentSize(
        training=training,
        pods=pod_sizes(options, training, dataset.n_labels, dataset.n_features, nodes),
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


def estimate_independent(
    shape: TrainingShape,
    options: DeploymentOptions,
    name: str,
    solver: IndependentSolver,
    workers: int,
) -> Estimate:
    """Estimate a training whose labels are solved independently; name: of the solver."""
    return estimate_from(
        make_train_spec(options, workers, name, solver.as_dict()),
        shape,
        solver,
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


def guessed_shape(solver: IndependentSolver, dataset: Dataset) -> TrainingShape:
    """Return the shape of a training with the seconds per label that a sample starts from.

    They are the scheduler's guess. If all labels cost about the same, every label has the guess of
    the most expensive one.
    """
    shape = training_shape(dataset, solver)
    if shape.needs.equal_costs:
        shape = shape._replace(seconds=np.full_like(shape.seconds, shape.seconds.max()))
    return shape


def disk_usage(dataset: Dataset, options: DeploymentOptions, training: Estimate) -> dict[str, int]:
    """Return the bytes in the home directory by kind.

    The source of a model waits as an upload while its data set is built.
    """
    entries = sum(part.X.nnz + part.Y.nnz for part in dataset.splits.values())
    return {
        "upload": TEXT_BYTES_PER_ENTRY * entries,
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


def check_options(options: DeploymentOptions) -> None:
    """Raise ParameterError, with a fix, for options out of range."""
    for name in ("cores", "jobs", "replicas", "processes", "threads", "models", "versions"):
        if not 1 <= getattr(options, name) <= 100_000:
            raise ParameterError(f"{name} must be from 1 to 100,000")
    if options.hours is not None and not (math.isfinite(options.hours) and options.hours > 0):
        raise ParameterError("hours must be above 0")
