"""Input of deployment sizing: the size of the data and the requirements, with their checks."""

from __future__ import annotations

import math
from typing import NamedTuple

from xcray.errors import ParameterError


class DatasetShape(NamedTuple):
    """Size of a future data set.

    rows, features, labels, entries: N, D, K and the entries of X, of the training part.
    labels_per_row: mean. held_out_share: additional rows for evaluation, as a share of N.
    postings_share: see MIN_OVERLAP; None selects it. max_label_share: see MAX_LABEL_SHARE; None
    selects it. mean_sq_norm: mean |x|^2 of a row. None selects 1, or the entries per row if rows
    are dense, as for standardised features.
    """

    rows: int
    features: int
    labels: int
    entries: int
    labels_per_row: float = 3.0
    held_out_share: float = 0.1
    postings_share: float | None = None
    max_label_share: float | None = None
    mean_sq_norm: float | None = None


class DeploymentOptions(NamedTuple):
    """Requirements of a deployment.

    cluster: trainings run on Ray; otherwise everything runs in one pod. cores: of a worker pod, or
    of the one pod. hours: time limit of a training; None accepts the time that one worker pod
    takes.
    jobs: simultaneous trainings. replicas: API pods. processes: per API pod. threads: per process.
    models: served models of this size. versions: retained versions per model.
    """

    cluster: bool = True
    cores: int = 4
    hours: float | None = None
    jobs: int = 1
    replicas: int = 2
    processes: int = 1
    threads: int = 1
    models: int = 1
    versions: int = 3


def check_shape(data: DatasetShape) -> None:
    """Raise ParameterError, with a fix, for impossible data sizes."""
    for name, low in (
        ("rows", 1),
        ("features", 1),
        ("labels", 1),
        ("entries", 0),
        ("labels_per_row", 0),
        ("held_out_share", 0),
    ):
        value = getattr(data, name)
        if not (math.isfinite(value) and low <= value <= 1e15):
            raise ParameterError(f"{name} must be a number from {low} to 1e15, not {value}")
    if data.entries > data.rows * data.features:
        raise ParameterError(
            "there are more entries than rows times features: "
            "nnz is the number of nonzero entries of X in the training part"
        )
    if data.labels_per_row > data.labels:
        raise ParameterError(
            "a row cannot have more labels than the data set: "
            "labels_per_row is the mean number of labels per row"
        )
    for share in ("postings_share", "max_label_share"):
        value = getattr(data, share)
        if value is not None and not 0.0 < value <= 1.0:
            raise ParameterError(f"{share} is a share: above 0, and at most 1")
    if data.mean_sq_norm is not None and not (
        math.isfinite(data.mean_sq_norm) and data.mean_sq_norm > 0.0
    ):
        raise ParameterError(
            "mean_sq_norm must be above 0: the mean of |x|^2 over rows, 1 for rows of length 1"
        )


def check_options(options: DeploymentOptions) -> None:
    """Raise ParameterError, with a fix, for options out of range."""
    for name in ("cores", "jobs", "replicas", "processes", "threads", "models", "versions"):
        if not 1 <= getattr(options, name) <= 100_000:
            raise ParameterError(f"{name} must be from 1 to 100,000")
    if options.hours is not None and not (math.isfinite(options.hours) and options.hours > 0):
        raise ParameterError("hours must be above 0")
