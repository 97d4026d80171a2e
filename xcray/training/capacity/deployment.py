"""How large a deployment must be: from N, D, K and the entries of X alone, or from a sample of labels that are solved here.

By numbers alone, what a data set would tell is drawn as sets of text have it: label k of K has rows in proportion to k^-s, where s
follows from the mean and the most; `xcray.training.capacity.cost_formulas` says what labels of so many rows cost. No label is solved, so what
comes out is a first guess: docs/operations.md tells its error. `measured` solves labels
of a data set for some seconds (`xcray.training.capacity.sampling`), and tells a range. Bytes unless said otherwise.
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
from xcray.index.packed import BUDGET
from xcray.solvers import make_solver
from xcray.training.capacity.cost_formulas import Costs, Numbers, costs, takes_newton
from xcray.training.capacity.joint_resources import circulating, going, sizes_by
from xcray.training.capacity.preflight import (
    MIB,
    PASSES,
    PROCESS,
    Estimate,
    Known,
    Paces,
    Shape,
    mapped,
    norm_of,
    reckoned,
    sizes_of,
)
from xcray.training.capacity.sampling import NOISE, Range, solve_some, stretched, total
from xcray.training.capacity.serving import ANSWERING, API, LIBRARIES, SCANNED, is_dense
from xcray.training.spec import TrainSpec
from xcray.training.strategies import way_of
from xcray.training.strategy import Setting

GIB: Final = 1 << 30
OVERLAP: Final = 0.06  # of all entries, in the postings of a row's features, at least: 0.05 to 0.2 on six sets of text
DENSE: Final = 0.1  # from this share of entries on rows are taken for standardised ones, else for ones of length 1
MOST: Final = 0.02  # of all rows have the most frequent label: 0.004 to 0.14 on these sets
AN_ENTRY, A_ROW, A_PAIR, A_NAME = (
    16,
    16,
    8,
    48,
)  # bytes of a data set's files: X by row and by column, targets, names of both
TEXT_ENTRY: Final = (
    12  # bytes of an entry in a file in svmlight's format, which waits until its data set is built
)
SIZES_ALONE: Final = Range(1.0, 0.35, 2.5)  # times the core seconds, see docs/operations.md
WEIGHTS_ALONE: Final = Range(1.0, 0.3, 2.0)  # times the weights
PASSED: Final = Range(
    1.0, 0.3, 2.5
)  # times the passes that are foreseen of solvers that train all labels together
ALL: Final = Range(1.0, 1.0, 1.0)
BODIES: Final = 256 * 10**6  # requests in memory (XCRAY_BODIES_BYTES), for the limit
RUNNER: Final = 330 * MIB  # a runner's own process
RAY_HEAD: Final = 1600 * MIB  # Ray's processes of a head with its dashboard
RAY_NODE: Final = 320 * MIB  # of any other node
OBJECTS: Final = (
    512 * MIB
)  # object store of a node whose data are mapped files: results on their way
STORE: Final = GIB  # job store, logs, uploads of texts
RESERVE: Final = 2 * 10**9  # free disk that uploads must leave (XCRAY_DISK_RESERVE_BYTES)
SLACK: Final = 1.25  # times what is foreseen: requests are no place for optimism
LEFT: Final = 8 * PASSES * BUDGET  # a pod is made as large as is needed
BUSY: Final = 0.9  # of the cores of a training's workers: packing, the tail


class Data(NamedTuple):
    """Data that will be there. rows, features, labels, entries: N, D, K, entries of X, of the training part. labels_per_row: mean.
    held_out: rows more to measure on, as a share of N. overlap, most: see OVERLAP, MOST; None for these. norm: mean |x|^2 of a
    row; None: 1, or the entries of a row where rows are dense, as standardised features have it."""

    rows: int
    features: int
    labels: int
    entries: int
    labels_per_row: float = 3.0
    held_out: float = 0.1
    overlap: float | None = None
    most: float | None = None
    norm: float | None = None


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
    lies there; home: all of it, with room. core_hours, weights: of one training, with bounds. hours: of one training. known: what
    from, in words."""

    training: Estimate
    pods: dict[str, Pod]
    disk: dict[str, int]
    home: int
    core_hours: Range
    weights: Range
    hours: float
    known: str

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        ranges = {"core_hours": self.core_hours._asdict(), "weights": self.weights._asdict()}
        plain = {**self._asdict(), "training": self.training.as_dict(), **ranges}
        return {**plain, "pods": {name: pod._asdict() for name, pod in self.pods.items()}}


