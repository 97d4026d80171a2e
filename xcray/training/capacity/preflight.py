"""Preflight: estimate the memory, disk and time of a training, and check that it fits.

Memory is of two kinds. The data and the finished weights are mapped files: one copy per node,
shared by all workers, which the system can drop and read again. Anonymous memory must be present:
the program, the scratch memory of the workers (O(N + D), see `worker_memory`), the driver's records
per label, and one range of weights while merging. Only anonymous memory is compared with the
limits. Every figure is an estimate; the training's report compares it with the measured value.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32
from xcray.data.dataset import Dataset
from xcray.errors import Refused
from xcray.index.packed import BUFFER_BYTES, ENTRY_BYTES
from xcray.solvers.contract import IndependentSolver
from xcray.system.cores import available_cores
from xcray.system.memory import anonymous_bytes, available_bytes
from xcray.system.units import format_bytes, parse_bytes
from xcray.training.calibration.fit import calibration_bytes
from xcray.training.capacity.disk import check_disk
from xcray.training.capacity.label_probe import LabelWork, run_probe
from xcray.training.capacity.worker_memory import (
    entries_per_label,
    mapped_bytes,
    scratch_bytes,
    split_sizes,
)
from xcray.training.spec import TrainSpec
from xcray.workers.pool import TaskRunner

MIB: Final = 1 << 20
PROCESS_BYTES: Final = 116 * MIB  # a worker process: interpreter, libraries, compiled kernels
RAY_BYTES: Final = 500 * MIB  # a local Ray without its workers
RAY_DRIVER_BYTES: Final = 50 * MIB  # connection of the driver to Ray
CODE_BYTES: Final = 6 * MIB  # compiled kernels and libraries that a training loads
IN_FLIGHT_BYTES: Final = 8 * MIB  # batches in transit, per worker
# The driver's bytes per label: position, record, schedule and report.
DRIVER_BYTES_PER_LABEL: Final = 700
# Bytes per weight, by label and in the search lists, by whether the lists are wide.
INDEX_BYTES_PER_WEIGHT: Final = {True: 10.4, False: 15.0}
WIDE_LABELS: Final = 1 << 16  # lists are wide above this number of labels, see docs/search.md
# Bytes per label on disk without its weights: bias, record, names, offsets.
PART_BYTES_PER_LABEL, MODEL_BYTES_PER_LABEL = 230, 260
# Weights of a label per square root of its positives' entries. 18 to 44 on eight text sets.
WEIGHTS_PER_ROOT: Final = 30.0
# Bytes of a model that are merged, checked, hashed and transposed per second.
PUBLISH_BYTES_PER_SECOND: Final = 150e6
# expected core seconds that make a probe of a training by epochs worth its time
MIN_PROBED_SECONDS: Final = 1.0
PROBE_SHARE: Final = 1 / 20  # of the expected time that a probe of labels can take
MAX_PROBE_SECONDS: Final = 2.0
MAX_MERGE_PASSES: Final = 32  # passes over the weights while transposing them


class Estimate(NamedTuple):
    """Estimated needs of a training.

    Bytes: driver, anonymous in the process that trains; worker, anonymous in each of `workers`,
    whose place is "thread" (threads of the driver), "process" (processes of this machine) or
    "cluster"; process, of each worker process before its work; ray, of a Ray started for the
    training; reserved, address space that each worker can leave empty; mapped, data files; parts
    (still to be written) and model, on disk. weights: of the finished model. core_seconds: of
    solving. seconds: total.
    probed: labels solved for the estimate (1: a cell was timed), 0 for a guess. checkpoints: on
    disk, for trainings that have some.
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
        """Return the anonymous bytes on this machine, without those this process holds already."""
        return self.driver + (
            self.workers * (self.worker + self.process) + self.ray if self.place != "cluster" else 0
        )

    @property
    def disk(self) -> int:
        """Return the bytes on disk while both the model and the parts exist."""
        return self.checkpoints + self.parts + self.model

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON. worker_process: total memory of a worker's own process."""
        whole = {"worker_process": self.worker + self.process} if self.place != "thread" else {}
        return {**self._asdict(), **whole, "memory": self.memory, "disk": self.disk}


def memory_limits(spec: TrainSpec) -> dict[str, int]:
    """Return the bytes that this process can still take, by name of the limit.

    See `memory.available`, and `memory_limit` of the spec.
    """
    own = (
        {}
        if spec.memory_limit is None
        else {"memory_limit": max(0, parse_bytes(spec.memory_limit) - (anonymous_bytes() or 0))}
    )
    return {**available_bytes(), **own}


