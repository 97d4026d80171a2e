"""Jobs, their timeline and their classes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from xcray.service.schemas.base import MOST_SECONDS, Name, Strict, View

Timeout = Annotated[
    float | None,
    Field(
        gt=0,
        le=MOST_SECONDS,
        description="Running time allowed, over all attempts; then it FAILED, reason TIMEOUT. None: any.",
    ),
]
Expires = Annotated[
    float | None,
    Field(
        gt=0,
        le=MOST_SECONDS,
        description="Seconds from now by which it must have ended; else FAILED, reason EXPIRED. None: any.",
    ),
]
Attempts = Annotated[
    int | None,
    Field(
        ge=1,
        le=100,
        description="How often its runner may vanish before it FAILED. None: what the service allows.",
    ),
]


class JobRequest(Strict):
    """A training to queue. `params` are the solver's; what they may be is checked before the job is accepted."""

    dataset: str = Field(
        min_length=1,
        max_length=64,
        description="Id or name of a data set; a name means its newest READY one.",
    )
    model: Name = Field(description="The name under which the model is published.")
    name: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="A readable name; the model's when left out.",
    )
    solver: str = Field("ppdsparse", max_length=64)
    params: dict[str, Any] = Field(default_factory=dict)
    pool: Literal["serial", "threads", "ray"] | None = Field(
        None, description="Where classes are solved; else the server chooses."
    )
    workers: int = Field(0, ge=0, le=100_000, description="Workers of the pool; 0 takes all cores.")
    max_seconds: float | None = Field(
        None,
        gt=0,
        le=MOST_SECONDS,
        description="Begin no label after so long, the most frequent first; the model is published as partial. Solvers that go in "
        "epochs (dsmlr, lbfgs, lc) publish the whole model as it was after the last one. None: train to the end.",
    )
    memory_limit: int | None = Field(
        None,
        ge=1,
        le=2**60,
        description="Bytes the training may take: what is foreseen to need more fails before it starts.",
    )
    calibrate: bool = Field(
        False,
        description="Fit probabilities too, on the held-out part: half fits, the other half measures.",
    )
    ks: list[Annotated[int, Field(ge=1, le=100)]] = Field(
        [1, 3, 5], min_length=1, max_length=10, description="k of P@k."
    )
    priority: int = Field(
        0, ge=-100, le=100, description="Higher runs first; equal ones in order of submission."
    )
    timeout_seconds: Timeout = None
    expires_seconds: Expires = None
    max_attempts: Attempts = None


class JobView(View):
    """A job. Times are UTC. `result` is there when it SUCCEEDED; `reason` and `message` say why it FAILED.

    While a training that goes in epochs runs, `progress.figures` has its newest epoch, objective and held_out loss.

    When time was up (max_seconds), `result.partial` has the numbers of labels done and missing, and the share of positives done.
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
    expires: str | None = Field(description="When it must have ended (UTC).")
    max_attempts: int | None


class StopRequest(Strict):
    """Which jobs to stop: those that wait or run and fit all that is named."""

    status: Literal["PENDING", "RUNNING"] | None = None
    kind: Literal["train", "predict"] | None = None
    name: str | None = Field(None, min_length=1, max_length=128)
    model: str | None = Field(None, min_length=1, max_length=128)
    dataset: str | None = Field(
        None, min_length=1, max_length=64, description="The id of a data set."
    )


class StopView(View):
    """How many jobs were asked to stop; `more`: ask again, there may be more of them."""

    stopped: int
    more: bool


class JobPage(View):
    """Newest first."""

    jobs: list[JobView]
    next_page_token: str | None


class AttemptSpan(View):
    """One start of a training: its batches ran from `first` (by its own clock) for `span` seconds; end to end it `begins` there."""

    attempt_of_run: int
    begins: float
    first: float
    span: float
    workers: int


class WorkerSpan(View):
    """A worker: seconds it was `busy`, their `share` of the attempts it worked in, and how many of its batches were of no use; the
    `node` it was on, in the end, by address and identity; empty when it was no process of its own."""

    worker: str
    node: str
    batches: int
    classes: int
    busy: float
    share: float
    lost: int
    duplicate: int
    stopped: int


class BatchSpan(View):
    """A batch, or `batches` neighbours of one worker: outcome done, duplicate, lost or stopped; it worked `seconds` from `started`
    to `ended`; `cost` is what was foreseen."""

    attempt_of_run: int
    worker: str
    outcome: str
    task: int
    attempt: int
    batches: int
    classes: int
    cost: float
    started: float
    ended: float
    seconds: float


class TimelineView(View):
    """Which worker did what when. With more batches than were asked for, neighbours are one entry (`thinned`); sums stay exact."""

    job: str
    attempts: list[AttemptSpan]
    workers: list[WorkerSpan]
    workers_total: int
    batches: list[BatchSpan]
    batches_total: int
    thinned: bool
    classes: int
    makespan: float
    core_seconds: float
    busy_share: float


class ClassPage(View):
    """The training's report by class, in order of labels; columns as in the model's classes.arrow, and the label's name."""

    classes: list[dict[str, Any]]
    next_page_token: str | None
