"""Data ten times the memory limit: the whole process within RLIMIT_DATA, from index to model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from xcray.arrays import csr_from, pattern
from xcray.data.writer import DatasetWriter

ROWS, FEATURES, PARTS = 320_000, 96, 16
LIMIT = 20 << 20  # of pages and active rows; the rows have 10.7 times as much
SLACK = 8 << 20  # of the interpreter and the allocator
PROGRAM = """
import json, re, resource, sys
from pathlib import Path
from xcray.arrays import frozen
from xcray.data.dataset import Dataset
from xcray.data.metric_forest.directory import build_forest_directory
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver
import numpy as np

def status(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

path, limit, slack = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dataset = Dataset.open(path)
solver = IndexedBCDSolver(selection="auto", leaf_rows=64, C=0.1)
n = dataset.train.n_rows
# threads reserve address space; the process starts one to read
scratch = int(solver.task_needs(dataset.train.X).n_bytes) + 27 * n
solver.warm_up()
np.random.default_rng(0).permutation(10) @ np.ones(10)
build_forest_directory(dataset, 64, 4 * limit)
import threading
threading.stack_size(1 << 20)
free = status("VmData") + limit + scratch + slack
resource.setrlimit(resource.RLIMIT_DATA, (free, free))
before = status("RssAnon")
local = solver.load_dataset(dataset, limit)
record = solver.solve(local, frozen([0], np.int32)).records
print(json.dumps({
    "certified": bool(solver.certified(record).all()),
    "bytes_read": int(record["bytes_read"][0]),
    "pages": type(local.store).__name__,
    "anonymous": status("RssAnon") - before,
    "volume": 8 * (dataset.train.X.nnz + n),
    "objective": float(record["objective"][0]),
    "scratch": scratch,
}))
"""


@pytest.mark.drill
def test_ten_times_the_limit_trains_within_it(tmp_path: Path) -> None:
    rng, weights = np.random.default_rng(0), np.random.default_rng(1).normal(size=FEATURES)
    with DatasetWriter(tmp_path / "svm", name="svm", n_labels=1) as writer:
        for _ in range(PARTS):
            X = rng.normal(size=(ROWS // PARTS, FEATURES)).astype(np.float32)
            is_positive = X @ weights > 0.0
            # away from the boundary, so that few rows have a loss
            X += np.where(is_positive, 0.4, -0.4)[:, None] * np.sign(weights)
            labels = pattern(np.append(0, np.cumsum(is_positive)), np.zeros(is_positive.sum()), 1)
            writer.add("train", csr_from(X), labels)
        writer.finish(source={"format": "synthetic"})
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "svm"), str(LIMIT), str(SLACK)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    figures = json.loads(process.stdout)
    assert figures["volume"] > 10 * LIMIT
    assert figures["pages"] == "PagedRows"
    assert figures["certified"]
    assert figures["bytes_read"] > 0.5 * figures["volume"]
    assert figures["anonymous"] < LIMIT + figures["scratch"] + SLACK
