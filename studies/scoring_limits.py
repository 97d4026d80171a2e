"""PPDSparse's scoring of all samples: what other orders, lockstep and bounds would save.

`python -m studies.scoring_limits [--data DIR] [--sets gutenberg_lcsh gnd_tibkat] [--json FILE]`

walks: ns of CPU per entry of posting lists, by length: one label at a time, and eight labels in
lockstep, whose scores are next to each other (per label, if all eight have a weight there).
orders: CPU time of a sample of labels over that in the given order, with features by frequency,
with rows by similarity (recursive halves along the principal axis of 32 random projections), and
both. bounds: what skipping lists of negative weights with proof would read: the share of entries in
lists of positive weights, the samples that these alone put above the margin (each needs the rest of
its score), and the samples that violate.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp

from benchmarks.common import arguments, dataset, in_folder
from benchmarks.peers.data import sample
from xcray.arrays import CSR, Float32, Int32, csr_from, frozen, pattern_from
from xcray.data.dataset import Dataset
from xcray.solvers import make_solver

SAMPLES = {"gutenberg_lcsh": 1000, "gnd_tibkat": 200}
LENGTHS = (5, 30, 100, 400, 1500, 6000, 1 << 40)
TOGETHER, RUNS, VISITS, LEAF = 8, 5, 4_000_000, 32


@numba.njit
def walk_one(XT: CSR, features: Int32, scores: Float32) -> None:
    """Add the lists of features to the scores of one label."""
    for j in features:
        for p in range(np.uint64(XT.indptr[j]), np.uint64(XT.indptr[j + 1])):
            scores[np.uint32(XT.indices[p])] += np.float32(0.5) * XT.data[p]


@numba.njit
def walk_together(XT: CSR, features: Int32, scores: Float32, weights: Float32) -> None:
    """Add the lists of features to the scores (N, TOGETHER) of several labels."""
    for j in features:
        for p in range(np.uint64(XT.indptr[j]), np.uint64(XT.indptr[j + 1])):
            i, value = np.uint32(XT.indices[p]), XT.data[p]
            for k in range(np.uint64(TOGETHER)):
                scores[i, k] += weights[k] * value


def cpu_seconds(run: Any, *inputs: Any) -> float:
    """Return the CPU seconds of this thread for a call."""
    began = time.thread_time()
    run(*inputs)
    return time.thread_time() - began


def walks(XT: CSR) -> list[dict[str, float]]:
    """Return ns per entry and label, by the length of lists."""
    lengths, rng, rows = np.diff(XT.indptr), np.random.default_rng(0), []
    one = np.zeros(XT.n_cols, np.float32)
    several = np.zeros((XT.n_cols, TOGETHER), np.float32)
    weights = np.ones(TOGETHER, np.float32)
    for low, high in pairwise(LENGTHS):
        features = rng.permutation(np.flatnonzero((lengths >= low) & (lengths < high)))
        features = frozen(features[: np.searchsorted(lengths[features].cumsum(), VISITS)], np.int32)
        entries = int(lengths[features].sum())
        if entries == 0:
            continue
        walk_one(XT, features[:1], one), walk_together(XT, features[:1], several, weights)
        each = min(cpu_seconds(walk_one, XT, features, one) for _ in range(RUNS))
        all_of = min(
            cpu_seconds(walk_together, XT, features, several, weights) for _ in range(RUNS)
        )
        rows.append(
            {
                "from": low,
                "one": round(1e9 * each / entries, 2),
                "together": round(1e9 * all_of / entries / TOGETHER, 2),
            }
        )
    return rows


def similarity_order(X: sp.csr_matrix) -> np.ndarray:
    """Return the rows such that similar ones are near each other."""
    rng = np.random.default_rng(0)
    Z = X @ rng.normal(size=(X.shape[1], 32)).astype(np.float32)
    parts, order = [np.arange(len(Z))], []
    while parts:
        rows = parts.pop()
        if len(rows) <= LEAF:
            order.append(rows)
            continue
        centred = Z[rows] - Z[rows].mean(0)
        axis = np.linalg.eigh(centred.T @ centred)[1][:, -1]
        rows = rows[np.argsort(centred @ axis, kind="stable")]
        parts += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
    return np.concatenate(order)


def orders(data: Dataset, labels: Int32) -> dict[str, float]:
    """Return the time of each order over that of the given one, medians of rounds in turn."""
    solver = make_solver("ppdsparse", {"C": 1.0})
    X, YT = data.train.X.to_scipy(), data.train.YT.to_scipy()
    frequent = np.argsort(-np.diff(data.train.XT.indptr), kind="stable")
    similar = similarity_order(X)
    variants = {
        "given": (X, YT),
        "features": (X[:, frequent], YT),
        "rows": (X[similar], YT[:, similar]),
        "both": (X[:, frequent][similar], YT[:, similar]),
    }
    states = {
        name: solver.load(csr_from(a), csr_from(a.T.tocsr()), pattern_from(b))
        for name, (a, b) in variants.items()
    }
    took: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(RUNS):
        for name, state in states.items():
            took[name].append(cpu_seconds(solver.solve, state, labels))
    base = median(took["given"])
    return {name: round(median(times) / base, 3) for name, times in took.items()}


def bounds(data: Dataset, labels: Int32) -> dict[str, float]:
    """Return means over labels of what bounds by positive weights would leave to read."""
    solver = make_solver("ppdsparse", {"C": 1.0})
    block = solver.solve(solver.load_dataset(data), labels)
    columns, lengths = data.train.XT.to_scipy(), np.diff(data.train.XT.indptr)
    shares, candidates, violating = [], [], []
    for k in range(len(labels)):
        features, weights = block.W.row(k)
        if len(features) == 0:
            continue
        margin, is_positive = -1.0 - block.bias[k], weights > 0
        part = columns[features[is_positive]].T @ weights[is_positive]
        shares.append(lengths[features[is_positive]].sum() / lengths[features].sum())
        candidates.append(np.sum(part > margin))
        violating.append(np.sum(columns[features].T @ weights > margin))
    return {
        "positive_share": round(float(np.mean(shares)), 3),
        "candidates": round(float(np.mean(candidates)), 1),
        "violating": round(float(np.mean(violating)), 1),
    }


def main() -> None:
    """Answer the question for every set; print one line each, and JSON as the last line."""
    chosen = arguments(
        __doc__ or "",
        sets={"nargs": "+", "default": list(SAMPLES)},
        cache={"type": Path, "help": "directory of the data sets; default: a temporary one"},
    )

    def run(folder: Path) -> dict[str, Any]:
        result = []
        for name in chosen.sets:
            data = dataset(name, chosen.data, chosen.cache or folder / "sets")
            labels = sample(data.label_counts, SAMPLES.get(name, 100))
            result.append(
                {
                    "set": name,
                    "walks": walks(data.train.XT),
                    "orders": orders(data, labels),
                    "bounds": bounds(data, labels),
                }
            )
            print(result[-1], flush=True)
        return {"study": "scoring_limits", "sets": result}

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
