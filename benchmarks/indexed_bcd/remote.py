"""Indexed block coordinate descent with the pages in object storage, compared with a disk.

python -m benchmarks.indexed_bcd.remote --data DIR [--sets kddcup99_10pct,mnist] [--copies 8]
    [--latency 15] [--bandwidth 80] [--divisor 10] [--repeats 3]

One class of each set, as in `benchmarks.indexed_bcd.memory`, with memory for pages and active rows
of 1 / divisor of the bytes of the rows. The storage is a folder (file://), in which every request
takes `latency` milliseconds and its bytes at `bandwidth` MB/s in addition. Runs: pages on disk; in
the storage without latency, which is the cost of the reader; with latency; with latency and one
request per page, one at a time. They alternate in one process; the figures are those of the run
with the least CPU. All weights must be equal.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.common import arguments, in_folder
from benchmarks.indexed_bcd.__main__ import COSTS, LABELS
from benchmarks.indexed_bcd.memory import label_rows, volume, write
from xcray.arrays import frozen
from xcray.data.dataset import Dataset
from xcray.data.objectstore.remote_dataset import push_dataset
from xcray.solvers.indexed_bcd import page_reader
from xcray.solvers.indexed_bcd.forest_directory import build_forest_directory
from xcray.solvers.indexed_bcd.page_reader import PageRange, PagesInObjectStorage
from xcray.solvers.indexed_bcd.remote_copy import plan_copy
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver
from xcray.storage.objectstore.client import StoragePath


class Storage(NamedTuple):
    """Behaviour of the storage.

    seconds: per request; byte_seconds: per byte; in_flight: requests; joins: whether adjacent pages
    are one request.
    """

    seconds: float = 0.0
    byte_seconds: float = 0.0
    in_flight: int = page_reader.REQUESTS_IN_FLIGHT
    joins: bool = True


@contextmanager
def behaviour(storage: Storage) -> Iterator[None]:
    """Let readers see a storage that behaves so."""
    read_range = PagesInObjectStorage._read_range

    def slow(reader: PagesInObjectStorage, pages: PageRange) -> bytes:
        data = read_range(reader, pages)
        if storage.seconds:
            time.sleep(storage.seconds + storage.byte_seconds * len(data))
        return data

    with (
        mock.patch.object(PagesInObjectStorage, "_read_range", slow),
        mock.patch.object(page_reader, "REQUESTS_IN_FLIGHT", storage.in_flight),
        mock.patch.object(
            page_reader, "REQUEST_BYTES", page_reader.REQUEST_BYTES if storage.joins else 0
        ),
    ):
        yield


class Figures(NamedTuple):
    """Result of a run; volumes: bytes read, in units of all rows."""

    cpu: float
    seconds: float
    volumes: float
    requests: int
    weights: str


def train(data: Dataset, name: str, divisor: int) -> Figures:
    """Train one class against the rest."""
    n_bytes, solver = volume(data), IndexedBCDSolver(C=COSTS[name], selection="forest")
    local = solver.load_dataset(data, n_bytes // divisor)
    local.YT = label_rows(data, name)
    cpu, seconds = time.process_time(), time.monotonic()
    block = solver.solve(local, frozen([0], "int32"))
    return Figures(
        round(time.process_time() - cpu, 2),
        round(time.monotonic() - seconds, 2),
        round(float(block.records["bytes_read"][0]) / n_bytes, 2),
        int(block.records["requests"][0]),
        hashlib.sha256(block.W.data.tobytes() + block.bias.tobytes()).hexdigest(),
    )


def measure(folder: Path, name: str, options: Any) -> dict[str, Any]:
    """Return the figures of all runs on a data set."""
    local = Dataset.open(folder / name)
    build_forest_directory(local)
    home = StoragePath.parse(f"file://{folder}/store") / name.replace("_", "-")
    plan = plan_copy(push_dataset(local.path, home).uri, with_rows=False)
    plan.fetch(folder / f"{name}-copy")
    remote = Dataset.open(folder / f"{name}-copy")
    slow = Storage(options.latency / 1e3, 1e-6 / options.bandwidth)
    runs = {
        "disk": (local, Storage()),
        "storage": (remote, Storage()),
        "storage, latency": (remote, slow),
        "storage, latency, one page at a time": (remote, slow._replace(in_flight=1, joins=False)),
    }
    solver = IndexedBCDSolver(selection="forest")
    solver.warm_up()
    results: dict[str, list[Figures]] = {key: [] for key in runs}
    for _ in range(options.repeats):
        for key, (data, storage) in runs.items():
            with behaviour(storage):
                results[key].append(train(data, name, options.divisor))
                print(name, key, results[key][-1], flush=True)
    if len({each.weights for several in results.values() for each in several}) > 1:
        raise SystemExit("the weights differ")
    best = {key: min(several)._asdict() for key, several in results.items()}
    for each in best.values():
        del each["weights"]
    copied = sum(entry["bytes"] for entry in plan.files.files.values())
    sizes = {"copied_mib": copied >> 20, "whole_mib": plan.remote.sealed.n_bytes >> 20}
    return {"rows_mib": volume(local) >> 20, **sizes, **best}


def main() -> None:
    """Measure all sets; print a line per run, and one JSON object at the end."""
    options = arguments(
        __doc__ or "",
        sets={"default": ",".join(LABELS)},
        copies={"type": int, "default": 8},
        latency={"type": float, "default": 15.0, "help": "milliseconds per request"},
        bandwidth={"type": float, "default": 80.0, "help": "MB/s of a request"},
        divisor={"type": int, "default": 10},
        repeats={"type": int, "default": 3},
    )

    def run(folder: Path) -> dict[str, Any]:
        sets: dict[str, Any] = {}
        for name in options.sets.split(","):
            write(name, options.data, folder, options.copies)
            sets[name] = measure(folder, name, options)
        return {"sets": sets, "latency": options.latency, "bandwidth": options.bandwidth}

    in_folder(run, options.json)


if __name__ == "__main__":
    main()
