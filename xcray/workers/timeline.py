"""Timeline of a run: every batch of every worker, written as it ends, so that it survives a kill.

There is one Arrow IPC stream per attempt, `timeline-0001.arrows` and so on, in the run directory,
without a size limit. Rows are flushed every second. A truncated stream is read up to the cut. Work
that a training repeats from a checkpoint is listed in DISCARDED_FILE, and read as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xcray.errors import NotFound
from xcray.schedule.events import Task
from xcray.storage.atomic import read_json, write_json

DONE: Final = "done"
DUPLICATE: Final = "duplicate"  # finished, but another run was faster
LOST: Final = "lost"  # lost with its worker, or repeated from a checkpoint before it
STOPPED: Final = "stopped"  # another run was faster, or the run was stopped
OUTCOMES: Final = (DONE, DUPLICATE, LOST, STOPPED)
FLUSH_SECONDS = 1.0  # between two writes
# JSON: [attempt, first row, end row or null] of each range of rows whose work was repeated
DISCARDED_FILE: Final = "timeline-discarded.json"
SCHEMA = pa.schema(
    {
        # number of this start of the run, from 1
        "attempt_of_run": pa.int32(),
        "worker": pa.string(),
        # number of the batch within the attempt
        "task": pa.int64(),
        # number of the run of the batch, from 1
        "attempt": pa.int32(),
        "n_labels": pa.int32(),
        # labels with a certificate; 0 if the solver gives none
        "certified": pa.int32(),
        # predicted seconds
        "cost": pa.float64(),
        # seconds since the attempt's pool was opened
        "started": pa.float64(),
        "seconds": pa.float64(),
        # processor time of the worker's thread; 0 for batches that did not end
        "cpu_seconds": pa.float64(),
        "outcome": pa.string(),
        "labels": pa.list_(pa.int32()),
        # address and id of the worker's node; empty in one process
        "node": pa.string(),
    }
)


class Span(NamedTuple):
    """A worker was busy with a task for `seconds` from `started` (since the pool was opened).

    cpu_seconds: processor time of its thread meanwhile; 0 if the task did not end. certified: its
    labels with a certificate.
    """

    worker: str
    task: Task
    started: float
    seconds: float
    outcome: str
    node: str = ""
    cpu_seconds: float = 0.0
    certified: int = 0


class TimelinePosition(NamedTuple):
    """A moment of a run: before row `row` of the attempt with number `attempt`."""

    attempt: int
    row: int


START: Final = TimelinePosition(1, 0)  # of every run


class Timeline:
    """The record of one attempt; a context manager that writes pending rows on exit.

    attempt: number of this start of the run, from 1: one more than there are records in the
    directory. nodes: returns the node of each worker.
    """

    def __init__(self, directory: Path, nodes: Callable[[], Mapping[str, str]] = dict) -> None:
        self._directory = directory
        self._nodes = nodes
        self._n_rows = 0  # recorded in this attempt
        self.attempt = 1 + max(
            (int(path.stem.split("-")[1]) for path in _streams(directory)), default=0
        )
        self._pending: list[Span] = []
        self._flushed = 0.0
        self._sink = pa.OSFile(str(directory / f"timeline-{self.attempt:04d}.arrows"), "wb")
        self._writer = pa.ipc.new_stream(self._sink, SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
        self._writer.close()
        self._sink.close()

    def add(self, span: Span) -> None:
        """Record what a worker did; it is written within FLUSH_SECONDS if more is recorded."""
        self._n_rows += 1
        self._pending.append(span._replace(node=self._nodes().get(span.worker, "")))
        if span.started + span.seconds > self._flushed + FLUSH_SECONDS:
            self._flushed = span.started + span.seconds
            self.flush()

    def mark(self) -> TimelinePosition:
        """Write pending rows, and return the position after them."""
        self.flush()
        return TimelinePosition(self.attempt, self._n_rows)

    def discard_since(self, position: TimelinePosition) -> None:
        """Count what was recorded since `position`, in all attempts, as lost."""
        attempts = range(position.attempt, self.attempt + 1)
        starts = [position.row, *[0] * (len(attempts) - 1)]
        ends = [*[None] * (len(attempts) - 1), self._n_rows]
        added = [list(each) for each in zip(attempts, starts, ends, strict=True)]
        before = _discarded(self._directory)
        new = [each for each in added if each[1] != each[2] and each not in before]
        if new:
            write_json(self._directory / DISCARDED_FILE, before + new)

    def flush(self) -> None:
        """Write pending rows."""
        if self._pending:
            self._writer.write_batch(
                pa.RecordBatch.from_pylist([self._row(span) for span in self._pending], SCHEMA)
            )
            self._pending.clear()

    def _row(self, span: Span) -> dict[str, Any]:
        """Return a span as a row of the table."""
        task = span.task
        about = {
            "task": task.id,
            "attempt": task.attempt,
            "n_labels": len(task.labels),
            "certified": span.certified,
            "cost": task.cost,
            "labels": task.labels,
        }
        when = {"started": span.started, "seconds": span.seconds, "outcome": span.outcome}
        when["cpu_seconds"] = span.cpu_seconds
        return {
            "attempt_of_run": self.attempt,
            "worker": span.worker,
            "node": span.node,
            **about,
            **when,
        }


def read_streams(directory: Path) -> pa.Table:
    """Return all attempts recorded in a run directory, in order, with the columns of SCHEMA.

    The table has no rows if nothing was recorded.
    """
    discarded = _discarded(directory)
    tables = [_mark_discarded(_read(path), discarded) for path in _streams(directory)]
    return pa.concat_tables([SCHEMA.empty_table(), *tables])


def balance(table: pa.Table, workers: int) -> dict[str, Any]:
    """Return how well the work of a run (`read_streams`) was spread over `workers`, as JSON.

    makespan: seconds from the start of the first batch to the end of the last one, summed over
    attempts. busy_share: of each worker, relative to the makespan. core_seconds: processor
    time of all batches that counted. makespan_over_ideal: makespan times workers over the seconds
    of these batches, 1 if every worker did only work that counted. work_lost_seconds: of batches
    that were lost with their workers, stopped, done twice, or repeated from a checkpoint.
    """
    if not table.num_rows:
        none = {"batches": 0, "busy_share": {}, "makespan": 0.0, "makespan_over_ideal": 1.0}
        return {**none, "core_seconds": 0.0, "work_lost_seconds": 0.0}
    attempt, started, seconds = (
        table.column(name).to_numpy() for name in ("attempt_of_run", "started", "seconds")
    )
    done = pc.equal(table.column("outcome"), DONE).to_numpy()
    ends = started + seconds
    makespan = sum(
        float(ends[own].max() - started[own].min())
        for own in (attempt == n for n in np.unique(attempt))
    )
    useful, cpu = float(seconds[done].sum()), table.column("cpu_seconds").to_numpy()
    busy = (
        pa.table([table.column("worker"), table.column("seconds")], ["worker", "seconds"])
        .group_by("worker")
        .aggregate([("seconds", "sum")])
    )
    shares = {
        row["worker"]: round(row["seconds_sum"] / max(makespan, 1e-9), 4)
        for row in busy.to_pylist()
    }
    return {
        "batches": int(done.sum()),
        "busy_share": dict(sorted(shares.items())),
        "makespan": round(makespan, 3),
        "makespan_over_ideal": round(makespan * workers / max(useful, 1e-9), 4),
        "core_seconds": round(float(cpu[done].sum()), 3),
        "work_lost_seconds": round(float(seconds[~done].sum()), 3),
    }


def _streams(directory: Path) -> list[Path]:
    """Return the records in a run directory, in order."""
    return sorted(directory.glob("timeline-*.arrows"))


def _discarded(directory: Path) -> list[list[int | None]]:
    """Return the ranges of rows whose work was repeated, see DISCARDED_FILE."""
    try:
        return list(read_json(directory / DISCARDED_FILE))
    except NotFound:
        return []


def _mark_discarded(table: pa.Table, discarded: Sequence[Sequence[int | None]]) -> pa.Table:
    """Return the rows of an attempt; those of ranges in `discarded` that were done are lost."""
    outcomes = table.column("outcome").to_pylist()
    for attempt, start, end in discarded:
        if outcomes and table.column("attempt_of_run")[0].as_py() == attempt:
            own = outcomes[start:end]
            outcomes[start:end] = [LOST if outcome == DONE else outcome for outcome in own]
    index = SCHEMA.get_field_index("outcome")
    return table.set_column(index, SCHEMA.field(index), pa.array(outcomes, pa.string()))


def _read(path: Path) -> pa.Table:
    """Return the rows of a stream up to its end, or to where a kill cut it off."""
    with pa.OSFile(str(path), "rb") as source:
        batches = list(_complete_batches(source))
    if not batches:
        return SCHEMA.empty_table()
    table = pa.Table.from_batches(batches)
    return table.select(SCHEMA.names).cast(SCHEMA)


def _complete_batches(source: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a stream that were written completely."""
    try:
        yield from pa.ipc.open_stream(source)
    except (pa.ArrowInvalid, OSError):
        return
