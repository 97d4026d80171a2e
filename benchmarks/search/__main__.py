"""Exact search: milliseconds per query, compared with the plain scan and scipy.

It also measures batches, bytes and index sizes, and can compare answers with brute force.

`python -m benchmarks.search [--models DIR] [--only NAME ...] [--pydocs] [--quick] [--picture FILE]
[--json FILE]`

`python -m benchmarks.search --equality 100000` compares queries with brute force instead, and
reports the mismatches.

DIR contains NAME/model and one of NAME/dataset (queries from its test part), NAME/queries and
NAME/queries.npz. Without DIR a small model is trained. Engines alternate on blocks of queries; see
`benchmarks.search.timing` for the measured quantities.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import run_benchmark
from benchmarks.search.equality import many, same, searcher
from benchmarks.search.models import Subject, csr_bytes, index_bytes, repeated, subjects
from benchmarks.search.plain_scan import PlainScan
from benchmarks.search.report import as_text, draw
from benchmarks.search.timing import (
    KS,
    Engine,
    Others,
    Times,
    bandwidth,
    batches,
    interleaved,
    local,
    ratio,
    recall,
    summary,
)
from xcray.arrays import TopK
from xcray.predict import Predictor

BUDGET = 15.0  # time limit of an engine for one k, all repeats, in seconds
BATCH_SECONDS = 1.0  # approximate time of a batch on one thread
WEIGHT_BYTES = 4  # of a posting's full weight, if it is read
ACCUMULATOR_BYTES = 4  # a label's sum is cleared and read once per query


def scipy_engine(subject: Subject) -> Engine:
    """Return an engine that multiplies with scipy and selects the best k by argpartition."""
    by_feature, b = subject.model.postings.to_scipy(), subject.model.b.astype(np.float32)

    def query(x: Any, k: int) -> TopK:
        scores = (x.to_scipy() @ by_feature).toarray()[0] + b
        k = min(k, len(scores))
        best = np.argpartition(-scores, k - 1)[:k]
        best = best[np.argsort(-scores[best], kind="stable")]
        return TopK(best[None], scores[best][None])

    return local("scipy", subject, query)


def own_engines(subject: Subject, predictor: Predictor, scan: PlainScan) -> list[Engine]:
    """Return the search and the plain scan that is its reference."""

    search = predictor.model.search

    def batch(rows: int, k: int, threads: int) -> float:
        X = repeated(subject.X, rows)
        began = time.perf_counter()
        search.query(X, k, threads=threads)
        return time.perf_counter() - began

    return [local("search", subject, search.query, batch), local("scan", subject, scan.query)]


def costs(
    subject: Subject, predictor: Predictor, scan: PlainScan, k: int, speed: float, p50: float
) -> dict[str, Any]:
    """Return the mean postings, labels and bytes that a query reads.

    They include the time that memory alone would need for these bytes.
    """
    answer = predictor.model.search.query(subject.X, k)
    X, lists = subject.X, np.diff(subject.model.postings.indptr)
    of_lists = float(lists[X.indices].sum()) / X.n_rows
    n_labels, read = subject.model.n_labels, float(answer.postings_read.mean())
    whole = (
        answer.labels_scored > n_labels // 4
    )  # scored from the lists with all their weights, not per label
    rescored = (
        float(np.where(whole, 0, answer.labels_scored).mean()) * 8 * subject.model.nnz / n_labels
    )
    weights = WEIGHT_BYTES * float(np.where(whole, answer.postings_read, 0).mean())
    label_bytes = 2 if n_labels <= 1 << 16 else 3
    touched = label_bytes * read + weights + ACCUMULATOR_BYTES * n_labels + rescored
    return {
        "postings_read": read,
        "postings_of_lists": of_lists,
        "labels_scored": float(answer.labels_scored.mean()),
        "bytes": touched,
        "bytes_of_scan": 8 * of_lists + 20 * subject.model.n_labels,
        "floor_ms": 1e3 * touched / speed,
        "times_the_floor": p50 / (1e3 * touched / speed),
        "equal_to_scan": same(answer.top, scan.query(X, k)),
        "all_exact": bool(answer.exact.all()),
    }


def sizes(subject: Subject, predictor: Predictor) -> dict[str, Any]:
    """Return the bytes of the index and of the weights, and its build speed on one core."""
    model = subject.model
    began, cpu = time.perf_counter(), time.process_time()
    searcher(model.W, model.b)
    wall, used = time.perf_counter() - began, time.process_time() - cpu
    bytes_of = index_bytes(predictor.model.search)
    return {
        "bytes": bytes_of,
        "csr_bytes": csr_bytes(model),
        "times_csr": bytes_of / csr_bytes(model),
        "build_s": wall,
        "weights_per_cpu_second": model.nnz / used,
    }


def cells(
    subject: Subject, engines: list[Engine], times: dict[tuple[str, int], Times], ks: list[int]
) -> list[dict[str, Any]]:
    """Return a table row per engine and k. Recall is relative to brute force."""
    out, exact = [], PlainScan.build(subject.model.W, subject.model.b)
    for engine in engines:
        for k in ks:
            own = times[engine.name, k]
            cell = {
                "engine": engine.name,
                "k": k,
                **summary(own),
                "times_the_search": ratio(own, times["search", k]),
            }
            cell["recall"] = recall(own, subject, exact.query(subject.X, k).scores[:, -1])
            out.append(cell)
    return out


def measured(subject: Subject, predictor: Predictor, chosen: Any, speed: float) -> dict[str, Any]:
    """Return all figures of one model."""
    others, load = Others(), os.getloadavg()[0]
    scan = PlainScan(subject.model.postings, subject.model.b)
    engines = [*own_engines(subject, predictor, scan), scipy_engine(subject)]
    times = interleaved(engines, subject.X.n_rows, tuple(chosen.ks), chosen.repeats, chosen.budget)
    latency = cells(subject, engines, times, chosen.ks)
    least = {cell["k"]: cell["least_p50"] for cell in latency if cell["engine"] == "search"}
    return {
        "model": subject.name,
        "labels": subject.model.n_labels,
        "features": subject.model.n_features,
        "weights": subject.model.nnz,
        "latency": latency,
        "costs": {k: costs(subject, predictor, scan, k, speed, least[k]) for k in chosen.ks},
        "batches": {
            e.name: batches(e, batch_rows(e, None), 5, chosen.repeats)
            for e in engines
            if e.batch is not None
        },
        "index": sizes(subject, predictor),
        "load": [load, os.getloadavg()[0]],
        "others": others.share(),
    }


def batch_rows(engine: Engine, most: int | None) -> int:
    """Return the number of rows that one thread answers in about a second, at most `most`."""
    assert engine.batch is not None
    engine.batch(8, 5, 2)
    few = 8
    while (took := engine.batch(few, 5, 1)) < 0.05 * BATCH_SECONDS and few < (most or 1 << 16):
        few *= 4
    return int(np.clip(few * BATCH_SECONDS / took, 2, most or 1 << 17))


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Measure every model, or compare with brute force."""
    if options.equality:
        return {"benchmark": "search-equality", **many(options.equality, options.seed)}
    speed, rows = bandwidth(), []
    for subject in subjects(options.models, options.pydocs, options.only, options.queries, folder):
        rows.append(measured(subject, Predictor(subject.model), options, speed))
        print(as_text(rows[-1:]), flush=True)
    return {"benchmark": "search", "bandwidth": speed, "models": rows}


def main() -> None:
    """Measure, or compare with brute force, and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        draw=lambda result, path: draw(result["models"], path),
        quick={"queries": 200, "repeats": 2, "budget": 1.0, "ks": [1, 5]},
        models={"type": Path, "help": "directory of NAME/model and NAME/dataset"},
        only={"nargs": "+", "help": "names of models in --models"},
        pydocs={
            "action": "store_true",
            "help": "also train and measure a model of the Python documentation",
        },
        ks={"nargs": "+", "type": int, "default": list(KS)},
        queries={"type": int, "default": 1000, "help": "number of held-out rows per model"},
        repeats={"type": int, "default": 5},
        budget={"type": float, "default": BUDGET, "help": "time limit of an engine for one k"},
        equality={
            "type": int,
            "help": "only compare this many queries with brute force",
        },
        seed={"type": int, "default": 0, "help": "of --equality"},
    )


if __name__ == "__main__":
    main()
