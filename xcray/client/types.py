"""What the service answers: plain dictionaries whose keys type checkers know, ready for JSON."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Dataset(TypedDict):
    """A data set: BUILDING, READY or FAILED; its figures, or its problem, in stats."""

    id: str
    name: str
    status: str
    created: str
    stats: dict[str, Any]


class Job(TypedDict):
    """A job: status is PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED; phase says more; times are UTC; kind is train or predict."""

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


class Output(TypedDict):
    """The answers of a batch prediction: files in the order of the input, each with the rows it answers and its checksum."""

    job: str
    rows: int
    answered: int
    skipped: int
    skipped_reasons: list[dict[str, Any]]
    columns: dict[str, str]
    parts: list[dict[str, Any]]


class Event(TypedDict):
    """Something that happened to a job: kinds status, phase, progress, epoch (of trainings that go in epochs), stop."""

    seq: int
    time: str
    kind: str
    data: dict[str, Any]


class Timeline(TypedDict):
    """A job's timeline: attempts with where each begins; workers with their busy share; batches, neighbours as one when thinned."""

    job: str
    attempts: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    workers_total: int
    batches: list[dict[str, Any]]
    batches_total: int
    thinned: bool
    classes: int
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


class VersionState(TypedDict):
    """A version in the process that answered: LOADED, AVAILABLE (the first request loads it) or CORRUPT, with the reason."""

    version: int
    state: str
    reason: str | None


class Model(TypedDict):
    """A model: its versions and aliases; `splits` tells of aliases that lead to several versions, or have a shadow."""

    name: str
    versions: list[int]
    states: list[VersionState]
    aliases: dict[str, int]
    splits: dict[str, dict[str, Any]]
    latest: Version | None


class SetSummary(TypedDict):
    """A set of labels in a line."""

    name: str
    n_labels: int
    changed: str


class LabelSet(SetSummary):
    """A set of labels, and those of them that a version lacks."""

    labels: list[str]
    version: int
    unknown: list[str]


class Answerer(TypedDict):
    """The version that answered."""

    name: str
    version: int
    sha256: str


class Certificate(TypedDict):
    """Whether an answer is proven, what it took, and by how much the last score told is above what any other label could have."""

    exact: bool
    labels_scored: int
    postings_read: int
    bound_gap: float | None


class Prediction(TypedDict):
    """The best labels of one instance, best first, with their scores; probabilities and certificate when they were asked for."""

    labels: list[str]
    scores: list[float]
    probabilities: NotRequired[list[float]]
    certificate: NotRequired[Certificate]


class Predictions(TypedDict):
    """One prediction for each instance, all by one version."""

    model: Answerer
    predictions: list[Prediction]


class Contribution(TypedDict):
    """The part of one feature in a score."""

    feature: str
    x: float
    weight: float
    contribution: float


class Explanation(TypedDict):
    """score = bias + contributions + rest; rank from 1; gap_to_top, gap_to_kth: what it lacks to be the best, or among five."""

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
