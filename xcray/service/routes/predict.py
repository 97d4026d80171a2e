"""Predictions and their reasons. The computing is done in threads of its own: kernels release the interpreter."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias, TypeVar

from fastapi import APIRouter, Depends, Request

from xcray.errors import InputError
from xcray.service.auth import Asker
from xcray.service.body import described, json_body
from xcray.service.instances import rows_of
from xcray.service.predictors import Loaded
from xcray.service.schemas import (
    Answerer,
    Contribution,
    ExplainReply,
    ExplainRequest,
    PredictionView,
    PredictReply,
    PredictRequest,
)
from xcray.service.settings import Settings
from xcray.service.state import Rooms, rooms_of

router = APIRouter(prefix="/v1/models", tags=["predictions"])
T = TypeVar("T")


def _check_count(settings: Settings, value: dict[str, Any]) -> None:
    """Refuse too many instances before a million of them are looked at."""
    instances = value.get("instances")
    if isinstance(instances, list) and len(instances) > settings.max_instances:
        raise InputError(
            f"{len(instances):,} instances are more than the {settings.max_instances:,} of one request: send several",
            code="INSTANCES",
            limit=settings.max_instances,
        )


PredictBody: TypeAlias = Annotated[PredictRequest, Depends(json_body(PredictRequest, "predict_body_bytes", _check_count))]
ExplainBody: TypeAlias = Annotated[ExplainRequest, Depends(json_body(ExplainRequest, "predict_body_bytes"))]


@router.post("/{reference:modelref}:predict", openapi_extra=described(PredictRequest))
async def predict(request: Request, caller: Asker, reference: str, asked: PredictBody) -> PredictReply:
    """The best labels of each instance. `reference` is name, name@alias or name:3; the reply says which version answered."""
    rooms = rooms_of(request)
    if asked.top_k > rooms.settings.max_top_k:
        raise InputError(f"top_k must be 1 to {rooms.settings.max_top_k}", code="K_RANGE", loc="top_k")
    return await _computed(rooms, lambda: _predict(rooms, reference, asked))


@router.post("/{reference:modelref}:explain", openapi_extra=described(ExplainRequest))
async def explain(request: Request, caller: Asker, reference: str, asked: ExplainBody) -> ExplainReply:
    """Which features made the score of a label (the best one when none is named), and what it lacks to be among the best."""
    rooms = rooms_of(request)
    return await _computed(rooms, lambda: _explain(rooms, reference, asked))


async def _computed(rooms: Rooms, work: Callable[[], T]) -> T:
    """Run in the pool of prediction threads, with the request's id; refused while too many wait."""
    context = contextvars.copy_context()
    with rooms.predictors.place():
        return await asyncio.get_running_loop().run_in_executor(rooms.predictors.pool, context.run, work)


def _predict(rooms: Rooms, reference: str, asked: PredictRequest) -> PredictReply:
    """Answer wholly from one version."""
    loaded, started = rooms.predictors.get(reference), time.perf_counter()
    predictor = loaded.predictor
    named = predictor.named(predictor.predict(rows_of(predictor.model, asked.instances), asked.top_k))
    rooms.gauges.instances.inc(len(named))
    rooms.gauges.predict_seconds.observe(time.perf_counter() - started)
    predictions = [PredictionView(labels=[one.label for one in row], scores=[one.score for one in row]) for row in named]
    return PredictReply(model=_answerer(loaded), predictions=predictions)


def _explain(rooms: Rooms, reference: str, asked: ExplainRequest) -> ExplainReply:
    """Explain by the version that `reference` means now."""
    loaded = rooms.predictors.get(reference)
    predictor = loaded.predictor
    row = rows_of(predictor.model, [asked.instance], "instance")
    label = asked.label if asked.label is not None else int(predictor.predict(row, 1).labels[0, 0])
    found = predictor.explain(row, label, asked.top)
    fields = {name: getattr(found, name) for name in ("score", "bias", "rest", "n_rest", "rank", "gap_to_top", "gap_to_kth")}
    contributions = [Contribution(**part._asdict()) for part in found.contributions]
    return ExplainReply(model=_answerer(loaded), label=found.name, contributions=contributions, **fields)


def _answerer(loaded: Loaded) -> Answerer:
    """Which version it is."""
    return Answerer(name=loaded.name, version=loaded.version, sha256=loaded.predictor.model.sha256)
