"""A model in shards: the same answers as in one process, and what the fan-out costs.

`python -m benchmarks.serving.shards --model DIR --rows DATASET [--shards 1 2 4] [--queries 10000]
[--seconds 10]`

Without --model a small one is trained. The model is served by one process, then in N shards by N
processes and a front, all on this machine. Of each: the first test rows are sent in requests of 64,
and labels, bits of scores and `exact` are compared with `Predictor.search` of the whole model; one
client sends single rows in turn (p50, p99 in milliseconds, of HTTP as a whole) and then 8 clients
(requests per second); memory of each process after that, its resident pages of mapped files
included. `over_one_ms` is the p50 of a single row less that of one process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import psutil

from benchmarks.harness import dataset, run_benchmark, service, table
from benchmarks.serving.__main__ import load, sparse
from xcray.arrays import CSR
from xcray.data.dataset import Dataset
from xcray.kernels.sparse import take_rows
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.predict import Predictor
from xcray.training import TrainSpec, train
from xcray.training.edit.shards import shard_model

ROWS_PER_REQUEST: Final = 64
SINGLE_ROWS: Final = 1000
NAME: Final = "whole"


def first_rows(X: CSR, n: int) -> CSR:
    """Return the first n rows, from the beginning again if there are fewer."""
    return take_rows(X, np.arange(n) % X.n_rows)


def differing(url: str, whole: Predictor, X: CSR, k: int) -> int:
    """Return the number of rows whose answer differs from that of the whole model in any bit."""
    count = 0
    with httpx.Client(base_url=url, trust_env=False, timeout=600.0) as client:
        for begin in range(0, X.n_rows, ROWS_PER_REQUEST):
            rows = take_rows(X, np.arange(begin, min(begin + ROWS_PER_REQUEST, X.n_rows)))
            instances = [sparse(rows.row(i)) for i in range(rows.n_rows)]
            body = {"instances": instances, "top_k": k, "certificate": True}
            reply = client.post(f"v1/models/{NAME}:predict", json=body).raise_for_status().json()
            result = whole.search(rows, k)
            names = whole.model.label_names.rows(result.labels)
            count += sum(
                answer["labels"] != labels
                or np.array(answer["scores"]).tobytes() != scores.tobytes()
                or answer["certificate"]["exact"] is not bool(exact)
                for answer, labels, scores, exact in zip(
                    reply["predictions"], names, result.scores, result.exact, strict=True
                )
            )
    return count


@contextlib.contextmanager
def sharded(model: Model, n_shards: int, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Serve a model in shards; yield the URL of the front, and its processes by name."""
    with contextlib.ExitStack() as stack:
        addresses, processes = [], {}
        for home, labels in shard_model(model, folder, NAME, n_shards):
            settings = {}
            if labels is None:
                settings = {"XCRAY_SHARDS": json.dumps(addresses)}
            url, processes[home.name] = stack.enter_context(service(home, 1, settings))
            addresses.append(url)
        yield url, processes


@contextlib.contextmanager
def unsharded(model: Model, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Serve a model by one process; yield its URL and the process."""
    shutil.copytree(model.path, folder / "copy")
    Registry(folder / "models").publish(NAME, folder / "copy", verified=True)
    with service(folder, 1, {}) as (url, process):
        yield url, {"whole": process}


def resident(process: psutil.Process) -> int:
    """Return the resident bytes of a service."""
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


def measure_service(
    url: str, processes: Mapping[str, psutil.Process], whole: Predictor, X: CSR, options: Any
) -> dict[str, Any]:
    """Return the figures of one service."""
    wrong = differing(url, whole, first_rows(X, options.queries), options.k)
    n = min(SINGLE_ROWS, X.n_rows)
    bodies = [json.dumps({"instances": [sparse(X.row(i))], "top_k": options.k}) for i in range(n)]
    case = {"model": NAME, "bodies": bodies}
    one = load(url, case, options.seconds, connections=1)
    many = load(url, case, options.seconds, connections=8)
    statuses = {**one["statuses"], **many["statuses"]}
    return {
        "differing": wrong,
        "queries": options.queries,
        "p50": one["p50"],
        "p99": one["p99"],
        "requests_a_second": many["requests_a_second"],
        "p99_of_8": many["p99"],
        "statuses": statuses,
        "resident_bytes": {name: resident(process) for name, process in processes.items()},
    }


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the figures of the benchmark."""
    if options.model is None:
        data = dataset("pydocs", None, folder)
        train(TrainSpec(str(data.path)), run_dir=folder / "run", out=folder / "model")
        model = Model.open(folder / "model")
    else:
        data, model = Dataset.open(options.rows), Model.open(options.model)
    whole, X = Predictor(model), data.test.X
    figures: dict[str, Any] = {}
    for n_shards in (0, *options.shards):
        place = folder / f"in-{n_shards}"
        served = sharded(model, n_shards, place) if n_shards else unsharded(model, place)
        with served as (url, processes):
            found = measure_service(url, processes, whole, X, options)
        shutil.rmtree(place)
        one = figures.get("one process", found)
        found["over_one_ms"] = round(found["p50"] - one["p50"], 3)
        figures[f"{n_shards} shards" if n_shards else "one process"] = found
        print(json.dumps({str(n_shards): found}), flush=True)
    rows = [
        {"case": name, **each, "largest_gb": max(each["resident_bytes"].values()) / 1e9}
        for name, each in figures.items()
    ]
    columns = ("case", "differing", "p50", "p99", "over_one_ms", "requests_a_second", "largest_gb")
    print(table(rows, columns))
    differ = {name: each["differing"] for name, each in figures.items() if each["differing"]}
    return {"cases": figures, "wrong": [f"{name}: {rows} rows" for name, rows in differ.items()]}


def main() -> None:
    """Run all measurements and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"queries": 300, "seconds": 1.0, "shards": [1, 2]},
        model={"type": Path, "help": "model directory"},
        rows={"type": Path, "help": "its data set"},
        shards={"type": int, "nargs": "+", "default": [1, 2, 4], "help": "numbers of shards"},
        queries={"type": int, "default": 10_000, "help": "rows that are compared"},
        seconds={"type": float, "default": 10.0, "help": "of each load"},
        k={"type": int, "default": 5, "help": "labels per row"},
    )


if __name__ == "__main__":
    main()
