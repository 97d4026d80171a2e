"""Replies of the REST API about data sets, solvers and jobs.

The service makes these dictionaries, and the client returns them. The OpenAPI description and the
checks of the service are made from them. Times are UTC in ISO 8601.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

# pydantic reads the TypedDict of the standard library from Python 3.12 on
from typing_extensions import TypedDict


class Ready(TypedDict):
    """Readiness: reason codes if not ready, and codes of degraded but not essential functions."""

    ready: bool
    reasons: list[str]
    degraded: list[str]


class DatasetView(TypedDict):
    """A data set.

    `stats` has its sizes when READY, and `warnings` (code, message) about data that look wrong.
    While it waits for another build, `stats.waiting` is true.
    When FAILED, it has the reason in `problem` and the first 20 invalid lines in `errors`.
    """

    id: str
    name: str
    status: Literal["BUILDING", "READY", "FAILED"]
    created: str
    stats: dict[str, Any]


class ParameterView(TypedDict):
    """A parameter of a solver, or an option of a training.

    type: int, float, str or bool. The range is low <= value <= high, value > above, or one of
    `choices`; low and high of a text are lengths. unit: bytes or seconds. set_by_server: whether
    the service has a default of its own, which is not listed.
    """

    name: str
    type: str
    default: bool | int | float | str | None
    help: str
    low: NotRequired[float]
    high: NotRequired[float]
    above: NotRequired[float]
    choices: NotRequired[list[str]]
    unit: NotRequired[str]
    set_by_server: NotRequired[bool]


class SolverView(TypedDict):
    """A solver with its parameters.

    family: how the work is distributed: independent or group. baseline: for
    comparisons with a paper; other solvers are better for the same problem.
    """

    name: str
    help: str
    family: str
    baseline: bool
    parameters: list[ParameterView]


class JobView(TypedDict):
    """A job. Times are UTC.

    `expires` is the time by which it must have finished. `ray_job` is the page of the
    latest attempt in Ray's dashboard. `result` is set when the job SUCCEEDED; `reason`
    and `message` explain why it FAILED.

    While a training that runs in epochs is running, `progress.newest` has its latest epoch,
    objective and held_out loss.

    If the time limit max_seconds was reached, `result.partial` has the numbers of finished and
    missing labels and the share of positives that are covered. `result.data_warnings` of a training
    and `result.warnings` of a batch prediction are lists of `code` and `message`: what looks wrong
    in the data.
    """

    id: str
    name: str
    spec: dict[str, Any]
    status: Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
    phase: str
    reason: str | None
    message: str | None
    attempt: int
    priority: int
    progress: dict[str, Any]
    result: dict[str, Any] | None
    stop_requested: bool
    created: str
    started: str | None
    finished: str | None
    kind: Literal["train", "predict"]
    timeout_seconds: float | None
    expires: str | None
    max_attempts: int | None
    ray_job: NotRequired[str | None]


class EstimateView(TypedDict):
    """Estimated needs of a training, on the machine that answers.

    `problem` says why it does not fit (fits: false). `memory_bytes` is the anonymous memory of all
    `workers` (of `worker_bytes` each) and the driver; `available_bytes` is left by each limit.
    `mapped_bytes` are data files that the system can drop. `core_seconds` and `seconds` are of
    solving with the given parameters; `selection_core_seconds` is the most that `auto` takes
    before. `probed_labels` were solved for the estimate; 0: it is based on sizes alone.
    """

    fits: bool
    problem: str | None
    workers: int
    worker_bytes: int
    memory_bytes: int
    available_bytes: dict[str, int]
    mapped_bytes: int
    disk_bytes: int
    disk_free_bytes: int
    weights: int
    core_seconds: float
    seconds: float
    selection_core_seconds: float | None
    probed_labels: int


class AttemptSpan(TypedDict):
    """One attempt of a training.

    Its batches ran from `first` (on its own clock) for `span` seconds; on the common time line it
    starts at `begins`.
    """

    attempt_of_run: int
    begins: float
    first: float
    span: float
    workers: int


class WorkerSpan(TypedDict):
    """A worker: `busy` seconds, and their `share` of the attempts in which it worked.

    lost, duplicate, stopped: batches whose results were not used. node: address and identity of its
    last node; empty if it was not a separate process.
    """

    worker: str
    node: str
    batches: int
    n_labels: int
    busy: float
    share: float
    lost: int
    duplicate: int
    stopped: int


class BatchSpan(TypedDict):
    """A batch, or `batches` adjacent batches of one worker.

    outcome: done, duplicate, lost or stopped. It ran from `started` to `ended` and worked for
    `seconds`; `cost` is the predicted duration. `certified` of its labels have a certificate.
    """

    attempt_of_run: int
    worker: str
    outcome: str
    task: int
    attempt: int
    batches: int
    n_labels: int
    certified: int
    cost: float
    started: float
    ended: float
    seconds: float


class TimelineView(TypedDict):
    """Timeline of the workers.

    If there are more batches than requested, adjacent ones are merged (`thinned`); the sums stay
    exact.
    """

    job: str
    attempts: list[AttemptSpan]
    workers: list[WorkerSpan]
    workers_total: int
    batches: list[BatchSpan]
    batches_total: int
    thinned: bool
    n_labels: int
    makespan: float
    core_seconds: float
    busy_share: float


class OutputFile(TypedDict):
    """One output file, for the input rows [first_row, first_row + rows_read).

    `rows` of them are in the file; the others were skipped.
    """

    file: str
    first_row: int
    rows_read: int
    rows: int
    skipped: int
    bytes: int
    sha256: str


class OutputView(TypedDict):
    """Output of a batch prediction: files in input order, their columns, and skipped rows."""

    job: str
    rows: int
    answered: int
    skipped: int
    skipped_reasons: list[dict[str, Any]]
    columns: dict[str, str]
    parts: list[OutputFile]


class EventInfo(TypedDict):
    """An event of a job, of kind status, phase, progress, stop, or epoch (iterative trainings)."""

    seq: int
    time: str
    kind: str
    data: dict[str, Any]
