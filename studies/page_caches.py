"""Bytes read from storage with caches of pages per worker, shared in memory, and on the disk.

python -m studies.page_caches --data DIR [--copies 1] [--leaf-size 64] [--divisor 10]

Ten classes of MNIST are trained by indexed block coordinate descent, each with memory for pages and
active rows of 1 / divisor of the bytes of the rows, and the pages that they request are recorded,
with the size of the cache at that time. The classes are then dealt to 2 and 4 workers, whose
requests alternate, and caches are simulated, in volumes (the bytes of all rows) read from storage:

separate    each worker has its own cache, as in xcray
owners      each page belongs to one worker, which alone caches it; others ask it first
optimal     one cache of the size of all, which always removes the page that is needed last: no
            cache of this size can read less

Then the same classes are trained on 2 and 4 threads with the rows in a storage (file://), without
and with pages kept on the disk of the node (XCRAY_PAGE_CACHE of half of a volume, and of all).
"""

from __future__ import annotations

import heapq
import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.common import arguments, in_folder
from benchmarks.indexed_bcd.memory import shifted_copies, volume
from xcray.arrays import Int64, frozen
from xcray.data.dataset import Dataset
from xcray.data.objectstore.remote_dataset import push_dataset
from xcray.solvers.indexed_bcd.forest_directory import build_forest_directory, open_forest
from xcray.solvers.indexed_bcd.node_pages import VARIABLE
from xcray.solvers.indexed_bcd.paged_rows import PagedRows
from xcray.solvers.indexed_bcd.remote_copy import plan_copy
from xcray.solvers.indexed_bcd.row_store import Plan
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver
from xcray.storage.objectstore.client import StoragePath
from xcray.training import TrainSpec, train
from xcray.training.independent import IndependentLabels

N_CLASSES = 10


class Batch(NamedTuple):
    """Pages that a worker requests together, and the bytes of its cache."""

    pages: list[int]
    capacity: int


Trace = list[Batch]