def size(
    data: Data, wishes: Wishes, solver: str = "ppdsparse", params: Mapping[str, Any] | None = None
) -> Size:
    """What a deployment needs that trains a model of such data and answers from it. Raises ParameterError."""
    check(data)
    check_wishes(wishes)
    known = "sizes alone: no label was solved"
    weights = WEIGHTS_ALONE if make_solver(solver, params or {}).family == "scatter" else ALL
    return deployment(
        data,
        wishes,
        partial(foreseen, data, wishes, solver, params or {}),
        known,
        SIZES_ALONE,
        weights,
    )


def measured(
    path: Path | str,
    wishes: Wishes,
    solver: str = "ppdsparse",
    params: Mapping[str, Any] | None = None,
    seconds: float = 20.0,
) -> Size:
    """The same for a data set that is there: labels are drawn and solved on this machine for about `seconds` of a core; of solvers
    that train all labels together a pass is timed. Raises ParameterError, NotFound, Corrupt."""
    check_wishes(wishes)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ParameterError("seconds must be above 0: for so long labels are solved")
    made, dataset = make_solver(solver, params or {}), Dataset.open(path)
    train = dataset.train
    if not train.Y.nnz:
        raise ParameterError(
            "no row has a label, so nothing can be measured: check the label column of the source"
        )
    held_out = dataset.test.n_rows / train.n_rows if dataset.test is not None else 0.0
    data = Data(*sizes_of(train), train.Y.nnz / train.n_rows, held_out, norm=norm_of(train))
    if made.family != "scatter":
        told = "a pass timed here; how many there will be is a guess"
        return deployment(
            data,
            wishes,
            partial(timed, dataset, wishes, solver, params or {}, seconds),
            told,
            PASSED,
            ALL,
        )
    if made.joint:
        raise ParameterError(
            f"{solver} solves all labels in one task, so none can be drawn: use `xcray train DIR --estimate`"
        )
    guessed = guess_of(made, dataset)
    drawn = solve_some(made, train, guessed, seconds)
    core, weights = total(drawn, floor=NOISE), total(drawn, 1)
    law = laws_of(made, data, dataset.label_counts.astype(np.float64))
    lengths = stretched(
        law.weights * (dataset.label_counts > 0), weights.value, float(data.features)
    )
    known = Known(
        guessed * (core.value / guessed.sum()),
        lengths,
        float(law.active.max()) * data.entries / data.rows,
    )
    shape = shape_of(data, known, law.more)._replace(mapped=mapped(dataset))
    words = f"{drawn.labels:,} labels solved here, drawn by cost; 9 of 10 such draws hold the truth"
    make = partial(labels_alone, shape, wishes, solver, params or {})
    return deployment(data, wishes, make, words, core.over(core.value), weights.over(weights.value))


