"""Schemas of REST requests and replies.

Requests are strict: no unknown fields, no strings for numbers, no NaN.
"""

from __future__ import annotations

from xcray.service.schemas.base import Problem, Strict, View
from xcray.service.schemas.datasets import DatasetPage, DatasetRequest, DatasetView, UploadView
from xcray.service.schemas.jobs import (
    AttemptSpan,
    BatchSpan,
    ClassPage,
    JobPage,
    JobRequest,
    JobView,
    StopRequest,
    StopView,
    TimelineView,
    WorkerSpan,
)
from xcray.service.schemas.models import (
    AliasRequest,
    LoadView,
    ModelPage,
    ModelView,
    PairView,
    RouteView,
    SetPage,
    SetRequest,
    SetSummary,
    SetView,
    ShadowRequest,
    ShadowView,
    ShareRequest,
    ShareView,
    StateView,
    VersionView,
)
from xcray.service.schemas.operations import Health, Ready
from xcray.service.schemas.predict import (
    Answerer,
    CertificateView,
    ContributionView,
    ExplainReply,
    ExplainRequest,
    Instance,
    PredictionView,
    PredictReply,
    PredictRequest,
)

__all__ = [
    "AliasRequest",
    "Answerer",
    "AttemptSpan",
    "BatchSpan",
    "CertificateView",
    "ClassPage",
    "ContributionView",
    "DatasetPage",
    "DatasetRequest",
    "DatasetView",
    "ExplainReply",
    "ExplainRequest",
    "Health",
    "Instance",
    "JobPage",
    "JobRequest",
    "JobView",
    "LoadView",
    "ModelPage",
    "ModelView",
    "PairView",
    "PredictReply",
    "PredictRequest",
    "PredictionView",
    "Problem",
    "Ready",
    "RouteView",
    "SetPage",
    "SetRequest",
    "SetSummary",
    "SetView",
    "ShadowRequest",
    "ShadowView",
    "ShareRequest",
    "ShareView",
    "StateView",
    "StopRequest",
    "StopView",
    "Strict",
    "TimelineView",
    "UploadView",
    "VersionView",
    "View",
    "WorkerSpan",
]
