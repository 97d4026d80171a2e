"""Timeline of a training: one row per batch with its worker, time and outcome.

attempt_of_run int32   start of the run, from 1       n_labels int32    number of labels
certified      int32   labels with a certificate       cost    float64  expected seconds
worker         string  worker of the batch
task           int64   batch, within the attempt       started float64  seconds since the start
attempt        int32   try of the batch, from 1        seconds float64  duration
cpu_seconds    float64 processor time of its worker meanwhile; 0 if the batch did not end
outcome        string  done; duplicate (another was faster), lost (with its worker), stopped
node           string  address and identity of the worker's node; empty in one process

A run stores it as streams with one more column, `labels`, the labels of a batch (see
`xcray.workers.timeline`). The label table of the model is computed from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xcray.arrays import Float64
from xcray.errors import Corrupt, NotFound
from xcray.model.directory import TIMELINE
from xcray.storage.arrow import read_table
from xcray.workers.timeline import DONE, SCHEMA, read_streams

__all__ = [
    "COLUMNS",
    "TIMELINE",
    "describe_timeline",
    "label_costs",
    "normalize_timeline",
    "read_timeline",
    "timeline_document",
]

COLUMNS: Final = {field.name: field.type for field in SCHEMA if field.name != "labels"}
SUMMED: Final = ("n_labels", "certified", "cost", "seconds")  # of merged batches
MAX_WORKERS: Final = 4096  # workers in a document
# Batches that are further apart, as a share of the total time, are not merged.
MAX_PAUSE_SHARE: Final = 0.005


def read_timeline(folder: Path) -> pa.Table:
    """Return the timeline of a model directory, or of an unfinished run directory.

    The columns are as above. Raises NotFound, Corrupt.
    """
    table = read_table(folder / TIMELINE) if (folder / TIMELINE).is_file() else read_streams(folder)
    if not table.num_rows:
        raise NotFound(
            f"there is no timeline in {folder.name}: a training writes it when batches finish"
        )
    return normalize_timeline(table)


def normalize_timeline(table: pa.Table) -> pa.Table:
    """Return the columns of a timeline in fixed order and types. Raises Corrupt without one."""
    if "certified" not in table.column_names:  # of a model of 0.1.0
        table = table.append_column("certified", pa.array(np.zeros(table.num_rows, np.int32)))
    if missing := COLUMNS.keys() - set(table.column_names):
        raise Corrupt(f"{TIMELINE} has no column {min(missing)}", file=TIMELINE)
    return pa.table({name: table.column(name).cast(kind) for name, kind in COLUMNS.items()})


def timeline_document(table: pa.Table, limit: int = 5000) -> dict[str, Any]:
    """Return a timeline as JSON of bounded size.

    "attempts": attempts of the run, each with "begins" (its position on a common axis) and "span",
    in seconds. "workers": per worker "busy" seconds, "share" of the spans of its attempts,
    "batches", "n_labels", and the numbers of "lost", "duplicate" and "stopped" batches. "batches":
    at most `limit` entries. If there are more batches (thinned is true), neighbours with the same
    worker and outcome are merged into one entry: "batches" of them, from "started" to "ended",
    working "seconds" in all. Sums stay exact. "core_seconds" is the processor
    time of successful batches;
    "busy_share" counts all work.
    """
    table = normalize_timeline(table)
    columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in COLUMNS}
    attempts = _summarize_attempts(columns)
    workers = _summarize_workers(
        columns, {each["attempt_of_run"]: each["span"] for each in attempts}
    )
    entries = _merge_batches(columns, limit)
    done = columns["outcome"] == DONE
    available = sum(each["span"] * each["workers"] for each in attempts)
    return {
        "attempts": attempts,
        "workers": workers[:MAX_WORKERS],
        "workers_total": len(workers),
        "batches": entries,
        "batches_total": table.num_rows,
        "n_labels": int(columns["n_labels"][done].sum()),
        "thinned": len(entries) < table.num_rows,
        "makespan": sum(each["span"] for each in attempts),
        "core_seconds": float(columns["cpu_seconds"][done].sum()),
        "busy_share": float(columns["seconds"].sum()) / available if available else 0.0,
    }


def describe_timeline(timeline: Mapping[str, Any]) -> str:
    """Return a one-line description of a `timeline_document`."""
    attempts = f", {len(timeline['attempts'])} attempts" if len(timeline["attempts"]) > 1 else ""
    wasted = sum(
        each.get(name, 0)
        for each in timeline["workers"]
        for name in ("lost", "duplicate", "stopped")
    )
    wasted_note = f", {wasted:,} unused" if wasted else ""
    # Block passes of a rotation do not finish labels.
    labels = f", {timeline['n_labels']:,} labels" if timeline["n_labels"] else ""
    return (
        f"{timeline['batches_total']:,} batches{wasted_note}{labels}{attempts}; "
        f"{timeline['workers_total']:,} workers, "
        f"{timeline['makespan']:,.1f} s, busy {100 * timeline['busy_share']:.1f} %"
    )


def label_costs(table: pa.Table | None, labels: Any, work: Any) -> tuple[Float64, list[str | None]]:
    """Return seconds (n,) float64 and worker of each of `labels` (n,); NaN and None if unknown.

    table: a run's timeline, with `labels`; a label that was done twice has the later values. A
    batch's seconds are distributed over its labels by their `work` (n,), equally if that is 0.
    """
    n, work = len(labels), np.asarray(work, np.float64)
    seconds, owner = np.full(n, np.nan), np.full(n, -1)
    if table is None or "labels" not in table.column_names:
        return seconds, [None] * n
    done = table.filter(pc.equal(normalize_timeline(table).column("outcome"), DONE))
    lists = done.column("labels").combine_chunks()
    batch, position = (
        np.repeat(np.arange(done.num_rows), pc.list_value_length(lists).to_numpy()),
        _label_positions(labels, lists.flatten()),
    )
    batch, position = batch[position >= 0], position[position >= 0]
    sums, sizes = (
        np.bincount(batch, work[position], done.num_rows),
        np.bincount(batch, minlength=done.num_rows),
    )
    share = np.divide(work[position], sums[batch], out=1.0 / sizes[batch], where=sums[batch] > 0.0)
    seconds[position] = done.column("seconds").to_numpy()[batch] * share
    owner[position] = batch
    names = done.column("worker").to_pylist()
    return seconds, [names[each] if each >= 0 else None for each in owner]


def _label_positions(labels: Any, solved: pa.Array) -> Any:
    """Return the position in `labels` of each of `solved`; -1 for missing ones."""
    numbers = solved.to_numpy(zero_copy_only=False).astype(np.int64)
    position = np.full(
        1 + max(int(np.max(labels, initial=-1)), int(np.max(numbers, initial=-1))), -1
    )
    position[np.asarray(labels)] = np.arange(len(labels))
    return position[numbers]


def _summarize_attempts(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Return span, position and workers of each attempt, with attempts laid end to end."""
    out, begins = [], 0.0
    for number in np.unique(columns["attempt_of_run"]):
        own = columns["attempt_of_run"] == number
        first = float(columns["started"][own].min())
        span = float((columns["started"] + columns["seconds"])[own].max()) - first
        workers = len(set(columns["worker"][own]))
        out.append(
            {
                "attempt_of_run": int(number),
                "begins": begins,
                "first": first,
                "span": span,
                "workers": workers,
            }
        )
        begins += span
    return out


