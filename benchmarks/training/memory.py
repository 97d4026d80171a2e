"""Train a model three times larger than the memory limit, and compare preflight with reality.

`python -m benchmarks.training.memory [--labels 900] [--share 3]
[--data DIR --sets gutenberg_lcsh] [--pools threads ray]`

A synthetic set with large weights (lam = 0) is trained twice in separate processes: without a
limit, and with RLIMIT_DATA (all private writable memory, including the interpreter's) at a share of
the finished model's bytes. The hashes must be equal. Under the same limit the weights are then
merged and transposed in memory, which must fail. Sets of --data are trained with the defaults, and
every figure of the estimate is compared.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, dataset, in_folder
from xcray.arrays import csr, pattern
from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter
from xcray.kernels.sparse import transpose
from xcray.model.model import Model
from xcray.training import TrainSpec, train

FEATURES, ENTRIES, LABELS_A_ROW, OWN = 100_000, 6000, 25, 50
PARAMS = {"lam": 0.0, "eps": 0.05}
QUIET = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
}


def generated(path: Path, labels: int) -> Dataset:
    """Generate rows of many features, and labels of few rows: large weights, quickly solved."""
    rng = np.random.default_rng(0)
    writer = DatasetWriter(path, name="memory", n_features=FEATURES, n_labels=labels)
    of_label = rng.choice(FEATURES, (labels, OWN))  # the features that identify a label
    for part, rows in (("train", 2 * labels // LABELS_A_ROW), ("test", 200)):
        own = [np.sort(rng.choice(labels, LABELS_A_ROW, replace=False)) for _ in range(rows)]
        columns = [
            np.union1d(rng.choice(FEATURES, ENTRIES, replace=False), of_label[each]) for each in own
        ]
        indptr = np.cumsum([0, *map(len, columns)])
        X = csr(
            indptr, np.concatenate(columns), (0.5 + rng.random(indptr[-1])) / ENTRIES**0.5, FEATURES
        )
        writer.add(
            part, X, pattern(np.arange(rows + 1) * LABELS_A_ROW, np.concatenate(own), labels)
        )
    return writer.finish(source={})


def child(task: str, folder: Path, data: str) -> dict[str, Any]:
    """Run the task of a separate process: a training, or merging and transposing in memory."""
    if task == "in-memory":
        W = Model.open(folder / "free" / "model", verify=False).W
        try:
            merged = csr(W.indptr.copy(), W.indices.copy(), W.data.copy(), W.n_cols)
            selection = [
                transpose(merged),
                transpose(merged),
            ]  # the index for evaluation, and the model's
        except MemoryError as error:
            return {"ended": False, "error": str(error) or "MemoryError"}
        return {"ended": True, "matrices": 1 + len(selection)}
    place = folder / task
    spec = TrainSpec(data, params=PARAMS, pool="threads", workers=2)
    result = train(spec, run_dir=place / "run", out=place / "model")
    report = result.report
    kept_figures = {name: report[name] for name in ("seconds", "weights", "preflight")}
    return {"ended": True, "sha256": result.sha256, "measures": result.measures, **kept_figures}


def watched(task: str, folder: Path, data: str, limit: int | None) -> dict[str, Any]:
    """Run a child under a limit and sample its memory from outside.

    Return the peaks in bytes, and the samples over time.
    """

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    command = [
        sys.executable,
        "-m",
        "benchmarks.training.memory",
        "--child",
        task,
        str(folder),
        data,
    ]
    began, course = time.monotonic(), []
    out = folder / f"{task}.out"
    with open(out, "wb") as sink:
        process = subprocess.Popen(
            command, stdout=sink, env={**os.environ, **QUIET}, preexec_fn=limited
        )
        while process.poll() is None:
            state = _status(process.pid)
            if state:
                course.append(
                    (
                        round(time.monotonic() - began, 3),
                        state.get("RssAnon", 0),
                        state.get("VmData", 0),
                    )
                )
            time.sleep(0.02)
    lines = out.read_text().splitlines()
    document = (
        json.loads(lines[-1])
        if process.returncode == 0 and lines
        else {"ended": False, "status": process.returncode}
    )
    peaks = {
        "peak_anonymous": max((c[1] for c in course), default=0),
        "peak_data": max((c[2] for c in course), default=0),
    }
    return {
        "task": task,
        "limit": limit,
        "wall": round(time.monotonic() - began, 2),
        **peaks,
        **document,
        "course": course,
    }


def limited_training(folder: Path, labels: int, share: float) -> dict[str, Any]:
    """Run the generated set without a limit, with a limit, and by merging in memory."""
    data = str(generated(folder / "data", labels).path)
    free = watched("free", folder, data, None)
    model = Model.open(folder / "free" / "model", verify=False)
    limit = int(model.n_bytes / share)
    tight, old = watched("limited", folder, data, limit), watched("in-memory", folder, data, limit)
    row = {
        "labels": labels,
        "weights": model.nnz,
        "model_bytes": model.n_bytes,
        "limit": limit,
        "same_sha256": free.get("sha256") == tight.get("sha256"),
        "in_memory_needs": 3 * 8 * model.nnz,
        "free": free,
        "limited": tight,
        "in_memory": old,
    }
    shown = {
        name: row[name]
        for name in ("weights", "model_bytes", "limit", "same_sha256", "in_memory_needs")
    }
    print(shown, flush=True)
    for run in (free, tight, old):
        print(
            {
                name: value
                for name, value in run.items()
                if name not in ("course", "preflight", "measures")
            },
            flush=True,
        )
    return row


def estimate_and_train(name: str, data: Path, pool: str, folder: Path) -> dict[str, Any]:
    """Train a set with the defaults; return the estimate and the measured figures."""
    place = folder / f"{name}-{pool}"
    path = (
        dataset(name, data, folder).path
        if not (folder / name.replace("_", "-")).exists()
        else folder / name.replace("_", "-")
    )
    result = train(
        TrainSpec(str(path), pool=pool, workers=2), run_dir=place / "run", out=place / "model"
    )
    row = {
        "set": name,
        "pool": pool,
        "sha256": result.sha256,
        "seconds": result.report["seconds"],
        **result.report["preflight"],
    }
    print(
        name,
        pool,
        {what: figures["ratio"] for what, figures in row["compared"].items()},
        row["workers"],
        flush=True,
    )
    return row


def main() -> None:
    """Run both parts and print the JSON."""
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(sys.argv[2], Path(sys.argv[3]), sys.argv[4])))
        return
    chosen = arguments(
        __doc__ or "",
        labels={"type": int, "default": 900, "help": "of the generated set; 0: skip it"},
        share={"type": float, "default": 3.0, "help": "model bytes over the limit"},
        sets={"nargs": "+", "default": ["gutenberg_lcsh"], "help": "sets of --data"},
        pools={"nargs": "+", "default": ["threads"]},
    )

    def run(folder: Path) -> dict[str, Any]:
        limited = limited_training(folder, chosen.labels, chosen.share) if chosen.labels else None
        rows = (
            [
                estimate_and_train(name, chosen.data, pool, folder)
                for name in chosen.sets
                for pool in chosen.pools
            ]
            if chosen.data
            else []
        )
        if chosen.picture and limited:
            picture(limited, chosen.picture)
        for part in ("free", "limited", "in_memory") if limited else ():
            limited[part].pop("course")  # type: ignore[index]
        return {"benchmark": "memory", "limited_training": limited, "sets": rows}

    in_folder(run, chosen.json)


def picture(record: dict[str, Any], path: Path) -> None:
    """Draw anonymous memory over time, with the limit and the model's size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for part, words in (("free", "no limit"), ("limited", "limited")):
        course = record[part]["course"]
        axis.plot([c[0] for c in course], [c[1] / 1e6 for c in course], label=f"anonymous, {words}")
    axis.axhline(record["model_bytes"] / 1e6, color="black", linewidth=0.8, label="finished model")
    axis.axhline(record["limit"] / 1e6, color="red", linewidth=0.8, label="limit")
    axis.set(xlabel="seconds", ylabel="MB", ylim=(0, None))
    axis.legend(frameon=False)
    figure.savefig(path, dpi=120)


def _status(pid: int) -> dict[str, int]:
    """Return RssAnon and VmData of a process in bytes; empty without /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.split() for line in lines if line.startswith(("RssAnon", "VmData"))]
    return {pair[0].rstrip(":"): int(pair[1]) << 10 for pair in pairs}


if __name__ == "__main__":
    main()
