"""The timeline of a training: which worker solved which batch when. One row a batch; read, added up, thinned to a bounded document.

attempt_of_run int32   which start of the run, from 1        classes int32    how many
worker         string  who had the batch                     cost    float64  seconds it was expected to take
task           int64   which batch, within the attempt       started float64  seconds since the attempt's start
attempt        int32   which try of the batch, from 1        seconds float64  how long it took
outcome        string  done; or duplicate (another was faster), lost (with its worker), stopped
node           string  address and identity of the worker's node; empty in one process

A run keeps it as streams, with one more column, `labels`, the classes of a batch (see `xcray.workers.timeline`): the class
table of the model is made from that.
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
from xcray.errors import NotFound
from xcray.model.directory import TIMELINE
from xcray.storage.arrow import read_table
from xcray.workers.timeline import DONE, read_streams

__all__ = ["COLUMNS", "TIMELINE", "class_costs", "document", "note_of", "plain", "read_timeline"]

COLUMNS: Final = {
    "attempt_of_run": pa.int32(),
    "worker": pa.string(),
    "task": pa.int64(),
    "attempt": pa.int32(),
    "classes": pa.int32(),
    "cost": pa.float64(),
    "started": pa.float64(),
    "seconds": pa.float64(),
    "outcome": pa.string(),
    "node": pa.string(),
}
FORMER: Final = {
    "attempt_of_run": 1,
    "outcome": DONE,
    "node": "",
}  # what older timelines did not say
LANES: Final = 4096  # workers of a document, at most
PAUSE: Final = 0.005  # of the whole time: batches further apart than this are not drawn as one


def read_timeline(folder: Path) -> pa.Table:
    """The timeline of a model directory, or of a run directory so far; columns as above. Raises NotFound, Corrupt."""
    table = read_table(folder / TIMELINE) if (folder / TIMELINE).is_file() else read_streams(folder)
    if not table.num_rows:
        raise NotFound(
            f"there is no timeline in {folder.name}: a training writes it as its batches end"
        )
    return plain(table)


def plain(table: pa.Table) -> pa.Table:
    """The columns of a timeline in their order and types; what older ones lack is filled in, other columns are left out."""
    columns = {}
    for name, kind in COLUMNS.items():
        given = name in table.column_names
        columns[name] = (
            table.column(name).cast(kind)
            if given
            else pa.repeat(pa.scalar(FORMER[name], kind), table.num_rows)
        )
    return pa.table(columns)


def document(table: pa.Table, limit: int = 5000) -> dict[str, Any]:
    """A timeline as JSON of bounded size.

    "attempts": of the run, each with "begins" (where it lies on one axis for all) and "span", in seconds; "workers": who, with
    "busy" seconds, "share" of the attempts' spans they worked in, "batches", "classes", and how many were "lost", "duplicate" or
    "stopped"; "batches": at most `limit` entries. When there are more (thinned is true), neighbours of one worker and
    outcome are one entry: "batches" of them, from "started" to "ended", working "seconds" in all. Sums stay exact.
    "core_seconds" are those of batches that counted; "busy_share" is of all work, useful or not.
    """
    table = plain(table)
    columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in COLUMNS}
    attempts = _attempts(columns)
    workers = _workers(columns, {each["attempt_of_run"]: each["span"] for each in attempts})
    entries = _entries(columns, limit)
    done = columns["outcome"] == DONE
    available = sum(each["span"] * each["workers"] for each in attempts)
    return {
        "attempts": attempts,
        "workers": workers[:LANES],
        "workers_total": len(workers),
        "batches": entries,
        "batches_total": table.num_rows,
        "classes": int(columns["classes"][done].sum()),
        "thinned": len(entries) < table.num_rows,
        "makespan": sum(each["span"] for each in attempts),
        "core_seconds": float(columns["seconds"][done].sum()),
        "busy_share": float(columns["seconds"].sum()) / available if available else 0.0,
    }


def note_of(found: Mapping[str, Any]) -> str:
    """A line of figures for people, of a timeline's `document`."""
    attempts = f", {len(found['attempts'])} attempts" if len(found["attempts"]) > 1 else ""
    wasted = sum(
        each.get(name, 0) for each in found["workers"] for name in ("lost", "duplicate", "stopped")
    )
    useless = f", {wasted:,} without use" if wasted else ""
    classes = (
        f", {found['classes']:,} classes" if found["classes"] else ""
    )  # visits of blocks that go round finish none
    return (
        f"{found['batches_total']:,} batches{useless}{classes}{attempts}; {found['workers_total']:,} workers, "
        f"{found['makespan']:,.1f} s, busy {100 * found['busy_share']:.1f} %"
    )


def class_costs(
    table: pa.Table | None, classes: Any, work: Any
) -> tuple[Float64, list[str | None]]:
    """Seconds (n,) float64 and worker of each of `classes` (n,); NaN and None where the timeline does not say.

    table: a run's timeline, with `labels`; a class that was done twice has the later facts. A batch's seconds are shared out
    among its classes by their `work` (n,), equally when it is 0.
    """
    n, work = len(classes), np.asarray(work, np.float64)
    seconds, owner = np.full(n, np.nan), np.full(n, -1)
    if table is None or "labels" not in table.column_names:
        return seconds, [None] * n
    done = table.filter(pc.equal(plain(table).column("outcome"), DONE))
    lists = done.column("labels").combine_chunks()
    batch, place = (
        np.repeat(np.arange(done.num_rows), pc.list_value_length(lists).to_numpy()),
        _places(classes, lists.flatten()),
    )
    batch, place = batch[place >= 0], place[place >= 0]
    sums, sizes = (
        np.bincount(batch, work[place], done.num_rows),
        np.bincount(batch, minlength=done.num_rows),
    )
    share = np.divide(work[place], sums[batch], out=1.0 / sizes[batch], where=sums[batch] > 0.0)
    seconds[place] = done.column("seconds").to_numpy()[batch] * share
    owner[place] = batch
    names = done.column("worker").to_pylist()
    return seconds, [names[each] if each >= 0 else None for each in owner]