def deployment(
    data: Data,
    wishes: Wishes,
    of: Callable[[int], Estimate],
    known: str,
    slower: Range,
    heavier: Range,
) -> Size:
    """A deployment around a training. of: what it needs with so many workers; slower, heavier: bounds of time and weights, times
    what is foreseen."""
    one = of(wishes.cores)
    hours = one.core_seconds / BUSY / wishes.cores / 3600 if wishes.hours is None else wishes.hours
    nodes = (
        max(1, math.ceil(one.core_seconds / BUSY / wishes.cores / 3600 / max(hours, 1e-9) - 1e-9))
        if wishes.cluster
        else 1
    )
    training = of(nodes * wishes.cores) if nodes > 1 else one
    disk = disk_of(data, wishes, training)
    return Size(
        training=training,
        pods=pods_of(wishes, training, data.labels, data.features, nodes),
        disk=disk,
        home=int(SLACK * (sum(disk.values())) + RESERVE),
        core_hours=slower.times(training.core_seconds / 3600),
        weights=heavier.times(training.weights),
        hours=training.seconds / BUSY / 3600,
        known=known,
    )


def check(data: Data) -> None:
    """Raise ParameterError, with the mend, for sizes that no data have."""
    for name, low in (
        ("rows", 1),
        ("features", 1),
        ("labels", 1),
        ("entries", 0),
        ("labels_per_row", 0),
        ("held_out", 0),
    ):
        value = getattr(data, name)
        if not (math.isfinite(value) and low <= value <= 1e15):
            raise ParameterError(f"{name} must be a number from {low} to 1e15, not {value}")
    if data.entries > data.rows * data.features:
        raise ParameterError(
            "there are more entries than rows times features: nnz counts what is not 0 in X of the training part"
        )
    if data.labels_per_row > data.labels:
        raise ParameterError(
            "a row can't have more labels than there are: labels_per_row is the mean number of a row's labels"
        )
    for share in ("overlap", "most"):
        value = getattr(data, share)
        if value is not None and not 0.0 < value <= 1.0:
            raise ParameterError(f"{share} is a share: above 0, and 1 at most")
    if data.norm is not None and not (math.isfinite(data.norm) and data.norm > 0.0):
        raise ParameterError(
            "norm must be above 0: the mean of |x|^2 over rows, 1 for rows of length 1"
        )


def check_wishes(wishes: Wishes) -> None:
    """Raise ParameterError, with the mend, for wishes that can't be met."""
    for name in ("cores", "jobs", "replicas", "processes", "threads", "models", "versions"):
        if not 1 <= getattr(wishes, name) <= 100_000:
            raise ParameterError(f"{name} must be from 1 to 100,000")
    if wishes.hours is not None and not (math.isfinite(wishes.hours) and wishes.hours > 0):
        raise ParameterError("hours must be above 0")


def spec_of(
    wishes: Wishes, workers: int, solver: str, params: Mapping[str, Any], path: str = "data"
) -> TrainSpec:
    """A training in such a deployment."""
    where = (
        {"pool": "ray", "ray_address": "cluster:6379"} if wishes.cluster else {"pool": "threads"}
    )
    return TrainSpec(path, solver=solver, params=params, workers=workers, **where)  # type: ignore[arg-type]


def foreseen(
    data: Data, wishes: Wishes, solver: str, params: Mapping[str, Any], workers: int
) -> Estimate:
    """What one training needs, by the formula of its family. Raises ParameterError for a solver that has none without data."""
    made, spec = make_solver(solver, params), spec_of(wishes, workers, solver, params)
    if made.family == "scatter":
        if not hasattr(made, "terms_by"):
            raise ParameterError(
                f"what {solver} takes is known from data only: use `xcray train DIR --solver {solver} --estimate`"
            )
        law = laws_of(made, data, rows_of_labels(data))
        known = Known(law.seconds, law.weights, float(law.active.max()) * data.entries / data.rows)
        return labels_alone(shape_of(data, known, law.more), wishes, solver, params, workers)
    numbers, pairs = (
        (data.rows, data.features, data.labels, data.entries),
        int(data.rows * data.labels_per_row),
    )
    sizes = sizes_by(made, numbers, pairs, data.features, dataset_bytes(data))._replace(left=LEFT)
    if made.family == "rounds":
        return going(spec, sizes, made, workers)
    grid = made.grid(data.rows, data.labels, sizes.features, workers)
    return circulating(spec, sizes, made, grid.blocks, min(workers, grid.shards))


