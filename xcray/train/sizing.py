"""How large a deployment must be for data that nobody has yet: from N, D, K and the entries of X, by the formula of `preflight`.

What a data set would tell is drawn as sets of text have it: label k of K has rows in proportion to k^-s, where s follows from the
mean and the most; a row meets a fixed share of all entries in the postings of its features. No label is solved, so what comes
out is a first guess: docs/operations.md tells its error on real sets. Bytes unless said otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, frozen
from xcray.errors import ParameterError
from xcray.index.packed import BUDGET
from xcray.solvers import make_solver
from xcray.train.needs import circulating, going, sizes_by
from xcray.train.preflight import MIB, PASSES, PROCESS, Estimate, Paces, Shape, reckoned
from xcray.train.spec import TrainSpec

GIB: Final = 1 << 30
OVERLAP: Final = 0.05  # of all entries, in the postings of a row's features: 0.01 to 0.2 on eight sets of text
MOST: Final = 0.02  # of all rows have the most frequent label: 0.004 to 0.14 on these sets
AN_ENTRY, A_ROW, A_PAIR, A_NAME = 16, 16, 8, 48  # bytes of a data set's files: X by row and by column, targets, names of both
TEXT_ENTRY: Final = 12  # bytes of an entry in a file in svmlight's format, which waits until its data set is built
SLOWEST, QUICKEST = 2.5, 0.4  # times the core seconds foreseen: eight sets of text really took 0.43 to 2.25
API: Final = 330 * MIB  # an API process before it has a model: 110 of its own, the rest pages of libraries
ANSWERING: Final = 64 * MIB  # more of its own, once it has answered
SCANNED: Final = 32  # bytes a label, in each thread that searches
BODIES: Final = 256 * 10**6  # requests in memory (XCRAY_BODIES_BYTES), for the limit
RUNNER: Final = 330 * MIB  # a runner's own process
LIBRARIES: Final = 220 * MIB  # pages of libraries that a job's processes of one pod share
RAY_HEAD: Final = 1600 * MIB  # Ray's processes of a head with its dashboard
RAY_NODE: Final = 320 * MIB  # of any other node
OBJECTS: Final = 512 * MIB  # object store of a node whose data are mapped files: results on their way
STORE: Final = GIB  # job store, logs, uploads of texts
RESERVE: Final = 2 * 10**9  # free disk that uploads must leave (XCRAY_DISK_RESERVE_BYTES)
SLACK: Final = 1.25  # times what is foreseen: requests are no place for optimism
BUSY: Final = 0.9  # of the cores of a training's workers: packing, the tail


class Data(NamedTuple):
    """Data that will be there. rows, features, labels, entries: N, D, K, entries of X, of the training part. labels_per_row: mean.
    held_out: rows more to measure on, as a share of N. overlap, most: see OVERLAP, MOST; None for these."""

    rows: int
    features: int
    labels: int
    entries: int
    labels_per_row: float = 3.0
    held_out: float = 0.1
    overlap: float | None = None
    most: float | None = None


class Wishes(NamedTuple):
    """What is wanted of the deployment.

    cluster: trainings on Ray; else all in one pod. cores: of a worker pod, or of the one pod. hours: that a training may take,
    None for what one worker pod takes. jobs: trainings at the same time. replicas: API pods. processes, threads: in each, and in
    each process. models: such models that are answered from. versions: of each that are kept.
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


class Pod(NamedTuple):
    """A kind of pod: how many there are, cores, memory to request and memory as a limit, Ray's objects among it."""

    number: int
    cores: int
    memory: int
    limit: int
    objects: int = 0


