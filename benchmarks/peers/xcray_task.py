"""One training of xcray: `python -m benchmarks.peers.xcray_task TASK.json`; its last line is JSON.

It is measured as the peers (`benchmarks.peers.worker`): CPU seconds of this process. Training is
everything from opening the data set to the last finished class, including commits to disk. Merging,
evaluation and publishing come after and are reported separately in `phases`. The kernels are
compiled, or read from their cache, before.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.worker import cpu_seconds, memory_bytes, stay_on, tree_bytes
from benchmarks.search.plain_scan import PlainScan
from xcray.api.options import DEFAULT_MEASURE
from xcray.arrays import TopK, frozen
from xcray.data.dataset import Dataset
from xcray.kernels.sparse import take_rows
from xcray.model.model import Model
from xcray.solvers import make_solver
from xcray.telemetry.progress import Progress
from xcray.training import TrainSpec, train

SOLVER = "ppdsparse"


class Meter:
    """CPU seconds and peak memory at the beginning of every phase of a training."""

    def __init__(self) -> None:
        self.began = cpu_seconds()
        self.wall = time.monotonic()
        self.phases: dict[str, dict[str, float]] = {}

    def note(self, progress: Progress) -> None:
        """Record the first call of each phase."""
        if progress.phase not in self.phases:
            used = {"cpu_s": cpu_seconds() - self.began, "wall_s": time.monotonic() - self.wall}
            self.phases[progress.phase] = {**used, "peak_bytes": memory_bytes("VmHWM")}


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Train, and predict the test rows."""
    data = Dataset.open(task["dataset"])
    load(data, task["params"])
    scratch, rest, meter = Path(task["scratch"]), memory_bytes("VmRSS"), Meter()
    auto = DEFAULT_MEASURE if task.get("auto") else None
    spec = TrainSpec(
        task["dataset"],
        params=task["params"],
        pool="serial",
        auto=auto,
        groups=task.get("groups", "none"),
    )
    result = train(spec, run_dir=scratch / "run", out=scratch / "model", progress=meter.note)
    peak, end = memory_bytes("VmHWM"), meter.phases["MERGING"]
    model = Model.open(result.model_path, verify=False)
    began = cpu_seconds()
    rows = model.search.input_rows(data["test"].X)
    plain = PlainScan(model.postings, model.b) if model.groups is None else None
    top = (plain or model.search).query(rows, task["k"])
    predicted = cpu_seconds() - began
    np.save(task["top"], top.labels)
    sample = {}
    if task["columns"]:
        columns = np.load(task["columns"])
        np.save(task["top_sample"], restricted(model, data, columns, task["k"]).labels)
        sample = {"sample_cpu_s": sample_seconds(data, columns, task["params"])}
    return {
        "train_cpu_s": end["cpu_s"],
        "train_wall_s": end["wall_s"],
        "rest_bytes": rest,
        "peak_bytes": peak,
        "phases": meter.phases,
        "predict_cpu_s": predicted,
        "model_bytes": tree_bytes(result.model_path),
        "weights": model.nnz,
        "not_converged": result.report["labels"] - result.report["labels_certified"],
        "largest_gap": result.report["largest_gap"],
        "selection": result.report.get("auto"),
        **sample,
    }


def run_sample(task: dict[str, Any]) -> dict[str, Any]:
    """Solve only the labels of the sample, as one-vs-rest peers do; predict the test rows."""
    data, columns, rest = (
        Dataset.open(task["dataset"]),
        np.load(task["columns"]),
        memory_bytes("VmRSS"),
    )
    solver, local = load(data, task["params"])
    began, wall = cpu_seconds(), time.monotonic()
    block = solver.solve(local, frozen(columns, np.int32))
    used = {"train_cpu_s": cpu_seconds() - began, "train_wall_s": time.monotonic() - wall}
    peak, began = memory_bytes("VmHWM"), cpu_seconds()
    np.save(
        task["top"],
        PlainScan.build(block.W, frozen(block.bias, np.float32))
        .query(data["test"].X, task["k"])
        .labels,
    )
    gaps = block.records["gap"] / block.records["null"]
    return {
        **used,
        "sample_cpu_s": used["train_cpu_s"],
        "rest_bytes": rest,
        "peak_bytes": peak,
        "predict_cpu_s": cpu_seconds() - began,
        "model_bytes": 8 * block.W.nnz + 16 * len(columns),
        "weights": block.W.nnz,
        "not_converged": int((gaps > solver.eps).sum()),
        "largest_gap": float(gaps.max()),
    }


def load(data: Dataset, params: dict[str, Any]) -> tuple[Any, Any]:
    """Return the solver and its state, with all kernels compiled or read from their cache.

    Solves one label: the kernels depend on the data, since Newton's method has its own.
    """
    solver = make_solver(SOLVER, params)
    local = solver.load_dataset(data)
    solver.solve(local, frozen([0], np.int32))
    return solver, local


def sample_seconds(data: Dataset, columns: Any, params: dict[str, Any]) -> float:
    """Return the CPU seconds of solving `columns`, the same classes that one-vs-rest peers train.

    The data are loaded before.
    """
    solver, local = load(data, params)
    began = cpu_seconds()
    solver.solve(local, frozen(columns, np.int32))
    return cpu_seconds() - began


def restricted(model: Model, data: Dataset, columns: Any, k: int) -> TopK:
    """Return the top k among `columns` (labels, ascending), numbered within the sample."""
    W = take_rows(model.W, frozen(columns, np.int64))
    rows = model.search.input_rows(data["test"].X)
    return PlainScan.build(W, frozen(model.b[columns], np.float32)).query(rows, k)


def main() -> None:
    """Run the task and print the result."""
    task = json.loads(Path(sys.argv[1]).read_text())
    stay_on(task["core"])
    print(json.dumps(run_sample(task) if task["sample_only"] else run(task)))


if __name__ == "__main__":
    main()
