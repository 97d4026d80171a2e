"""Batch prediction: rows per second by pool and number of workers, and where the time is spent.

`python -m benchmarks.serving.batch [--rows 20000] [--model DIR --queries DATASET] [--repeats 3]
[--ray]`

Without a model a synthetic one is trained. Held-out rows are repeated up to --rows, written as
Parquet (and once as svmlight), and predicted by each pool in turn, --repeats times, interleaved.
Rows per second count from the first chunk begun to the last one finished. Opening the model and
hashing the input (`loading`), and the start of a pool (`starting`: Ray and its workers), are
reported separately.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import arguments, dataset, in_folder
from xcray.arrays import CSR
from xcray.batch import BatchPredictSpec, predict_batch
from xcray.data.dataset import Dataset
from xcray.training import TrainSpec, train

POOLS = {"serial": ("serial", 1), "threads 1": ("threads", 1), "threads 2": ("threads", 2)}
ON_RAY = {"ray 1": ("ray", 1), "ray 2": ("ray", 2)}
GROUP = 16384  # rows per row group


def repeated(X: CSR, rows: int) -> pa.Table:
    """Return the rows of a matrix, repeated, as columns of lists."""
    offsets = pa.array(X.indptr.astype(np.int32))
    columns = {
        name: pa.ListArray.from_arrays(offsets, pa.array(values))
        for name, values in zip(("indices", "values"), X[1:3], strict=True)
    }
    once = pa.table(columns)
    return pa.concat_tables([once] * -(-rows // X.n_rows)).slice(0, rows)


def as_svmlight(X: CSR, path: Path) -> None:
    """Write the same rows as lines."""
    with open(path, "w", encoding="ascii") as out:
        for i in range(X.n_rows):
            pairs = zip((X.row(i)[0] + 1).tolist(), X.row(i)[1].tolist(), strict=True)
            out.write("0 " + " ".join(f"{j}:{value:.6g}" for j, value in pairs) + "\n")


def answer(
    model: Path, path: Path, pool: str, workers: int, k: int, folder: Path
) -> dict[str, Any]:
    """Run one batch prediction from the start."""
    run, out = folder / "run", folder / "out"
    began = time.monotonic()
    manifest = predict_batch(
        BatchPredictSpec(str(model), str(path), pool=pool, workers=workers, k=k),
        run_dir=run,
        out=out,
    ).manifest
    whole = time.monotonic() - began
    report, parts = manifest["report"], manifest["parts"]
    # the makespan excludes the start of a pool: Ray and its workers
    row = {
        "rows": manifest["answered"],
        "whole_seconds": whole,
        "loading": report["seconds"]["LOADING"],
        "starting": report["seconds"]["PREDICTING"] - report["makespan"],
        "seconds": report["makespan"],
        "rows_per_second": manifest["answered"] / report["makespan"],
        "cpu_seconds": report["cpu_seconds"],
        "busy": statistics.mean(report["busy_share"].values()),
        "bytes": sum(part["bytes"] for part in parts),
        "parts": [part["sha256"] for part in parts],
    }
    shutil.rmtree(run)
    shutil.rmtree(out)
    return row


def measured(
    model: Path, inputs: dict[str, Path], repeats: int, ray: bool, k: int, folder: Path
) -> dict[str, Any]:
    """Run every pool on Parquet, and one thread on lines; return medians of interleaved runs."""
    pools = {**POOLS, **(ON_RAY if ray else {})}
    cases = {name: (inputs["parquet"], *how) for name, how in pools.items()} | {
        "serial, svmlight": (inputs["svmlight"], "serial", 1)
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, (path, pool, workers) in cases.items():
            runs[name].append(answer(model, path, pool, workers, k, folder))
            shown = {
                part: round(runs[name][-1][part], 2)
                for part in ("rows_per_second", "loading", "starting", "busy")
            }
            print(name, shown, file=sys.stderr, flush=True)
    same = len({tuple(run["parts"]) for name in pools for run in runs[name]}) == 1
    out: dict[str, Any] = {
        "same_bytes": same,
        "pools": {name: summary(result) for name, result in runs.items()},
    }
    rate = {name: output["rows_per_second"] for name, output in out["pools"].items()}
    out["ratio_1_to_2"] = {
        kind: rate[f"{kind} 2"] / rate[f"{kind} 1"]
        for kind in ("threads", *(["ray"] if ray else []))
    }
    return out


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians of the figures, and the share of the workers' CPU time by activity."""
    figures = ("rows_per_second", "seconds", "whole_seconds", "loading", "starting", "busy")
    spent = {name: sum(run["cpu_seconds"][name] for run in runs) for name in runs[0]["cpu_seconds"]}
    shares = {name: round(seconds / sum(spent.values()), 4) for name, seconds in spent.items()}
    cpu = statistics.median(run["rows"] / sum(run["cpu_seconds"].values()) for run in runs)
    medians = {name: round(statistics.median(run[name] for run in runs), 4) for name in figures}
    medians["rows_per_cpu_second"] = round(cpu, 1)
    fixed = {
        "rows": runs[0]["rows"],
        "parts": len(runs[0]["parts"]),
        "bytes_a_row": round(runs[0]["bytes"] / runs[0]["rows"], 1),
    }
    return {
        **fixed,
        **medians,
        "shares": shares,
        "all_rows_per_second": [round(run["rows_per_second"], 1) for run in runs],
    }


def main() -> None:
    """Run and print the JSON."""
    chosen = arguments(
        __doc__ or "",
        model={"type": Path, "help": "a model directory; default: one is trained"},
        queries={"type": Path, "help": "a data set directory, for its held-out rows"},
        rows={"type": int, "default": 20_000, "help": "rows to predict"},
        k={"type": int, "default": 5, "help": "labels per row"},
        repeats={"type": int, "default": 3, "help": "runs of each pool"},
        ray={"action": "store_true", "help": "also on Ray"},
    )

    def run(folder: Path) -> dict[str, Any]:
        data = (
            Dataset.open(chosen.queries) if chosen.queries else dataset("synthetic", None, folder)
        )
        model = chosen.model
        if model is None:
            model = train(
                TrainSpec(str(data.path)), run_dir=folder / "training", out=folder / "model"
            ).model_path
        rows = (data.test or data.train).X
        inputs = {"parquet": folder / "in.parquet", "svmlight": folder / "in.svmlight"}
        pq.write_table(repeated(rows, chosen.rows), inputs["parquet"], row_group_size=GROUP)
        as_svmlight(rows, inputs["svmlight"])
        result = measured(model, inputs, chosen.repeats, chosen.ray, chosen.k, folder)
        entries = round(rows.nnz / rows.n_rows, 1)
        return {
            "benchmark": "bulk",
            "k": chosen.k,
            "entries_a_row": entries,
            "labels": data.n_labels,
            **result,
        }

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
