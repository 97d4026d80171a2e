"""One copy of the data per node: the private memory of Ray workers is small and reported."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from xcray.arrays import csr, pattern
from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter
from xcray.schedule.events import Joined
from xcray.solvers import make_solver
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.training.capacity.preflight import PROCESS_BYTES
from xcray.training.capacity.worker_memory import worker_bytes
from xcray.workers.ray.pool import RayPool
from xcray.workers.solver_task import SolverTask, shared_arrays

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray"), pytest.mark.drill]
MIB = 1 << 20


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a data set of few rows with many entries: 64 MiB by row, as many by column."""
    rows, features, entries = 400, 40_000, 20_000
    indices = np.concatenate([np.arange(entries) * 2 + row % 2 for row in range(rows)])
    X = csr(np.arange(rows + 1) * entries, indices, np.full(len(indices), 0.01), features)
    writer = DatasetWriter(
        tmp_path_factory.mktemp("wide") / "data", name="wide", n_features=features, n_labels=rows
    )
    writer.add("train", X, pattern(np.arange(rows + 1), np.arange(rows), rows))
    return writer.finish(source={})


def test_workers_map_the_data_and_report_their_memory(wide: Dataset) -> None:
    work = SolverTask(PPDSparseSolver(), str(wide.path), wide.content_hash)
    pool = RayPool(work, 2, nullcontext(), "memory", lambda: shared_arrays(wide))
    assert pool.memory_usage() == {}
    try:
        pool.open()
        joined = 0
        while joined < 2:
            joined += sum(isinstance(report, Joined) for report in pool.wait(1.0))
        entries: dict[str, int] = {}
        while len(entries) < 2:  # each is queried once and replies at any time
            entries |= pool.memory_usage()
            pool.wait(0.05)
    finally:
        pool.close()
    assert set(entries) == {"worker-0", "worker-1"}
    data = sum(entry["bytes"] for name, entry in wide.manifest["files"].items() if "x_" in name)
    assert data > 120 * MIB
    scratch, _ = worker_bytes(make_solver("ppdsparse", {}), wide.train, 0)
    for n_bytes in entries.values():
        assert 0 < n_bytes < PROCESS_BYTES + scratch + data // 2  # without the data
    assert pool.memory_usage() == {}
