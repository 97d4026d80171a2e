"""Interleaved timing of engines on a machine that other processes use too.

Queries come in blocks. On a block each engine in turn answers all queries, one by one, `repeats`
times, so that a slow moment of the machine affects all engines alike. Reported are percentiles of
all times, and of each query's minimum time. The minimum is the cost of a query; all times include
the load of the machine, which is measured too.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

from benchmarks.search.models import Subject, row

KS = (1, 5, 10, 100)
BLOCK = 50
Ask = Callable[[int, int, int], tuple[list[int], list[Any]]]


class Engine(NamedTuple):
    """An engine under test.

    ask(first row, last + 1, k): returns nanoseconds and labels of each row. batch(rows, k,
    threads): returns seconds for the first rows in one call; None if not available.
    """

    name: str
    ask: Ask
    batch: Callable[[int, int, int], float] | None = None


class Times(NamedTuple):
    """Times of one engine and k.

    ns: (repeats, queries) nanoseconds, NaN if not measured; labels: (queries, k), -1 if not
    measured.
    """

    ns: Any
    labels: Any


def local(
    name: str, subject: Subject, query: Callable[[Any, int], Any], batch: Any = None
) -> Engine:
    """Return an engine of this process: query(row, k) returns `.labels`, (1, k)."""
    rows = [row(subject.X, i) for i in range(subject.X.n_rows)]

    def ask(first: int, last: int, k: int) -> tuple[list[int], list[Any]]:
        took, labels, now = [], [], time.perf_counter_ns
        for x in rows[first:last]:
            began = now()
            result = query(x, k)
            took.append(now() - began)
            labels.append(result.labels[0])
        return took, labels

    return Engine(name, ask, batch)


def interleaved(
    engines: list[Engine], n: int, ks: tuple[int, ...], repeats: int, budget: float
) -> dict[tuple[str, int], Times]:
    """Time all engines for every k.

    An engine that would take more than `budget` seconds for a k answers fewer queries of each
    block.
    """
    out = {}
    n_blocks = -(-n // BLOCK)
    for k in ks:
        share = {}
        for engine in engines:
            engine.ask(0, 2, k)  # compiles, maps and fills caches
            first = max(np.mean(engine.ask(2, 5, k)[0]) * 1e-9, 1e-9)
            share[engine.name] = int(np.clip(budget / (n_blocks * repeats * first), 1, BLOCK))
            out[engine.name, k] = Times(
                np.full((repeats, n), np.nan), np.full((n, k), -1, np.int64)
            )
        gc.disable()  # a collection during a query would count as query time
        try:
            for block in range(n_blocks):
                for repeat in range(repeats):
                    turn = (block + repeat) % len(engines)
                    for engine in engines[turn:] + engines[:turn]:
                        last = min(block * BLOCK + share[engine.name], n)
                        record(
                            out[engine.name, k],
                            engine.ask(block * BLOCK, last, k),
                            repeat,
                            block * BLOCK,
                        )
        finally:
            gc.enable()
    return out


def record(times: Times, results: tuple[list[int], list[Any]], repeat: int, first: int) -> None:
    """Store the answer of an engine."""
    took, labels = results
    times.ns[repeat, first : first + len(took)] = took
    for i, own in enumerate(labels, first):
        times.labels[i, : min(len(own), times.labels.shape[1])] = own[: times.labels.shape[1]]


def summary(times: Times) -> dict[str, float]:
    """Return milliseconds: percentiles and mean of all times, and of each query's minimum."""
    every = times.ns[~np.isnan(times.ns)] * 1e-6
    least = latencies(times).min(axis=0) * 1e-6
    return {
        "p50": float(np.percentile(every, 50)),
        "p99": float(np.percentile(every, 99)),
        "mean": float(every.mean()),
        "least_p50": float(np.percentile(least, 50)),
        "least_p99": float(np.percentile(least, 99)),
        "least_mean": float(least.mean()),
        "queries": len(least),
    }