def _summarize_workers(columns: dict[str, Any], spans: dict[int, float]) -> list[dict[str, Any]]:
    """Return the totals per worker, in natural order of names."""
    names, lane = np.unique(columns["worker"].astype(str), return_inverse=True)
    busy = np.bincount(lane, columns["seconds"], len(names))
    batches = np.bincount(lane, minlength=len(names))
    counts = {
        outcome: np.bincount(lane[columns["outcome"] == outcome], minlength=len(names))
        for outcome in _unused_outcomes(columns)
    }
    n_labels = np.bincount(
        lane, np.where(columns["outcome"] == DONE, columns["n_labels"], 0), len(names)
    )
    nodes = dict(zip(columns["worker"].tolist(), columns["node"].tolist(), strict=True))
    available = np.zeros(len(names))
    for number, span in spans.items():
        available[np.unique(lane[columns["attempt_of_run"] == number])] += span
    return [
        {
            "worker": str(names[i]),
            "node": nodes[str(names[i])],
            "batches": int(batches[i]),
            "n_labels": int(n_labels[i]),
            "busy": float(busy[i]),
            "share": float(busy[i] / available[i]) if available[i] else 0.0,
            **{outcome: int(count[i]) for outcome, count in counts.items()},
        }
        for i in sorted(range(len(names)), key=lambda i: _natural_key(str(names[i])))
    ]


