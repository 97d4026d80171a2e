"""Indexed block coordinate descent on data 10 and 40 times its memory limit, read from disk.

python -m benchmarks.indexed_bcd.memory --data DIR [--sets covtype-like,kddcup99_10pct,mnist]
    [--copies 8] [--rows 581012] [--cgroup]

The classes are those of `benchmarks.indexed_bcd`; mnist is written with copies that are shifted by
up to two pixels. The metric forest is built once. Each run is a process of its own, and the files
are dropped from the page cache before it. A run "memory" maps the rows; the others have pages and
active rows within a fraction of the bytes of the rows. Reported: processor seconds (of the reading
thread, too), seconds, volumes that the solver read and volumes that came from the disk when the
test error remains within 0.2 points of the full solution and at the end, and the highest anonymous
memory in addition to that before the training. A volume is the bytes of all rows.

With --cgroup, a run with a limit is in a control group whose memory, page cache included, is that
of the limit, the scratch memory per row, and 24 MiB. So what a run reads again can come from the
disk again.
"""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import dataset, run_benchmark
from benchmarks.indexed_bcd import covtype_like
from benchmarks.indexed_bcd.__main__ import (
    COSTS,
    FULL_GAP,
    LABELS,
    NO_TRUNCATION,
    Curve,
    Task,
    full,
    rows_of,
)
from xcray.arrays import Float64, Pattern, csr_from, frozen, pattern
from xcray.data.dataset import Dataset
from xcray.data.metric_forest.directory import build_forest_directory
from xcray.data.writer import DatasetWriter
from xcray.solvers.indexed_bcd.label import LabelTraining, SweepProgress
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver
from xcray.system.memory import anonymous_bytes

GROUPS = Path("/sys/fs/cgroup/memory")
# of scratch memory, and of mapped arrays per row that are used all the time
SCRATCH_ROW_BYTES = 91 + 40
SLACK = 24 << 20  # of the interpreter and the allocator
LIMIT = 0.2  # points of test error above that of the full solution
SELECTIONS = ("forest", "pages")
SIDE = 28  # pixels
SHIFTS = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (2, 0), (-2, 0), (0, 2), (0, -2)]


class Run(NamedTuple):
    """One run.

    divisor: of the bytes of the rows; 0 for no limit. path: of the data set. is_limited: whether
    the process is in a control group that limits memory and page cache.
    """

    path: Path
    name: str
    selection: str
    divisor: int
    is_limited: bool = False


class Point(NamedTuple):
    """State of a run: test error in percent, seconds, and bytes."""

    error: float
    cpu: float
    seconds: float
    bytes_read: int
    disk_bytes: int
    anonymous: int


def shifted_copies(data: Path, target: Path, copies: int) -> Dataset:
    """Write mnist with `copies` - 1 shifted copies of every training image."""
    arrays = np.load(data / "mnist" / "mnist.npz")
    with DatasetWriter(target, name="mnist", n_labels=10) as writer:
        for part in ("train", "test"):
            images, classes = arrays[f"X_{part}"].reshape(-1, SIDE, SIDE), arrays[f"y_{part}"]
            for shift in SHIFTS[: copies if part == "train" else 1]:
                moved = np.roll(images, shift, (1, 2)).reshape(len(images), -1)
                labels = pattern(np.arange(len(classes) + 1), classes, 10)
                writer.add(part, csr_from(moved / np.float32(255.0)), labels)
        return writer.finish(source={"format": "npz"})


def write(name: str, data: Path, folder: Path, copies: int, rows: int) -> None:
    """Write the data set `folder`/`name`; rows: of covtype-like."""
    if name == covtype_like.NAME:
        covtype_like.write(folder / name, rows)
    elif name == "mnist":
        shifted_copies(data, folder / name, copies)
    else:
        dataset(name, data, folder).path.rename(folder / name)


def one_class(data: Dataset, name: str) -> Task:
    """Return the class of a set against the rest, with mapped rows."""
    test = data["test"]
    y_test = np.where(rows_of(test.Y, LABELS[name]), 1, -1)
    YT = label_rows(data, name)
    return Task(data.train.X, YT, test.X.to_scipy().astype(np.float64), y_test, COSTS[name])


def label_rows(data: Dataset, name: str) -> Pattern:
    """Return the training rows of the class."""
    rows = data.train.YT.row(LABELS[name])
    return Pattern(frozen([0, len(rows)], np.int64), rows, data.train.n_rows)


def drop_from_cache(folder: Path) -> None:
    """Remove the pages of all files from the cache of the system."""
    for path in folder.rglob("*.arrow"):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def disk_bytes() -> int:
    """Return the bytes that this process has had read from the disk."""
    match = re.search(r"read_bytes: (\d+)", Path("/proc/self/io").read_text())
    return int(match[1]) if match else 0


def join_limited_group(n_bytes: int) -> None:
    """Move this process to a new control group; memory that it uses from now on is limited.

    The page cache of the files that it reads is part of it. Needs the memory controller of version
    1 and root. The empty group remains after the process; `remove_groups` removes it.
    """
    group = GROUPS / f"xcray-benchmark-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(n_bytes))
    (group / "cgroup.procs").write_text(str(os.getpid()))


def remove_groups() -> None:
    """Remove the control groups of processes that have ended."""
    for group in GROUPS.glob("xcray-benchmark-*"):
        if not (group / "cgroup.procs").read_text():
            group.rmdir()


