"""Jobs, their timeline, and their training report by label."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from xcray.api.options import JobOptions, TrainingOptions
from xcray.service.schemas.base import Name, Strict, View
from xcray.service.schemas.declared import with_parameters
from xcray.solvers import SOLVERS


def _list_solvers(schema: dict[str, Any]) -> None:
    """Add the names of the solvers to a schema, when the description is made."""
    schema["enum"] = list(SOLVERS)


class TrainingRequest(Strict):
    """A training to queue.

    `params` are the solver's parameters; they are validated before the job is accepted.
    """

    dataset: str = Field(
        min_length=1,
        max_length=64,
        description="Id or name of a data set; a name selects the newest READY data set of that "
        "name.",
    )
    model: Name = Field(description="Name under which the model is published.")
    solver: str = Field("ppdsparse", max_length=64, json_schema_extra=_list_solvers)
    params: dict[str, Any] = Field(default_factory=dict)


JobRequest = with_parameters("JobRequest", TrainingRequest, TrainingOptions, JobOptions)


class JobView(View):
    """A job. Times are UTC.

    `result` is set when the job SUCCEEDED; `reason` and `message` explain why it FAILED.

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
    expires: str | None = Field(description="Time by which the job must have finished (UTC).")
    max_attempts: int | None
    ray_job: str | None = Field(
        None, description="Page of the latest attempt in Ray's dashboard; not in lists."
    )


class EstimateView(View):
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


class StopRequest(Strict):
    """Which jobs to stop: waiting and running jobs that match all given filters."""

    status: Literal["PENDING", "RUNNING"] | None = None
    kind: Literal["train", "predict"] | None = None
    name: str | None = Field(None, min_length=1, max_length=128)
    model: str | None = Field(None, min_length=1, max_length=128)
    dataset: str | None = Field(
        None, min_length=1, max_length=64, description="The id of the job's data set."
    )


class StopView(View):
    """Number of jobs that were requested to stop; `more`: repeat the request for further jobs."""

    stopped: int
    more: bool


class JobPage(View):
    """A page of jobs, newest first."""

    jobs: list[JobView]
    next_page_token: str | None


class AttemptSpan(View):
    """One attempt of a training.

    Its batches ran from `first` (on its own clock) for `span` seconds; on the common time line it
    starts at `begins`.
    """

    attempt_of_run: int
    begins: float
    first: float
    span: float
    workers: int


class WorkerSpan(View):
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


class BatchSpan(View):
    """A batch, or `batches` adjacent batches of one worker.

    outcome: done, duplicate, lost or stopped. It ran from `started` to `ended` and worked for
    `seconds`; `cost` is the predicted duration.
    """

    attempt_of_run: int
    worker: str
    outcome: str
    task: int
    attempt: int
    batches: int
    n_labels: int
    cost: float
    started: float
    ended: float
    seconds: float


class TimelineView(View):
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


class LabelTablePage(View):
    """A page of the training report by label, in order of labels.

    The columns are those of the model's label_table.arrow, and the name of the label.
    """

    labels: list[dict[str, Any]]
    next_page_token: str | None
