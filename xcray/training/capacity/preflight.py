"""Before a training starts: what it will need of memory, disk and time, and whether it can fit.

Memory is of two kinds. The data and the finished weights are mapped files: one copy a node, shared by all workers, which the
system drops and reads again as it likes. What must be there is anonymous: the program, what a worker works in (O(N + D),
see `worker_bytes`), what the driver keeps of each label, and one range of weights while merging. Only that is compared
with the limits. Every figure is an estimate; the training's report says how it compares with what happened.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, csr, frozen, pattern
from xcray.data.dataset import Dataset, Split
from xcray.errors import Refused
from xcray.index.packed import BUDGET, ENTRY
from xcray.solvers.contract import Local, Solver
from xcray.solvers.newton import FEW
from xcray.system.cores import cores
from xcray.system.memory import anonymous, available
from xcray.system.units import human, parse_bytes
from xcray.training.calibration.fit import memory
from xcray.training.capacity.cost_formulas import newton_bytes, takes_newton
from xcray.training.spec import TrainSpec

MIB: Final = 1 << 20
PROCESS: Final = 116 * MIB  # a worker's own process: interpreter, libraries, compiled kernels
RAY: Final = 500 * MIB  # a local Ray beside its workers
RAY_DRIVER: Final = 50 * MIB  # what joining a Ray takes in the driver
IN_FLIGHT: Final = 8 * MIB  # batches on their way, a worker
LABEL: Final = 700  # bytes the driver keeps of a label: its place, its record, schedule and report
JOINT_WEIGHT: Final = 64  # bytes a weight, for solvers that solve all labels in one task
INDEXED: Final = {
    True: 10.4,
    False: 15.0,
}  # bytes of a weight by label and in the lists of the search, by whether the lists are wide
WIDE: Final = 1 << 16  # labels from which on lists are wide, see docs/search.md
PART_LABEL, MODEL_LABEL = (
    230,
    260,
)  # bytes of a label on disk beside its weights: bias, record, names, offsets
WEIGHTS_A_ROOT: Final = 30.0  # weights of a label for each square root of its positives' entries; 18 to 44 on eight sets of text
PUBLISHED: Final = 150e6  # bytes of a model merged, checked, hashed and turned in a second
PROBED: Final = 48  # labels a probe solves
WORTH: Final = 1.0  # core seconds foreseen from which on a probe is worth its time
PASSES: Final = 32  # over the weights, while turning them


class Estimate(NamedTuple):
    """What a training will need.

    Bytes: driver, anonymous in the process that trains; worker, anonymous in each of `workers`, whose place is "here" (threads
    of the driver), "beside" (processes of this machine) or "elsewhere"; process, what each of those holds before its work;
    ray, what a Ray started for the training holds; reserved, address space that each may leave empty; mapped, files of the
    data; parts (still to be written) and model, on disk. weights: of the finished model. core_seconds: of solving; seconds:
    of all. probed: labels solved to know better (or 1: a cell was timed), 0 for a guess. checkpoints: on disk, of trainings that
    have some.
    """

    driver: int
    worker: int
    workers: int
    place: str
    process: int
    ray: int
    reserved: int
    mapped: int
    parts: int
    model: int
    weights: int
    core_seconds: float
    seconds: float
    probed: int
    checkpoints: int = 0

    @property
    def memory(self) -> int:
        """Anonymous bytes on this machine in all, but for what this process holds already."""
        return self.driver + (
            self.workers * (self.worker + self.process) + self.ray
            if self.place != "elsewhere"
            else 0
        )

    @property
    def disk(self) -> int:
        """Bytes on disk when the model is there and the parts still are."""
        return self.checkpoints + self.parts + self.model

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON. worker_process: what a worker's own process holds in all."""
        whole = {"worker_process": self.worker + self.process} if self.place != "here" else {}
        return {**self._asdict(), **whole, "memory": self.memory, "disk": self.disk}


class Work(NamedTuple):
    """What is to be solved: labels (n,) int32, the seconds they are thought to take, (n,), and the weights to have, (n,)."""

    labels: Int32
    seconds: Float64
    weights: Float64


class Known(NamedTuple):
    """Of each label, (K,) float64: seconds of one core and weights; most: entries of the rows that one label works on, at most."""

    seconds: Float64
    weights: Float64
    most: float


