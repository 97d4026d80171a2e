"""Typed dictionaries of the responses, ready for JSON."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class DatasetInfo(TypedDict):
    """A data set: BUILDING, READY or FAILED, with its statistics or its problem in stats."""

    id: str
    name: str
    status: str
    created: str
    stats: dict[str, Any]


class JobInfo(TypedDict):
    """A job of kind train or predict.

    status: PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED. phase: more detail. Times are UTC.
    """

    id: str
    name: str
    spec: dict[str, Any]
    status: str
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
    kind: str
    timeout_seconds: float | None
    expires: str | None
    max_attempts: int | None


class EstimateInfo(TypedDict):
    """Estimated needs of a training, on the machine of the service.

    problem: why it does not fit, None if it does. memory_bytes: anonymous memory of all workers
    (worker_bytes each) and the driver. available_bytes: left by each limit. selection_core_seconds:
    the most that `auto` takes before the training. probed_labels: solved for the estimate.
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


class Output(TypedDict):
    """The output of a batch prediction: files in input order, each with its rows and checksum."""

    job: str
    rows: int
    answered: int
    skipped: int
    skipped_reasons: list[dict[str, Any]]
    columns: dict[str, str]
    parts: list[dict[str, Any]]


class EventInfo(TypedDict):
    """An event of a job, of kind status, phase, progress, stop, or epoch (iterative trainings)."""

    seq: int
    time: str
    kind: str
    data: dict[str, Any]


class TimelineInfo(TypedDict):
    """The timeline of a job: attempts with their start, workers with their busy share, batches.

    thinned: whether adjacent batches were merged.
    """

    job: str
    attempts: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    workers_total: int
    batches: list[dict[str, Any]]
    batches_total: int
    thinned: bool
    n_labels: int
    makespan: float
    core_seconds: float
    busy_share: float


class Version(TypedDict):
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
    measures: dict[str, float]
    dataset_hash: str
    calibrated: bool


class VersionStateInfo(TypedDict):
    """A version in the process that responded.

    state: LOADED, AVAILABLE (loaded on the first request) or CORRUPT, with the reason.
    """

    version: int
    state: str
    reason: str | None


class ModelInfo(TypedDict):
    """A model with its versions and aliases.

    splits: aliases that point to several versions or have a shadow.
    """

    name: str
    versions: list[int]
    states: list[VersionStateInfo]
    aliases: dict[str, int]
    splits: dict[str, dict[str, Any]]
    latest: Version | None


class ReadinessInfo(TypedDict):
    """Whether a service accepts requests.

    reasons: why not; degraded: problems of trainings or of some models only. Both are empty without
    a key.
    """

    ready: bool
    reasons: list[str]
    degraded: list[str]


class LabelSetSummary(TypedDict):
    """Summary of a label set."""

    name: str
    n_labels: int
    changed: str


class LabelSet(LabelSetSummary):
    """A label set, with the labels that a version lacks."""

    labels: list[str]
    version: int
    unknown: list[str]


class ServingVersion(TypedDict):
    """The version that served the request."""

    name: str
    version: int
    sha256: str


class Certificate(TypedDict):
    """Proof of a prediction: whether it is exact, its cost, and the gap.

    bound_gap: the last returned score minus the highest score that any other label can have.
    """

    exact: bool
    labels_scored: int
    postings_read: int
    bound_gap: float | None


class Prediction(TypedDict):
    """The best labels of one instance with their scores, best first.

    probabilities and certificate are present if requested.
    """

    labels: list[str]
    scores: list[float]
    probabilities: NotRequired[list[float]]
    certificate: NotRequired[Certificate]


class PredictionWarning(TypedDict):
    """A warning about instances; EMPTY_ROWS: only the bias of the labels answers them."""

    code: str
    message: str
    instances: list[int]


class Predictions(TypedDict):
    """One prediction per instance, all by one version; warnings if there are any."""

    model: ServingVersion
    predictions: list[Prediction]
    warnings: NotRequired[list[PredictionWarning]]


class ContributionInfo(TypedDict):
    """The contribution of one feature to a score."""

    feature: str
    x: float
    weight: float
    contribution: float


class ExplanationInfo(TypedDict):
    """An explanation: score = bias + contributions + rest.

    rank: from 1. gap_to_top, gap_to_kth: score missing to the best label, and to the best five.
    """

    model: ServingVersion
    label: str
    score: float
    bias: float
    contributions: list[ContributionInfo]
    rest: float
    n_rest: int
    rank: int
    gap_to_top: float
    gap_to_kth: float


class LabelInfo(TypedDict):
    """A label: number, name, training rows, gap over the null objective, number of weights."""

    number: int
    label: str
    positives: int | None
    gap: float | None
    weights: int


class LabelDetails(LabelInfo):
    """A label with the version that has it, its bias, largest weights, and similar labels."""

    model: dict[str, Any]
    bias: float
    features: list[dict[str, Any]]
    similar: list[dict[str, Any]]


class SolverInfo(TypedDict):
    """A solver with its parameters: name, type, default, help, and low, high, above or choices."""

    name: str
    help: str
    family: str
    baseline: bool
    parameters: list[dict[str, Any]]