def _places(classes: Any, labels: pa.Array) -> Any:
    """Where each label is in `classes`; -1 for labels that are not there."""
    wanted = labels.to_numpy(zero_copy_only=False).astype(np.int64)
    place = np.full(1 + max(int(np.max(classes, initial=-1)), int(np.max(wanted, initial=-1))), -1)
    place[np.asarray(classes)] = np.arange(len(classes))
    return place[wanted]


def _attempts(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Each attempt: how long from its first batch to its last, where it begins when they are laid end to end, how many worked."""
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


def _workers(columns: dict[str, Any], spans: dict[int, float]) -> list[dict[str, Any]]:
    """Each worker, in natural order of names."""
    names, lane = np.unique(columns["worker"].astype(str), return_inverse=True)
    busy = np.bincount(lane, columns["seconds"], len(names))
    batches = np.bincount(lane, minlength=len(names))
    counts = {
        outcome: np.bincount(lane[columns["outcome"] == outcome], minlength=len(names))
        for outcome in _other(columns)
    }
    classes = np.bincount(
        lane, np.where(columns["outcome"] == DONE, columns["classes"], 0), len(names)
    )
    nodes = dict(zip(columns["worker"].tolist(), columns["node"].tolist(), strict=True))
    there = np.zeros(len(names))
    for number, span in spans.items():
        there[np.unique(lane[columns["attempt_of_run"] == number])] += span
    return [
        {
            "worker": str(names[i]),
            "node": nodes[str(names[i])],
            "batches": int(batches[i]),
            "classes": int(classes[i]),
            "busy": float(busy[i]),
            "share": float(busy[i] / there[i]) if there[i] else 0.0,
            **{outcome: int(count[i]) for outcome, count in counts.items()},
        }
        for i in sorted(range(len(names)), key=lambda i: _natural(str(names[i])))
    ]


def _entries(columns: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    """Batches in order of time; neighbours of one worker and outcome as one entry when there are too many."""
    rows, heads = _heads(columns, limit)
    if not len(heads):
        return []
    sums = {name: np.add.reduceat(rows[name], heads) for name in ("classes", "cost", "seconds")}
    ended = np.maximum.reduceat(rows["started"] + rows["seconds"], heads)
    attempt, batches = (
        np.maximum.reduceat(rows["attempt"], heads),
        np.diff(np.append(heads, len(rows["attempt"]))),
    )
    kept = np.argsort(-sums["seconds"], kind="stable")[
        :limit
    ]  # more lanes than entries: those that worked most
    out = [
        {
            "attempt_of_run": int(rows["attempt_of_run"][heads[i]]),
            "worker": str(rows["worker"][heads[i]]),
            "outcome": str(rows["outcome"][heads[i]]),
            "task": int(rows["task"][heads[i]]),
            "attempt": int(attempt[i]),
            "batches": int(batches[i]),
            "classes": int(sums["classes"][i]),
            "cost": float(sums["cost"][i]),
            "started": float(rows["started"][heads[i]]),
            "ended": float(ended[i]),
            "seconds": float(sums["seconds"][i]),
        }
        for i in kept
    ]
    return sorted(
        out, key=lambda entry: (entry["attempt_of_run"], entry["started"], entry["worker"])
    )


def _heads(columns: dict[str, Any], limit: int) -> tuple[dict[str, Any], Any]:
    """The rows sorted, and where entries begin in them, when at most `step` neighbours make one: the smallest power of 2 that fits.

    Neighbours follow each other at one worker, with one outcome and no long pause; when that alone makes too many entries,
    all of a worker's batches of one outcome count as neighbours.
    """
    who, outcome = _codes(columns, "attempt_of_run", "worker"), _codes(columns, "outcome")
    ends = columns["started"] + columns["seconds"]
    pause = PAUSE * float(ends.max() - columns["started"].min()) if len(ends) else 0.0
    for by in ((columns["started"], who), (columns["started"], outcome, who)):
        order = np.lexsort(by)
        waited = columns["started"][order][1:] - ends[order][:-1] > pause
        breaks = (
            (np.diff(who[order]) != 0)
            | (np.diff(outcome[order]) != 0)
            | (waited if len(by) == 2 else False)
        )
        starts = np.flatnonzero(np.append(len(order) > 0, breaks))
        if 2 * len(starts) <= limit:
            break
    sizes = np.diff(np.append(starts, len(order)))
    step = 1
    while (-(-sizes // step)).sum() > limit and step < sizes.max():
        step *= 2
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    return {name: values[order] for name, values in columns.items()}, np.flatnonzero(
        place % step == 0
    )


def _codes(columns: dict[str, Any], *names: str) -> Any:
    """(n,) int64: one number for each combination of values."""
    out = np.zeros(len(columns["started"]), np.int64)
    for name in names:
        values, codes = np.unique(columns[name].astype(str), return_inverse=True)
        out = out * (len(values) + 1) + codes
    return out


def _other(columns: dict[str, Any]) -> list[str]:
    """The outcomes that are no use."""
    return sorted({"duplicate", "lost", "stopped", *map(str, columns["outcome"])} - {DONE})


def _natural(name: str) -> list[tuple[int, str]]:
    """thread-2 before thread-10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