class Shape(NamedTuple):
    """What the needs of a training are reckoned from.

    rows, features, labels, entries: N, D, K, entries of X. of_labels: (K,) float64, entries of X in each label's rows. terms:
    (K, T) float64, see the solver's `cost_terms`. mapped: bytes of the data's files. judged: bytes that calibrating takes. left:
    bytes that may be taken; None for what this machine says. known: what is known of labels better than by these, or None.
    more: bytes of a worker beside what its solver's arrays show.
    """

    rows: int
    features: int
    labels: int
    entries: int
    of_labels: Float64
    terms: Float64
    mapped: int
    judged: int = 0
    left: int | None = None
    known: Known | None = None
    more: int = 0

    def work(self, solver: Solver, labels: Int32) -> Work:
        """What solving `labels` (n,) takes at a first guess, or as it is known."""
        if self.known is not None:
            return Work(labels, self.known.seconds[labels], self.known.weights[labels])
        return Work(
            labels,
            np.asarray(self.terms[labels] @ solver.cost_rates),
            WEIGHTS_A_ROOT * np.sqrt(self.of_labels[labels]),
        )

    @property
    def most(self) -> float:
        """Entries of the rows that one label works on, at most."""
        return (
            3.0 * float(self.of_labels.max(initial=0.0)) if self.known is None else self.known.most
        )


class Paces(NamedTuple):
    """How a probe differed from the first guess: time over time foreseen, weights over weights foreseen, labels solved."""

    slower: float = 1.0
    heavier: float = 1.0
    probed: int = 0


def limits_of(spec: TrainSpec) -> dict[str, int]:
    """Bytes that this process may still take, by what limits it: see `memory.available`, and `memory_limit` of the spec."""
    own = (
        {}
        if spec.memory_limit is None
        else {"memory_limit": max(0, parse_bytes(spec.memory_limit) - (anonymous() or 0))}
    )
    return {**available(), **own}