class Size(NamedTuple):
    """What a deployment needs. training: see `Estimate`, with the workers of all nodes. pods: by name. disk: of the home by what
    lies there; home: all of it, with room. core_hours: of one training; least and most: what it may be. hours: of one training."""

    training: Estimate
    pods: dict[str, Pod]
    disk: dict[str, int]
    home: int
    core_hours: float
    least: float
    most: float
    hours: float

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        plain = {**self._asdict(), "training": self.training.as_dict()}
        return {**plain, "pods": {name: pod._asdict() for name, pod in self.pods.items()}}


def size(data: Data, wishes: Wishes, solver: str = "ppdsparse", params: Mapping[str, Any] | None = None) -> Size:
    """What a deployment needs that trains a model of such data and answers from it. Raises ParameterError."""
    check(data, wishes)
    one = foreseen(data, wishes, wishes.cores, solver, params or {})
    hours = one.core_seconds / BUSY / wishes.cores / 3600 if wishes.hours is None else wishes.hours
    nodes = max(1, math.ceil(one.core_seconds / BUSY / wishes.cores / 3600 / max(hours, 1e-9) - 1e-9)) if wishes.cluster else 1
    training = foreseen(data, wishes, nodes * wishes.cores, solver, params or {}) if nodes > 1 else one
    disk = disk_of(data, wishes, training)
    home = int(SLACK * (sum(disk.values())) + RESERVE)
    core_hours = training.core_seconds / 3600
    return Size(
        training=training,
        pods=pods_of(wishes, training, data.labels, nodes),
        disk=disk,
        home=home,
        core_hours=core_hours,
        least=QUICKEST * core_hours,
        most=SLOWEST * core_hours,
        hours=training.seconds / BUSY / 3600,
    )


def check(data: Data, wishes: Wishes) -> None:
    """Raise ParameterError, with the mend, for sizes that no data have, or wishes that can't be met."""
    for name, low in (("rows", 1), ("features", 1), ("labels", 1), ("entries", 0), ("labels_per_row", 0), ("held_out", 0)):
        value = getattr(data, name)
        if not (math.isfinite(value) and low <= value <= 1e15):
            raise ParameterError(f"{name} must be a number from {low} to 1e15, not {value}")
    if data.entries > data.rows * data.features:
        raise ParameterError("there are more entries than rows times features: nnz counts what is not 0 in X of the training part")
    if data.labels_per_row > data.labels:
        raise ParameterError("a row can't have more labels than there are: labels_per_row is the mean number of a row's labels")
    for share in ("overlap", "most"):
        value = getattr(data, share)
        if value is not None and not 0.0 < value <= 1.0:
            raise ParameterError(f"{share} is a share: above 0, and 1 at most")
    for name in ("cores", "jobs", "replicas", "processes", "threads", "models", "versions"):
        if not 1 <= getattr(wishes, name) <= 100_000:
            raise ParameterError(f"{name} must be from 1 to 100,000")
    if wishes.hours is not None and not (math.isfinite(wishes.hours) and wishes.hours > 0):
        raise ParameterError("hours must be above 0")


def foreseen(data: Data, wishes: Wishes, workers: int, solver: str, params: Mapping[str, Any]) -> Estimate:
    """What one training needs, by the formula of its family. Raises ParameterError for a solver that has none without data."""
    made = make_solver(solver, params)
    where = {"pool": "ray", "ray_address": "cluster:6379"} if wishes.cluster else {"pool": "threads"}
    spec = TrainSpec("data", solver=solver, params=params, workers=workers, **where)  # type: ignore[arg-type]
    numbers, pairs = (data.rows, data.features, data.labels, data.entries), int(data.rows * data.labels_per_row)
    left = 8 * PASSES * BUDGET  # a pod is made as large as is needed
    if made.family == "scatter":
        if not hasattr(made, "terms_by"):
            raise ParameterError(f"what {solver} takes is known from data only: use `xcray train DIR --solver {solver} --estimate`")
        shape = shape_of(data, made)._replace(left=left)
        return reckoned(spec, shape, made, frozen(np.arange(data.labels), np.int32), workers, Paces())
    sizes = sizes_by(made, numbers, pairs, data.features, dataset_bytes(data))._replace(left=left)
    if made.family == "rounds":
        return going(spec, sizes, made, workers)
    grid = made.grid(data.rows, data.labels, sizes.features, workers)
    return circulating(spec, sizes, made, grid.blocks, min(workers, grid.shards))


