"""MEMOIR on several workers: critical path, messages, and equal models on threads and Ray.

python -m benchmarks.memoir.workers --data DIR [--rounds 3] [--groups 1000,100] [--no-ray]
    [--json FILE]

gnd_tibkat, one sample per row and label (35,116 classes), rows of length 1. First, the workers of a
training run one after the other in this process, each with its own W. The critical path is the sum
over the steps of the processor seconds of the slowest worker: the time of the training on idle
cores, without transport. Then `xcray.train` runs serially, on two threads, and on Ray with one and
two workers: elapsed seconds, which count other programs on the machine, too, and the SHA-256 of the
models. Prints a line per training, and one JSON line.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common import arguments, dataset, in_folder
from benchmarks.memoir.__main__ import LARGE
from xcray.data.dataset import Dataset
from xcray.solvers.memoir.solver import MemoirSolver
from xcray.training import TrainSpec, train
from xcray.training.synchronous import training_rows

WORKERS: Final = (1, 2, 4)
POOLS: Final = (("serial", 1), ("threads", 2), ("ray", 1), ("ray", 2))


def critical_path(source: Dataset, solver: MemoirSolver, n: int, folder: Path) -> dict[str, Any]:
    """Return the figures of a training on n workers, run one after the other."""
    rows = training_rows(source)
    workers = [solver.create_worker(rows, i, n, lambda: False) for i in range(n)]
    for worker in workers:
        worker.restore(str(folder / "none"), False)
    slowest, total, sent, step = 0.0, 0.0, 0, 0
    whole: np.ndarray | None = None
    while True:
        seconds, parts = [], []
        for worker in workers:
            began = time.process_time()
            reply = worker.advance(step, whole)[1]
            seconds.append(time.process_time() - began)
            parts += [] if reply.part is None else [reply.part]
        slowest, total, step = slowest + max(seconds), total + sum(seconds), step + 1
        if not parts:
            break
        whole = np.concatenate(parts)
        sent += whole.nbytes
    block = workers[0].result(True)[0]
    assert block is not None
    return {
        "critical_path": round(slowest, 2),
        "processor_seconds": round(total, 2),
        "steps": step,
        "bytes_per_worker": sent,
        "weights": block.W.nnz,
        "digest": block.digest()[:16],
    }


def train_on(path: Path, folder: Path, params: dict[str, Any], pool: str, n: int) -> dict[str, Any]:
    """Return the figures of `xcray.train`."""
    spec = TrainSpec(str(path), solver="memoir", pool=pool, workers=n, params=params)
    place = folder / f"{pool}-{n}-{params['group']}"
    result = train(spec, run_dir=place.with_suffix(".run"), out=place, job=f"bench{pool}{n}")
    return {"elapsed": result.report["seconds"]["TRAINING"], "sha256": result.sha256[:16]}


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure all numbers of workers, and all pools, for each group size."""
    source, out = dataset(LARGE, options.data, folder), dict[str, Any]()
    for group in map(int, options.groups.split(",")):
        params = {"rounds": options.rounds, "group": group, "row_norm": "l2"}
        solver = MemoirSolver(**params)
        solver.warm_up()
        for n in WORKERS:
            name = f"group {group}, {n} workers"
            out[name] = critical_path(source, solver, n, folder)
            print(name, out[name], flush=True)
        for pool, n in () if options.no_ray else POOLS:
            name = f"group {group}, {pool} {n}"
            out[name] = train_on(source.path, folder, params, pool, n)
            print(name, out[name], flush=True)
    return out


def main() -> None:
    """Run the benchmark."""
    own: dict[str, dict[str, Any]] = {
        "rounds": {"type": int, "default": 3, "help": "rounds of a training"},
        "groups": {"default": "1000", "help": "samples per group"},
        "no_ray": {"action": "store_true", "help": "only the first part"},
    }
    options = arguments(__doc__ or "", **own)
    in_folder(lambda folder: run(options, folder), options.json)


if __name__ == "__main__":
    main()