def merge_budget(spec: TrainSpec, weights: int = 0, left: int | None = None) -> int:
    """Bytes of weights that merging may hold at once: as many as are fast; more for a model so large that there would be more
    than PASSES passes; at most an eighth of what may still be taken (`left`, or as this machine says), but 4 MiB at least."""
    left = min(limits_of(spec).values(), default=8 * BUDGET) if left is None else left
    return max(4 * MIB, min(left // 8, max(BUDGET, ENTRY * weights // PASSES)))


def workers_of(spec: TrainSpec) -> int:
    """How many workers a training has."""
    return 1 if spec.pool == "serial" else spec.workers or cores()


def estimate(
    spec: TrainSpec,
    dataset: Dataset,
    solver: Solver,
    labels: Int32,
    *,
    workers: int,
    probe: float | None = None,
    terms: Float64 | None = None,
) -> Estimate:
    """What it takes to train `labels` (n,) of a data set as `spec` says, and to publish all K.

    terms: the solver's `cost_terms` where they are known already.
    probe: seconds a probe may take, about, 0 for none; by default a fiftieth of what is foreseen, 2 at most, if that is long.
    """
    train = dataset.train
    terms = solver.cost_terms(train.X, train.XT, train.YT) if terms is None else terms
    judged = memory(dataset) if spec.calibrate else 0
    more = newton_of(solver, train)
    shape = Shape(
        *sizes_of(train), entries_of_labels(train), terms, mapped(dataset), judged, more=more
    )
    work = shape.work(solver, labels)
    foreseen = float(work.seconds.sum())
    seconds = (min(2.0, foreseen / 50) if foreseen > WORTH else 0.0) if probe is None else probe
    paces = (
        run_probe(solver, train, work, seconds) if seconds > 0.0 and not solver.joint else Paces()
    )
    return reckoned(spec, shape, solver, labels, workers, paces)


def reckoned(
    spec: TrainSpec, shape: Shape, solver: Solver, labels: Int32, workers: int, paces: Paces
) -> Estimate:
    """What it takes to train `labels` (n,) of data of a shape as `spec` says, and to publish all K: the formula itself."""
    work, K, place = shape.work(solver, labels), shape.labels, place_of(spec)
    every = shape.work(solver, frozen(np.arange(K), np.int32)).weights
    lengths = np.minimum(paces.heavier * every, shape.features)
    weights = int(lengths.sum())
    core = float(work.seconds.sum()) * paces.slower
    sizes = (shape.rows, shape.features, shape.labels, shape.entries)
    worker, reserved = scratch_bytes(solver, sizes, shape.most, weights)
    model = model_bytes(weights, K, shape.features)
    pieces = max(
        min(ENTRY * weights, merge_budget(spec, weights, shape.left)),
        IN_FLIGHT * workers,
        shape.judged,
    )
    alone = float(work.seconds.max(initial=0.0)) * paces.slower
    return Estimate(
        driver=LABEL * K + 24 * shape.features + pieces + (RAY_DRIVER if place != "here" else 0),
        worker=worker + shape.more,
        workers=workers,
        place=place,
        process=0 if place == "here" else PROCESS,
        ray=0 if place == "here" or spec.ray_address is not None else RAY,
        reserved=reserved,
        mapped=shape.mapped,
        parts=int(8 * lengths[labels].sum()) + PART_LABEL * len(labels),
        model=model,
        weights=weights,
        core_seconds=core,
        seconds=max(core / workers, alone) + model / PUBLISHED,
        probed=paces.probed,
    )


def check(found: Estimate, limits: Mapping[str, int], run_dir: Path, out: Path) -> None:
    """Raise Refused, with the figures and the mend, when the training can't fit in memory or on disk.

    limits: see `limits_of`. Parts lie in `run_dir`, the model in `out`.
    """
    for name, left in limits.items():
        wanted = found.memory + found.mapped * (name == "RLIMIT_AS")
        wanted += (
            found.workers * found.reserved * (name.startswith("RLIMIT") and found.place == "here")
        )
        if wanted > left:
            raise Refused(
                f"the training needs about {human(wanted)} of memory ({found.workers} workers of {human(found.worker)}, "
                f"{human(found.driver)} for the rest), {name} leaves {human(left)}: use fewer workers, raise the limit, "
                "or take a larger machine",
                code="MEMORY",
                needed=wanted,
                available=left,
            )
    check_disk(
        found.checkpoints + found.parts, found.model, run_dir, out, f"for {found.weights:,} weights"
    )


def check_disk(parts: int, model: int, run_dir: Path, out: Path, why: str) -> None:
    """Raise Refused, with the figures, unless the disks have room for `parts` bytes in `run_dir` and `model` bytes in `out`."""
    wanted = (
        {run_dir: parts, out: model}
        if _device(run_dir) != _device(out)
        else {run_dir: parts + model}
    )
    for folder, size in wanted.items():
        free = free_bytes(folder)
        if size > free:
            raise Refused(
                f"the training needs about {human(size)} more on the disk of {folder.name} {why}, {human(free)} are free: make "
                "room, choose another place, or make the model smaller (a larger prune or lam); finished batches are kept",
                code="DISK",
                needed=size,
                available=free,
            )


def compare(found: Estimate, happened: Mapping[str, float]) -> dict[str, Any]:
    """Estimate beside what happened, name by name: estimated, actual, and actual over estimated; JSON."""
    told = found.as_dict()
    return {
        name: {
            "estimated": told[name],
            "actual": value,
            "ratio": round(value / told[name], 3) if told[name] else None,
        }
        for name, value in happened.items()
    }


def entries_of_labels(train: Split) -> Float64:
    """Entries of X in each label's rows: (K,) float64."""
    lengths = np.diff(train.X.indptr).astype(np.float64)
    labels = np.repeat(np.arange(train.YT.n_rows), np.diff(train.YT.indptr))
    return np.bincount(labels, lengths[train.YT.indices], train.YT.n_rows).astype(np.float64)


def sizes_of(train: Split) -> tuple[int, int, int, int]:
    """N, D, K and the entries of X."""
    return len(train.X.indptr) - 1, train.X.n_cols, train.YT.n_rows, train.X.nnz


def worker_bytes(solver: Solver, train: Split, weights: int) -> tuple[int, int]:
    """See `scratch_bytes`, for a part of a data set."""
    own, reserved = scratch_bytes(
        solver, sizes_of(train), 3.0 * float(entries_of_labels(train).max(initial=0.0)), weights
    )
    return own + newton_of(solver, train), reserved


def model_bytes(weights: int, labels: int, features: int) -> int:
    """Bytes of a model on disk, lists of the search and names among them."""
    return int(INDEXED[labels > WIDE] * weights) + (MODEL_LABEL + 16) * labels + 40 * features


def norm_of(train: Split) -> float:
    """Mean |x|^2 of a row."""
    return float(np.dot(train.X.data, train.X.data)) / max(train.n_rows, 1)


def newton_of(solver: Any, train: Split) -> int:
    """Bytes that Newton's way takes at a worker, where the solver takes it."""
    few = train.X.n_cols <= FEW and hasattr(
        solver, "terms_by"
    )  # rows of many features need no look at their values
    return (
        newton_bytes(train.n_rows, train.X.n_cols)
        if few and takes_newton(solver, train.X.n_cols, norm_of(train))
        else 0
    )


def scratch_bytes(
    solver: Solver, sizes: tuple[int, int, int, int], most: float, weights: int
) -> tuple[int, int]:
    """(bytes a worker works in, bytes it reserves and may leave empty).

    sizes: N, D, K and the entries of X; most: entries of the rows that one label works on; weights: of the model. Measured, not
    written down: the solver loads five made-up problems, each twice the first in one of the sizes, and what its arrays take is
    linear in these. What grows with the entries of X is reserved only: it is filled as far as the active set of a label
    reaches, which `most` tells.
    """
    base = np.full(4, PROBE_SIZE)
    first = _local_bytes(solver, *base)
    steps = [
        (_local_bytes(solver, *(base * np.where(np.arange(4) == i, 2, 1))) - first) / PROBE_SIZE
        for i in range(4)
    ]
    fixed = max(0.0, first - float(base @ np.array(steps)))
    linear = np.array(steps) * np.array(sizes, np.float64)
    filled = steps[3] * min(float(sizes[3]), most)
    joint = JOINT_WEIGHT * weights if solver.joint else 0
    return int(fixed + linear[:3].sum() + filled + joint), int(linear[3] - filled)


def run_probe(solver: Solver, train: Split, work: Work, seconds: float) -> Paces:
    """Solve a few labels, spread over the cheap and the dear.

    Labels too dear for `seconds` are left out; labels that turn out slower than foreseen end the probe. Its blocks are dropped.
    """
    order = np.argsort(work.seconds, kind="stable")
    within = order[
        (np.cumsum(work.seconds[order] * PROBED / max(len(order), 1)) <= seconds)
        & (work.weights[order] > 0)
    ]
    if not len(within):
        return Paces()
    middles = (np.arange(PROBED) + 0.5) / PROBED * len(within)  # of equally large groups
    chosen = within[np.unique(middles.astype(np.int64))]
    chosen = np.random.default_rng(0).permutation(
        chosen
    )  # so that those solved before the end are as mixed as all
    local = solver.load(train.X, train.XT, train.YT, train.weights)
    solver.warm_up()
    solver.solve(
        local, frozen(work.labels[chosen[:1]], np.int32)
    )  # touches the mapped files, which takes its time once
    began, n, nnz, took = time.thread_time(), 0, 0, 0.0  # of this core: others may be at work
    while n < len(chosen) and took <= seconds:
        nnz += solver.solve(local, frozen(work.labels[chosen[n : n + 1]], np.int32)).W.nnz
        n, took = n + 1, time.thread_time() - began
    return Paces(
        took / max(float(work.seconds[chosen[:n]].sum()), 1e-9),
        nnz / float(work.weights[chosen[:n]].sum()),
        n,
    )


def place_of(spec: TrainSpec) -> str:
    """Where the workers are: see `Estimate`."""
    if spec.pool != "ray":
        return "here"
    host = (spec.ray_address or "localhost").rpartition("//")[2]
    return "beside" if host.startswith(("127.", "localhost", "[::1]")) else "elsewhere"


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk where `folder` is or will be."""
    return shutil.disk_usage(_existing(folder)).free


def _device(folder: Path) -> int:
    """The number of the disk where `folder` is or will be."""
    return _existing(folder).stat().st_dev


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that there is."""
    return next(place for place in (folder, *folder.absolute().parents) if place.is_dir())


def mapped(dataset: Dataset) -> int:
    """Bytes of the data set's files that are mapped."""
    return sum(int(entry["bytes"]) for entry in dataset.manifest["files"].values())


PROBE_SIZE: Final = 8192  # rows, features, labels and entries of the made-up problem


def _local_bytes(solver: Solver, rows: int, features: int, labels: int, entries: int) -> int:
    """What a solver's arrays take for a made-up problem of these sizes, beside the problem's own."""
    indices = np.arange(entries) % features
    X = csr(np.linspace(0, entries, rows + 1).astype(np.int64), indices, np.ones(entries), features)
    XT = csr(
        np.linspace(0, entries, features + 1).astype(np.int64),
        np.arange(entries) % rows,
        np.ones(entries),
        rows,
    )
    YT = pattern(
        np.linspace(0, PROBE_SIZE, labels + 1).astype(np.int64), np.arange(PROBE_SIZE) % rows, rows
    )
    given = {
        array.__array_interface__["data"][0] for matrix in (X, XT, YT) for array in matrix[:-1]
    }
    local: Local = solver.load(X, XT, YT)
    return sum(
        array.nbytes
        for array in {id(a): a for a in _arrays(local)}.values()
        if array.__array_interface__["data"][0] not in given
    )


def _arrays(value: Any) -> Iterator[np.ndarray]:
    """Every array in nested tuples, lists and dataclasses."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from _arrays(entry)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _arrays(getattr(value, field.name))