def record(data: Dataset, leaf_size: int, divisor: int) -> tuple[list[Trace], float]:
    """Train all classes one after the other; return what each requests, and the volumes read."""
    traces: list[Trace] = []
    begin = PagedRows._begin

    def recording(store: PagedRows, order: Int64, plan: Plan, start: int) -> Any:
        batch = begin(store, order, plan, start)
        if batch is not None:
            traces[-1].append(Batch(order[batch.needed].tolist(), store._cache_bytes))
        return batch

    solver, n_bytes, read = IndexedBCDSolver(C=0.01, leaf_rows=leaf_size), volume(data), 0.0
    local = solver.load_dataset(data, n_bytes // divisor)
    with patch.object(PagedRows, "_begin", recording):
        for label in range(N_CLASSES):
            traces.append([])
            local = local.clone_for_thread()
            block = solver.solve(local, frozen([label], np.int32))
            read += float(block.records["bytes_read"][0]) / n_bytes
            print("class", label, len(traces[-1]), round(read, 2), flush=True)
    return traces, read


def interleave(traces: list[Trace], workers: int) -> Iterator[tuple[int, Batch]]:
    """Yield the batches of workers that have classes w, w + workers, ... and take turns."""
    queues = [
        [batch for trace in traces[worker::workers] for batch in trace] for worker in range(workers)
    ]
    places = sorted(
        ((i + 0.5) / len(queue), worker, i)
        for worker, queue in enumerate(queues)
        for i in range(len(queue))
    )
    for _, worker, i in places:
        yield worker, queues[worker][i]


class LeastRecent:
    """A cache that removes the page that was not used for the longest time."""

    def __init__(self) -> None:
        self._pages: OrderedDict[int, int] = OrderedDict()
        self._used = 0

    def request(self, page: int, size: int, capacity: int) -> int:
        """Return the bytes that are read."""
        if page in self._pages:
            self._pages.move_to_end(page)
            return 0
        self._pages[page], self._used = size, self._used + size
        while self._used > capacity:
            self._used -= self._pages.popitem(last=False)[1]
        return size


def separate(traces: list[Trace], workers: int, sizes: Int64) -> int:
    """Return the bytes read if each worker has a cache of its own."""
    caches, read = [LeastRecent() for _ in range(workers)], 0
    for worker, batch in interleave(traces, workers):
        for page in batch.pages:
            read += caches[worker].request(page, int(sizes[page]), batch.capacity)
    return read


def owners(traces: list[Trace], workers: int, sizes: Int64) -> int:
    """Return the bytes read if each page is cached by one worker only."""
    caches, capacities, read = [LeastRecent() for _ in range(workers)], [0] * workers, 0
    for worker, batch in interleave(traces, workers):
        capacities[worker] = batch.capacity
        for page in batch.pages:
            owner = page % workers
            capacity = capacities[owner] or batch.capacity
            read += caches[owner].request(page, int(sizes[page]), capacity)
    return read


def optimal(traces: list[Trace], workers: int, sizes: Int64) -> int:
    """Return the bytes read by one cache of the size of all that knows the future."""
    requests, capacities, now = list[tuple[int, int]](), [0] * workers, 0
    for worker, batch in interleave(traces, workers):
        capacities[worker] = batch.capacity
        known = [each for each in capacities if each]
        total = workers * sum(known) // len(known)
        requests += [(page, total) for page in batch.pages]
    following, after = np.full(len(requests), len(requests)), dict[int, int]()
    for i in range(len(requests) - 1, -1, -1):
        page = requests[i][0]
        following[i] = after.get(page, len(requests))
        after[page] = i
    held, heap, used, read = dict[int, int](), list[tuple[int, int]](), 0, 0
    for now, (page, capacity) in enumerate(requests):
        if page not in held:
            read, used = read + int(sizes[page]), used + int(sizes[page])
        held[page] = int(following[now])
        heapq.heappush(heap, (-held[page], page))
        while used > capacity:
            needed, last = heapq.heappop(heap)
            if held.get(last) == -needed:
                del held[last]
                used -= int(sizes[last])
    return read


def kept_on_disk(folder: Path, data: Dataset, leaf_size: int, divisor: int) -> dict[str, float]:
    """Return the volumes read from a storage by 2 and 4 workers, by share of the rows on disk."""
    home, n_bytes = StoragePath.parse(f"file://{folder}/store") / "mnist", volume(data)
    plan = plan_copy(push_dataset(data.path, home).uri, with_rows=False)
    params, out = {"C": 0.01, "leaf_rows": leaf_size, "selection": "forest"}, dict[str, float]()
    with patch.object(IndependentLabels, "rows_limit", lambda strategy: n_bytes // divisor):
        for workers in (2, 4):
            for share in (0.0, 0.5, 1.5):
                name = f"{workers} workers, {min(share, 1.0):.0%} on disk"
                plan.fetch(folder / name)
                kept = {VARIABLE: str(int(share * n_bytes)) if share else ""}
                spec = TrainSpec(
                    str(folder / name),
                    "indexed-bcd",
                    params=params,
                    pool="threads",
                    workers=workers,
                )
                with patch.dict(os.environ, kept):
                    result = train(spec, run_dir=folder / f"run {name}", out=folder / f"m {name}")
                out[name] = round(result.report["bytes_requested"] / n_bytes, 2)
                print(name, out[name], result.sha256[:8], flush=True)
    return out


def main() -> None:
    """Record and simulate; print one JSON object at the end."""
    options = arguments(
        __doc__ or "",
        copies={"type": int, "default": 1},
        leaf_size={"type": int, "default": 64},
        divisor={"type": int, "default": 10},
    )

    def run(folder: Path) -> dict[str, Any]:
        data = shifted_copies(options.data, folder / "mnist", options.copies)
        build_forest_directory(data, options.leaf_size)
        sizes, n_bytes = np.diff(open_forest(data, options.leaf_size).file.offsets), volume(data)
        traces, read = record(data, options.leaf_size, options.divisor)
        out: dict[str, Any] = {"measured": round(read, 2)}
        capacities = [batch.capacity for trace in traces for batch in trace]
        out["cache_share"] = round(float(np.median(capacities)) / n_bytes, 3)
        for workers in (1, 2, 4):
            out[f"{workers}"] = {
                policy.__name__: round(policy(traces, workers, sizes) / n_bytes, 2)
                for policy in (separate, owners, optimal)
            }
            print(workers, out[f"{workers}"], flush=True)
        disk = kept_on_disk(folder, data, options.leaf_size, options.divisor)
        return {**out, "storage": disk}

    in_folder(run, options.json)


if __name__ == "__main__":
    main()