def latencies(times: Times) -> Any:
    """Return the times of the measured queries, (repeats, queries)."""
    return times.ns[:, ~np.isnan(times.ns).any(axis=0)]


def ratio(times: Times, other: Times) -> float:
    """Return the median ratio of the minimum times of two engines, over their common queries."""
    both = ~np.isnan(times.ns).any(axis=0) & ~np.isnan(other.ns).any(axis=0)
    return float(np.median(times.ns[:, both].min(axis=0) / other.ns[:, both].min(axis=0)))


def recall(times: Times, subject: Subject, worst: Any) -> float:
    """Return the share of the best labels that an engine found, over its measured queries.

    A label is among the best if its exact score is at least `worst` (n,), the k-th best, minus the
    rounding of float32. Of tied labels any is accepted.
    """
    W, b, shares = subject.model.W.to_scipy(), subject.model.b, []
    for i in np.flatnonzero(~np.isnan(times.ns).any(axis=0)):
        result = np.unique(times.labels[i][times.labels[i] >= 0])
        scores = (
            W[result] @ row(subject.X, i).to_scipy().T.astype(np.float64)
        ).toarray().ravel() + b[result]
        k = min(times.labels.shape[1], subject.model.n_labels)
        shares.append((scores >= worst[i] - 1e-5 * max(1.0, abs(worst[i]))).sum() / k)
    return float(np.mean(shares))


def batches(engine: Engine, rows: int, k: int, repeats: int) -> dict[str, Any]:
    """Return queries per second of one call with many rows on one and on two threads.

    The calls alternate; the medians and their ratio are returned.
    """
    assert engine.batch is not None
    took: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for threads, seconds in took.items():
            seconds.append(engine.batch(rows, k, threads))
    rate = {threads: rows / float(np.median(seconds)) for threads, seconds in took.items()}
    best = {threads: rows / min(seconds) for threads, seconds in took.items()}
    return {
        "rows": rows,
        "per_second_1": rate[1],
        "per_second_2": rate[2],
        "speedup": rate[2] / rate[1],
        "best_per_second_1": best[1],
        "best_per_second_2": best[2],
        "best_speedup": best[2] / best[1],
    }


@numba.njit(nogil=True)
def stream(words: Any) -> int:
    """Read every word once, in order."""
    total = 0
    for i in range(len(words)):
        total ^= words[i]
    return total


def bandwidth(megabytes: int = 512, repeats: int = 7) -> float:
    """Return the bytes per second that one core reads from memory in order.

    It is the best of several passes over an array larger than every cache.
    """
    words = np.arange(megabytes << 17, dtype=np.int64)
    stream(words[:8])
    best = np.inf
    for _ in range(repeats):
        began = time.perf_counter()
        stream(words)
        best = min(best, time.perf_counter() - began)
    return words.nbytes / best


class Others:
    """Share of the machine that other processes used between `__init__` and `share`.

    It is 0 to 1, of all cores; None without /proc.
    """

    def __init__(self) -> None:
        self.began = self._read()

    def share(self) -> float | None:
        """Return the busy time of other processes over all time."""
        now = self._read()
        if now is None or self.began is None:
            return None
        busy, whole, own = (after - before for after, before in zip(now, self.began, strict=True))
        return round(max(0.0, busy - own) / max(whole, 1e-9), 3)

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Return seconds so far: busy, total, and of this process with its finished children."""
        stat = Path("/proc/stat")
        if not stat.exists():
            return None
        ticks = [int(part) for part in stat.read_text().splitlines()[0].split()[1:9]]
        idle, used = ticks[3] + ticks[4], os.times()
        hertz = os.sysconf("SC_CLK_TCK")
        own = used.user + used.system + used.children_user + used.children_system
        return (sum(ticks) - idle) / hertz, sum(ticks) / hertz, own