def labels_alone(
    shape: Shape, wishes: Wishes, solver: str, params: Mapping[str, Any], workers: int
) -> Estimate:
    """What a training needs whose labels are solved alone."""
    made, spec = make_solver(solver, params), spec_of(wishes, workers, solver, params)
    return reckoned(spec, shape, made, frozen(np.arange(shape.labels), np.int32), workers, Paces())


def timed(
    dataset: Dataset,
    wishes: Wishes,
    solver: str,
    params: Mapping[str, Any],
    seconds: float,
    workers: int,
) -> Estimate:
    """What a training of all labels together needs, a pass timed on this machine."""
    spec = spec_of(wishes, workers, solver, params, str(dataset.path))
    way = way_of(Setting(spec, dataset, make_solver(solver, params), dataset.path, "size"))
    return way.foreseen(frozen(np.arange(dataset.n_labels), np.int32), seconds)


def laws_of(solver: Any, data: Data, counts: Float64) -> Costs:
    """What labels of `counts` (K,) rows cost in such data."""
    length = data.entries / data.rows
    dense = data.entries >= DENSE * data.rows * data.features
    norm = data.norm or (max(1.0, length) if dense else 1.0)
    overlap = data.overlap or max(
        OVERLAP, length / data.features
    )  # of dense rows, every feature is met
    return costs(solver, Numbers(data.rows, data.features, data.entries, norm, overlap), counts)


def guess_of(solver: Any, dataset: Dataset) -> Float64:
    """Seconds that each label is thought to take before any is solved, (K,): as the scheduler guesses them, and all alike where
    Newton's way is taken, whose passes are over all rows."""
    train = dataset.train
    if takes_newton(solver, dataset.n_features, norm_of(train)):
        numbers = Numbers(train.n_rows, dataset.n_features, train.X.nnz, norm_of(train), 1.0)
        return costs(solver, numbers, dataset.label_counts.astype(np.float64)).seconds
    return np.asarray(solver.cost_terms(train.X, train.XT, train.YT) @ np.array(solver.cost_rates))


def shape_of(data: Data, known: Known, more: int) -> Shape:
    """The shape of a training that is known."""
    of_labels, terms = np.zeros(data.labels), np.zeros((data.labels, 0))
    numbers = (data.rows, data.features, data.labels, data.entries)
    return Shape(*numbers, of_labels, terms, dataset_bytes(data), left=LEFT, known=known, more=more)


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
    rows = parts * (
        A_ROW * data.rows + AN_ENTRY * data.entries + A_PAIR * data.rows * data.labels_per_row
    )
    return int(rows + A_NAME * (data.labels + data.features))


def disk_of(data: Data, wishes: Wishes, training: Estimate) -> dict[str, int]:
    """What lies in the home, by what it is. A model's source waits as an upload while its data set is built."""
    text = int(
        (1.0 + data.held_out) * TEXT_ENTRY * (data.entries + data.rows * data.labels_per_row)
    )
    return {
        "upload": text,
        "data": training.mapped * wishes.models,
        "parts": (training.parts + training.checkpoints) * wishes.jobs,
        "models": training.model * wishes.models * wishes.versions,
        "store and logs": STORE,
    }


def pods_of(
    wishes: Wishes, training: Estimate, labels: int, features: int, nodes: int
) -> dict[str, Pod]:
    """Pods by name: api, runner, head, worker; or api alone, which trains too."""
    answering = (
        wishes.processes * (ANSWERING + SCANNED * labels * wishes.threads)
        + API
        + (wishes.processes - 1) * (API - LIBRARIES)
    )
    plain = 4 * labels * features if is_dense(labels, features, training.weights) else 0
    models = (training.model + wishes.processes * plain) * wishes.models
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