def merge_budget(spec: TrainSpec, weights: int = 0) -> int:
    """Return the bytes of weights that merging can hold at once.

    This is the fastest size, or more for a model so large that merging would take more than
    MAX_MERGE_PASSES passes. It is at most an eighth of the free memory, and at least 4 MiB.
    """
    free = min(memory_limits(spec).values(), default=8 * BUFFER_BYTES)
    return max(
        4 * MIB, min(free // 8, max(BUFFER_BYTES, ENTRY_BYTES * weights // MAX_MERGE_PASSES))
    )


def worker_count(spec: TrainSpec) -> int:
    """Return the number of workers of a training."""
    return 1 if spec.pool == "serial" else spec.workers or available_cores()


def estimate(
    spec: TrainSpec,
    dataset: Dataset,
    solver: IndependentSolver,
    labels: Int32,
    *,
    workers: int,
    probe_seconds: float | None = None,
    cost_terms: Float64 | None = None,
    runner: TaskRunner | None = None,
) -> Estimate:
    """Estimate a training of `labels` (n,) of a data set, including publishing all K labels.

    cost_terms: the solver's `cost_terms`, if already computed. runner: what solves the labels, if
    not the solver. probe_seconds: approximate time limit of the probe, 0 for none; by default
    PROBE_SHARE of the expected time.
    """
    train, place = dataset.train, worker_place(spec)
    sizes, entries, needs = split_sizes(train), entries_per_label(train), solver.task_needs(train.X)
    _, features, K, _ = sizes
    if cost_terms is None:
        cost_terms = solver.cost_terms(train.X, train.XT, train.YT)
    expected = np.asarray(cost_terms @ solver.cost_rates)[labels]
    guess = WEIGHTS_PER_ROOT * np.sqrt(entries)
    if probe_seconds is None:
        probe_seconds = min(MAX_PROBE_SECONDS, PROBE_SHARE * float(expected.sum()))
    work = LabelWork(labels, expected, guess[labels])
    rates = run_probe(solver, dataset, work, probe_seconds, runner)
    lengths = np.minimum(rates.weight_ratio * guess, features)
    weights = int(lengths.sum())
    core = float(expected.sum()) * rates.time_ratio + len(labels) * rates.label_seconds
    longest_label = float(expected.max(initial=0.0)) * rates.time_ratio + rates.label_seconds
    worker, reserved = scratch_bytes(solver, sizes, 3.0 * float(entries.max(initial=0.0)))
    model = model_bytes(weights, K, features)
    pieces = max(
        min(ENTRY_BYTES * weights, merge_budget(spec, weights)),
        IN_FLIGHT_BYTES * workers,
        calibration_bytes(dataset) if spec.calibrate else 0,
    )
    separate = place != "thread"
    return Estimate(
        driver=CODE_BYTES
        + DRIVER_BYTES_PER_LABEL * K
        + 24 * features
        + pieces
        + (RAY_DRIVER_BYTES if separate else needs.process_bytes),
        worker=worker + needs.n_bytes + needs.bytes_per_weight * weights,
        workers=workers,
        place=place,
        process=(PROCESS_BYTES + needs.process_bytes) * separate,
        ray=RAY_BYTES * (separate and spec.ray_address is None),
        reserved=reserved,
        mapped=mapped_bytes(dataset),
        parts=int(8 * lengths[labels].sum()) + PART_BYTES_PER_LABEL * len(labels),
        model=model,
        weights=weights,
        core_seconds=core,
        seconds=max(core / workers, longest_label) + model / PUBLISH_BYTES_PER_SECOND,
        probed=rates.probed,
    )


def check_fits(estimate: Estimate, limits: Mapping[str, int], run_dir: Path, out: Path) -> None:
    """Raise Refused, with sizes and a fix, if the training does not fit in memory or on disk.

    limits: see `memory_limits`. Parts lie in `run_dir`, the model in `out`.
    """
    for name, free in limits.items():
        needed = estimate.memory + estimate.mapped * (name == "RLIMIT_AS")
        needed += (
            estimate.workers
            * estimate.reserved
            * (name.startswith("RLIMIT") and estimate.place == "thread")
        )
        if needed > free:
            raise Refused(
                f"the training needs about {format_bytes(needed)} of memory "
                f"({estimate.workers} workers of {format_bytes(estimate.worker)}, "
                f"{format_bytes(estimate.driver)} for the rest), {name} leaves "
                f"{format_bytes(free)}: use fewer workers, raise the limit, "
                "or take a larger machine",
                code="MEMORY",
                hint=_limit_hint(name, needed),
                needed=needed,
                available=free,
            )
    check_disk(
        estimate.checkpoints + estimate.parts,
        estimate.model,
        run_dir,
        out,
        f"for {estimate.weights:,} weights",
    )


def _limit_hint(name: str, needed: int) -> str | None:
    """Return the smallest limit that is enough, which covers what this process has already."""
    held = anonymous_bytes()
    if name != "memory_limit" or held is None:
        return None
    return (
        f"memory_limit also covers the {format_bytes(held)} that this process has already: "
        f"set it to at least {format_bytes(int(1.1 * (needed + held)))}"
    )


def compare_estimate(estimate: Estimate, actual: Mapping[str, float]) -> dict[str, Any]:
    """Return estimated value, actual value, and actual over estimated, by name; JSON."""
    estimated = estimate.as_dict()
    return {
        name: {
            "estimated": estimated[name],
            "actual": value,
            "ratio": round(value / estimated[name], 3) if estimated[name] else None,
        }
        for name, value in actual.items()
    }


def model_bytes(weights: int, labels: int, features: int) -> int:
    """Return the bytes of a model on disk, including its search lists and names."""
    return (
        int(INDEX_BYTES_PER_WEIGHT[labels > WIDE_LABELS] * weights)
        + (MODEL_BYTES_PER_LABEL + 16) * labels
        + 40 * features
    )


def worker_place(spec: TrainSpec) -> str:
    """Return the location of the workers: see `Estimate`."""
    if spec.pool != "ray":
        return "thread"
    host = (spec.ray_address or "localhost").rpartition("//")[2]
    return "process" if host.startswith(("127.", "localhost", "[::1]")) else "cluster"
