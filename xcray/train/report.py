"""What a training says of itself: figures for people, one table row a class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from xcray.solvers.block import Block


def figures(block: Block, eps: float) -> dict[str, Any]:
    """How the classes came out: counts, the largest gap relative to the null objective, weights; JSON."""
    records = block.records
    gaps = records["gap"] / np.maximum(records["null"], 1e-300)
    certified = records["gap"] <= eps * records["null"]
    empty = records["positives"] == 0
    return {
        "classes": len(block.labels),
        "classes_without_positives": int(empty.sum()),
        "classes_certified": int((certified | empty).sum()),
        "largest_gap": float(gaps[~empty].max()) if (~empty).any() else 0.0,
        "weights": block.W.nnz,
        "weights_pruned": int(records["pruned"].sum()),
        "support_vectors": int(records["support"].sum()),
    }


def balance(results: list[dict[str, Any]], workers: int) -> dict[str, Any]:
    """How well the work was spread: busy share of each worker, and makespan over the ideal (busy time / workers)."""
    if not results:
        return {"batches": 0, "busy_share": {}, "makespan": 0.0, "makespan_over_ideal": 1.0, "core_seconds": 0.0}
    begin = min(r["started"] for r in results)
    makespan = max(r["started"] + r["seconds"] for r in results) - begin
    busy: dict[str, float] = {}
    for r in results:
        busy[r["worker"]] = busy.get(r["worker"], 0.0) + r["seconds"]
    total = sum(busy.values())
    return {
        "batches": len(results),
        "busy_share": {worker: round(seconds / max(makespan, 1e-9), 4) for worker, seconds in sorted(busy.items())},
        "makespan": round(makespan, 3),
        "makespan_over_ideal": round(makespan / max(total / workers, 1e-9), 4),
        "core_seconds": round(total, 3),
    }


def class_table(block: Block) -> pa.Table:
    """The per-class report: one row a label, in order of labels."""
    records = block.records
    names = ("positives", "rounds", "sweeps", "support", "violating", "nnz", "pruned", "work", "primal", "dual", "gap", "null")
    columns = {name: pa.array(np.ascontiguousarray(records[name])) for name in names}
    return pa.table({"label": pa.array(block.labels), "bias": pa.array(block.bias), **columns})