def shape_of(data: Data, solver: Any) -> Shape:
    """What such data would tell `preflight`."""
    counts = rows_of_labels(data)
    length = data.entries / data.rows
    overlap = data.overlap or max(OVERLAP, length / data.features)  # of dense rows, every feature is met
    of_labels = counts * length
    terms = solver.terms_by(data.rows, data.entries, counts * overlap * data.entries, of_labels)
    return Shape(data.rows, data.features, data.labels, data.entries, of_labels, terms, dataset_bytes(data))


def rows_of_labels(data: Data) -> Float64:
    """Rows of each label, the most frequent first: (K,) float64, in proportion to k^-s, as many pairs in all as there are."""
    mean = data.rows * data.labels_per_row / data.labels
    most = min(float(data.rows), max(mean, (data.most or MOST) * data.rows))
    ranks = np.log(np.arange(1, data.labels + 1))
    low, high = 0.0, 4.0
    for _ in range(50):
        s = (low + high) / 2
        counts = np.maximum(most * np.exp(-s * ranks), min(1.0, mean))
        low, high = (s, high) if counts.mean() > mean else (low, s)
    out: Float64 = counts
    return out


def dataset_bytes(data: Data) -> int:
    """Files of the data set, all its parts."""
    parts = 1.0 + data.held_out
    rows = parts * (A_ROW * data.rows + AN_ENTRY * data.entries + A_PAIR * data.rows * data.labels_per_row)
    return int(rows + A_NAME * (data.labels + data.features))


def disk_of(data: Data, wishes: Wishes, training: Estimate) -> dict[str, int]:
    """What lies in the home, by what it is. A model's source waits as an upload while its data set is built."""
    text = int((1.0 + data.held_out) * TEXT_ENTRY * (data.entries + data.rows * data.labels_per_row))
    return {
        "upload": text,
        "data": training.mapped * wishes.models,
        "parts": (training.parts + training.checkpoints) * wishes.jobs,
        "models": training.model * wishes.models * wishes.versions,
        "store and logs": STORE,
    }


def pods_of(wishes: Wishes, training: Estimate, labels: int, nodes: int) -> dict[str, Pod]:
    """Pods by name: api, runner, head, worker; or api alone, which trains too."""
    answering = (
        wishes.processes * (ANSWERING + SCANNED * labels * wishes.threads) + API + (wishes.processes - 1) * (API - LIBRARIES)
    )
    models = training.model * wishes.models
    more = training.model + BODIES  # while one version takes over from another
    cores = wishes.processes * wishes.threads
    if not wishes.cluster:
        job = wishes.jobs * (PROCESS + training.memory) + training.mapped
        total = int(SLACK * (answering + models + job))
        return {"api": Pod(1, max(cores, wishes.cores), total, total + more)}
    api = int(SLACK * (answering + models))
    head = int(SLACK * (RAY_HEAD + LIBRARIES + wishes.jobs * (PROCESS + training.driver) + OBJECTS))
    store = max(OBJECTS, int(SLACK * training.ray / nodes))
    each = wishes.cores * (training.process + training.worker)
    worker = int(SLACK * (RAY_NODE + LIBRARIES + each + training.mapped)) + store
    runner = int(SLACK * RUNNER) + wishes.jobs * 64 * MIB
    return {
        "api": Pod(wishes.replicas, cores, api, api + more),
        "runner": Pod(1, 1, runner, 2 * runner),
        "head": Pod(1, 2, head, head, OBJECTS),
        "worker": Pod(nodes, wishes.cores, worker, worker, store),
    }