def _merge_batches(columns: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    """Return batches in order of time; merge neighbours if there are more than `limit`."""
    rows, starts = _entry_starts(columns, limit)
    if not len(starts):
        return []
    sums = {name: np.add.reduceat(rows[name], starts) for name in SUMMED}
    ended = np.maximum.reduceat(rows["started"] + rows["seconds"], starts)
    attempt, batches = (
        np.maximum.reduceat(rows["attempt"], starts),
        np.diff(np.append(starts, len(rows["attempt"]))),
    )
    # The longest ones, in case there are more workers than entries.
    longest = np.argsort(-sums["seconds"], kind="stable")[:limit]
    out = [
        {
            "attempt_of_run": int(rows["attempt_of_run"][starts[i]]),
            "worker": str(rows["worker"][starts[i]]),
            "outcome": str(rows["outcome"][starts[i]]),
            "task": int(rows["task"][starts[i]]),
            "attempt": int(attempt[i]),
            "batches": int(batches[i]),
            "n_labels": int(sums["n_labels"][i]),
            "certified": int(sums["certified"][i]),
            "cost": float(sums["cost"][i]),
            "started": float(rows["started"][starts[i]]),
            "ended": float(ended[i]),
            "seconds": float(sums["seconds"][i]),
        }
        for i in longest
    ]
    return sorted(
        out, key=lambda entry: (entry["attempt_of_run"], entry["started"], entry["worker"])
    )


def _entry_starts(columns: dict[str, Any], limit: int) -> tuple[dict[str, Any], Any]:
    """Return the sorted rows, and the positions where entries start.

    At most `step` neighbours make one entry; `step` is the smallest power of 2 that fits.
    Neighbours are consecutive batches of one worker with one outcome and no long pause. If that
    gives too many entries, all batches of a worker with one outcome count as neighbours.
    """
    worker, outcome = (
        _combined_codes(columns, "attempt_of_run", "worker"),
        _combined_codes(columns, "outcome"),
    )
    ends = columns["started"] + columns["seconds"]
    pause = MAX_PAUSE_SHARE * float(ends.max() - columns["started"].min()) if len(ends) else 0.0
    for by in ((columns["started"], worker), (columns["started"], outcome, worker)):
        order = np.lexsort(by)
        paused = columns["started"][order][1:] - ends[order][:-1] > pause
        breaks = (
            (np.diff(worker[order]) != 0)
            | (np.diff(outcome[order]) != 0)
            | (paused if len(by) == 2 else False)
        )
        starts = np.flatnonzero(np.append(len(order) > 0, breaks))
        if 2 * len(starts) <= limit:
            break
    sizes = np.diff(np.append(starts, len(order)))
    step = 1
    while (-(-sizes // step)).sum() > limit and step < sizes.max():
        step *= 2
    offset = np.arange(len(order)) - np.repeat(starts, sizes)
    return {name: values[order] for name, values in columns.items()}, np.flatnonzero(
        offset % step == 0
    )


def _combined_codes(columns: dict[str, Any], *names: str) -> Any:
    """Return (n,) int64: one number per combination of values."""
    out = np.zeros(len(columns["started"]), np.int64)
    for name in names:
        values, codes = np.unique(columns[name].astype(str), return_inverse=True)
        out = out * (len(values) + 1) + codes
    return out


def _unused_outcomes(columns: dict[str, Any]) -> list[str]:
    """Return the outcomes of batches whose result was not used."""
    return sorted({"duplicate", "lost", "stopped", *map(str, columns["outcome"])} - {DONE})


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders thread-2 before thread-10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
