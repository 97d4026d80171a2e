"""What requests may say and replies do say. Requests are strict: no unknown fields, no strings for numbers, no NaN."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from xcray.files import NAME, check_name

INDEX_LIMIT = 2**31 - 2
FLOAT32_MAX = 3.4028234663852886e38
TEXT_LIMIT = 1_000_000  # characters
MOST_SECONDS = 366 * 86400.0
MOST_MILLISECONDS = 600_000.0
LABEL_LIMIT = 10_000  # characters of a label's name
LABELS_LIMIT = 100_000  # labels of an allow or deny list

Name = Annotated[str, AfterValidator(check_name), Field(json_schema_extra={"pattern": f"^{NAME.pattern}$"}, examples=["pydocs"])]
Index = Annotated[int, Field(ge=0, le=INDEX_LIMIT)]
Value = Annotated[float, Field(ge=-FLOAT32_MAX, le=FLOAT32_MAX, allow_inf_nan=False)]


# fail_fast: of a million wrong numbers the first is told; collecting all would take a minute and two gigabytes
Indices = Annotated[list[Index], Field(fail_fast=True)]
Values = Annotated[list[Value], Field(fail_fast=True)]
Labels = Annotated[
    list[Annotated[str, Field(max_length=LABEL_LIMIT)]], Field(min_length=1, max_length=LABELS_LIMIT, fail_fast=True)
]


class Strict(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Instance(Strict):
    """One thing to classify: `text`; or `indices` and `values` of a sparse row (any order, no index twice); or `values` alone,
    a dense row as long as the model has features."""

    text: str | None = Field(None, max_length=TEXT_LIMIT, examples=["read rows of a csv file into dictionaries"])
    indices: Indices | None = None
    values: Values | None = None


class PredictRequest(Strict):
    """Which instances, how many labels for each (clipped to the number of labels), among which labels, and what to tell of them."""

    instances: list[Instance] = Field(min_length=1, fail_fast=True)
    top_k: int = Field(5, ge=1)
    allow: Labels | None = Field(None, description="Answer only these: names of labels, and set:NAME for the labels of a set.")
    deny: Labels | None = Field(None, description="Never answer these, named in the same way.")
    deadline_ms: float | None = Field(
        None, gt=0, le=MOST_MILLISECONDS, description="Time to answer: then the best found so far; see `certificate`."
    )
    certificate: bool = Field(False, description="Tell for each instance whether the answer is proven, and what it took.")
    probabilities: bool = Field(False, description="Tell the probability of each label; the model must be calibrated, or softmax.")


class ExplainRequest(Strict):
    """One instance; the label to explain (by name; the best one when left out); how many features to show."""

    instance: Instance
    label: str | None = Field(None, max_length=LABEL_LIMIT)
    top: int = Field(10, ge=1, le=1000)


class JobRequest(Strict):
    """A training to queue. `params` are the solver's; what they may be is checked before the job is accepted."""

    dataset: str = Field(min_length=1, max_length=64, description="Id or name of a data set; a name means its newest READY one.")
    model: Name = Field(description="The name under which the model is published.")
    name: str | None = Field(None, min_length=1, max_length=128, description="A readable name; the model's when left out.")
    solver: str = Field("ppdsparse", max_length=64)
    params: dict[str, Any] = Field(default_factory=dict)
    pool: Literal["serial", "threads", "ray"] | None = Field(None, description="Where classes are solved; else the server chooses.")
    workers: int = Field(0, ge=0, le=100_000, description="Workers of the pool; 0 takes all cores.")
    max_seconds: float | None = Field(
        None,
        gt=0,
        le=MOST_SECONDS,
        description="Begin no label after so long, the most frequent first; the model is published as partial. Solvers that go in "
        "epochs (dsmlr, lbfgs, lc) publish the whole model as it was after the last one. None: train to the end.",
    )
    memory_limit: int | None = Field(
        None, ge=1, le=2**60, description="Bytes the training may take: what is foreseen to need more fails before it starts."
    )
    calibrate: bool = Field(False, description="Fit probabilities too, on the held-out part: half fits, the other half measures.")
    ks: list[Annotated[int, Field(ge=1, le=100)]] = Field([1, 3, 5], min_length=1, max_length=10, description="k of P@k.")
    priority: int = Field(0, ge=-100, le=100, description="Higher runs first; equal ones in order of submission.")