def train(run: Run) -> list[Point]:
    """Train once; return the points of its curve."""
    data = Dataset.open(run.path)
    task, n_bytes = one_class(data, run.name), volume(data)
    solver = IndexedBCDSolver(C=task.C, selection=run.selection)
    solver.warm_up()
    task.error(np.zeros(data.n_features + 1))
    if run.is_limited:
        scratch = SCRATCH_ROW_BYTES * data.train.n_rows
        join_limited_group(n_bytes // run.divisor + scratch + SLACK)
    anonymous, disk = anonymous_bytes() or 0, disk_bytes()
    local = solver.load_dataset(data, n_bytes // run.divisor if run.divisor else None)
    spent, began, points = [0.0, 0.0], (time.process_time(), time.monotonic()), list[Point]()

    def add(v: Float64, bytes_read: int) -> None:
        cpu, seconds = time.process_time(), time.monotonic()
        memory = (anonymous_bytes() or 0) - anonymous
        figures = (cpu - began[0] - spent[0], seconds - began[1] - spent[1])
        read = disk_bytes() - disk
        points.append(Point(task.error(v), *figures, bytes_read, read, memory))
        spent[0] += time.process_time() - cpu
        spent[1] += time.monotonic() - seconds

    def observe(progress: SweepProgress) -> None:
        add(progress.v, progress.bytes_read)

    label = LABELS[run.name]
    settings = solver.label_settings(local, label)
    training = LabelTraining(
        local.store,
        local.scratch,
        local.selection,
        local.positives(label),
        label,
        settings,
        observe=observe,
    )
    result, _ = training.train()
    add(result.v, local.store.bytes_read)
    return points


def full_error(run: Run) -> float:
    """Return the test error of the full solution, in percent."""
    task = one_class(Dataset.open(run.path), run.name)
    solver = IndexedBCDSolver(C=task.C, s=NO_TRUNCATION, selection="pages")
    local, curve = solver.load(task.X, task.X, task.YT), Curve(task)
    gap = FULL_GAP * solver.null_objective(local, 0)
    full(task, curve, local, solver.label_settings(local, 0)._replace(gap=gap))
    return curve.points[-1].error


def volume(data: Dataset) -> int:
    """Return the bytes of all rows."""
    return 8 * (data.train.X.nnz + data.train.n_rows)


def in_process(function: Any, run: Run) -> Any:
    """Call a function in a new process, with the files of the data set on disk only."""
    drop_from_cache(run.path)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, run).result()


def first_within(points: list[Point], error: float) -> Point | None:
    """Return the first point from which on the error is at most `error`; None if there is none."""
    first = None
    for point in points:
        first = None if point.error > error else first or point
    return first


def figures(point: Point | None, n_bytes: int) -> dict[str, float] | None:
    """Return the figures of a point, with volumes for bytes read."""
    if point is None:
        return None
    return {
        "error": round(point.error, 3),
        "cpu": round(point.cpu, 2),
        "seconds": round(point.seconds, 2),
        "volumes": round(point.bytes_read / n_bytes, 2),
        "disk": round(point.disk_bytes / n_bytes, 2),
    }


def build_index(run: Run) -> dict[str, Any]:
    """Build the metric forest; return its figures and the size of the rows."""
    data, began = Dataset.open(run.path), time.process_time()
    folder = build_forest_directory(data)
    return {
        "rows": data.train.n_rows,
        "bytes": volume(data),
        "index_cpu": round(time.process_time() - began, 2),
        "index_mib": sum(file.stat().st_size for file in folder.iterdir()) >> 20,
    }


def measure(
    path: Path, name: str, repeats: int, divisors: list[int], is_limited: bool
) -> dict[str, Any]:
    """Return the figures of all runs on a data set.

    This process maps no file of it, because mapped pages would remain in the cache of the system.
    """
    out: dict[str, Any] = in_process(build_index, Run(path, name, "", 0))
    n_bytes = out["bytes"]
    out["full_error"] = round(in_process(full_error, Run(path, name, "", 0)), 3)
    print(name, out, flush=True)
    for selection in SELECTIONS:
        for divisor in divisors:
            run = Run(path, name, selection, divisor, is_limited and divisor > 0)
            # the fastest of some runs, because other processes share the machine
            curves = [in_process(train, run) for _ in range(repeats)]
            if run.is_limited:
                remove_groups()
            points = min(curves, key=lambda points: points[-1].cpu)
            key = f"{selection}, {f'1/{divisor}' if divisor else 'memory'}"
            out[key] = {
                f"+{LIMIT}": figures(first_within(points, out["full_error"] + LIMIT), n_bytes),
                "end": figures(points[-1], n_bytes),
                "anonymous_mib": round(max(point.anonymous for point in points) / 2**20, 1),
                "limit_mib": round(n_bytes / divisor / 2**20, 1) if divisor else None,
            }
            print(name, key, out[key], flush=True)
    return out


def measure_sets(options: Any, folder: Path) -> dict[str, Any]:
    """Measure all sets; print a line per run."""
    sets: dict[str, Any] = {}
    for name in options.sets.split(","):
        write(name, options.data, folder, options.copies, options.rows)
        sets[name] = measure(folder / name, name, options.repeats, options.divisors, options.cgroup)
    return {"sets": sets}


def main() -> None:
    """Measure all sets and print the JSON."""
    run_benchmark(
        measure_sets,
        __doc__,
        quick={"sets": covtype_like.NAME, "repeats": 1, "rows": 80_000, "divisors": [0, 10]},
        sets={"default": ",".join(LABELS)},
        copies={"type": int, "default": 8},
        rows={"type": int, "default": covtype_like.ROWS},
        repeats={"type": int, "default": 3},
        divisors={
            "nargs": "+",
            "type": int,
            "default": [0, 10, 40],
            "help": "limits: the bytes of the rows divided by these; 0: none",
        },
        cgroup={"action": "store_true", "help": "limit the page cache, too (Linux, root)"},
    )


if __name__ == "__main__":
    main()