class DatasetRequest(Strict):
    """A data set that needs no body of its own: built in, generated, from uploads, or from a folder the operator allows."""

    name: Name
    format: Literal["svmlight", "xc", "jsonl", "csv", "tsv", "pydocs", "synthetic", "dataset"]
    options: dict[str, Any] = Field(default_factory=dict)
    uploads: dict[Literal["train", "test"], str] | None = Field(None, description="Ids of POST /v1/uploads.")
    path: str | None = Field(None, min_length=1, max_length=4096, description="A file (a folder: format=dataset) of the server.")


class AliasRequest(Strict):
    """Where an alias points from now on."""

    version: int = Field(ge=1, le=2**31)


class SetRequest(Strict):
    """The labels of a set from now on, by name; those that a version lacks are passed over by it."""

    labels: list[Annotated[str, Field(min_length=1, max_length=10_000)]] = Field(min_length=1, max_length=1_000_000, fail_fast=True)


class View(BaseModel):
    """A part of a reply."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class Problem(View):
    """An error (RFC 9457, application/problem+json)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    kind: str = Field(description="The class in xcray.errors.")
    request_id: str
    hint: str | None = None


class UploadView(View):
    """A body that arrived whole."""

    id: str
    bytes: int
    sha256: str


class DatasetView(View):
    """A data set. `stats` has its sizes when READY; when FAILED, `problem` says why and `errors` where (the first 20)."""

    id: str
    name: str
    status: Literal["BUILDING", "READY", "FAILED"]
    created: str
    stats: dict[str, Any]


class DatasetPage(View):
    """Newest first."""

    datasets: list[DatasetView]
    next_page_token: str | None


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
    """A worker: seconds it was `busy`, their `share` of the attempts it worked in, and how many of its batches were of no use."""

    worker: str
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


class VersionView(View):
    """One version of a model."""

    name: str
    version: int
    aliases: list[str]
    sha256: str
    created: str
    solver: str
    n_labels: int
    n_features: int
    nnz: int
    n_bytes: int
    measures: dict[str, Any]
    dataset_hash: str
    calibrated: bool = Field(description="Whether it tells probabilities: by curves, or as softmax.")


class ModelView(View):
    """A model: its versions, and where its aliases point."""

    name: str
    versions: list[int]
    aliases: dict[str, int]
    latest: VersionView


class ModelPage(View):
    """All models, by name."""

    models: list[ModelView]


class SetSummary(View):
    """A set of labels: how many, and when it was changed (UTC)."""

    name: str
    n_labels: int
    changed: str


class SetView(SetSummary):
    """A set with the names of its labels; `unknown` are those that a version lacks (the latest when none is named)."""

    labels: list[str]
    version: int
    unknown: list[str]


class SetPage(View):
    """All sets of a model, by name."""

    sets: list[SetSummary]


class Answerer(View):
    """The version that answered: every part of a reply comes from this one."""

    name: str
    version: int
    sha256: str


class CertificateView(View):
    """The proof of an answer: `exact` when no label allowed has a larger score than those told. `labels_scored`: how many in full;
    `postings_read`: weights looked at; `bound_gap`: the last score told less the most that any other label could have, below 0
    only when not exact, null when there is no other label."""

    exact: bool
    labels_scored: int
    postings_read: int
    bound_gap: float | None


class PredictionView(View):
    """The best labels of an instance, best first; equal scores by lower label number. Scores are margins, not probabilities."""

    labels: list[str]
    scores: list[float]
    probabilities: list[float] | None = Field(None, description="There when asked for.")
    certificate: CertificateView | None = Field(None, description="There when asked for.")


class PredictReply(View):
    """One prediction for each instance, in order. The search is exact, unless a deadline ended it and the certificate says so."""

    model: Answerer
    predictions: list[PredictionView]


class Contribution(View):
    """The part of one feature in a score: contribution = x * weight."""

    feature: str
    x: float
    weight: float
    contribution: float


class ExplainReply(View):
    """Why a label has its score: score = bias + contributions + rest (of the n_rest features not listed).

    rank: its place among all labels, from 1; gap_to_top, gap_to_kth: what it lacks to be the best, or the k-th best (k=5).
    """

    model: Answerer
    label: str
    score: float
    bias: float
    contributions: list[Contribution]
    rest: float
    n_rest: int
    rank: int
    gap_to_top: float
    gap_to_kth: float


class Health(View):
    """Alive."""

    status: Literal["ok"]
    version: str


class Ready(View):
    """Whether requests are welcome; reason codes when not, and what is missing without which most still works."""

    ready: bool
    reasons: list[str]
    degraded: list[str]
