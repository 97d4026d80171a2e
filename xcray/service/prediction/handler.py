"""A predict request from its body to the bytes of its answer: read, find the model, compute at the desk, write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import numpy as np
from fastapi import Request

from xcray.arrays import CSR, Float64, csr
from xcray.errors import InputError
from xcray.index.search_result import Answer
from xcray.model.model import Model
from xcray.service.app_state import Rooms
from xcray.service.http.body import check_type, collect, parse
from xcray.service.http.limits import count
from xcray.service.models.cache import Loaded, Wanted
from xcray.service.observability.request_log import REQUEST_ID
from xcray.service.prediction import fast_decode as quick
from xcray.service.prediction.encode import predict_reply
from xcray.service.prediction.fast_decode import Ask
from xcray.service.prediction.instances import taken
from xcray.service.prediction.offload import heavily
from xcray.service.prediction.shadow import Copy
from xcray.service.schemas import PredictRequest
from xcray.service.settings import Settings
from xcray.telemetry.tracing import span

INLINE: Final = (
    262_144  # bytes of a body that are read on the event loop: a millisecond; more go to a thread
)
STRICT_INLINE: Final = 32_768  # the same for the strict reader
TAKE_INLINE: Final = (
    300.0  # weight (see TYPICAL) of a request whose instances are made rows on the event loop
)
REPLY_INLINE: Final = 8_192  # labels of a reply that is written on the event loop
TYPICAL: Final = 4_096  # bytes of a body that weigh as much as a row
ROUTING_KEY: Final = "x-routing-key"  # equal ones are answered by the same version of a split
LEAST_MS: Final = (
    0.01  # of a deadline that passed while the request waited: the search then tells what it has
)

Given = list[str] | CSR
Answered = tuple[Answer, Float64 | None]  # and the probabilities, when they were asked for


class Told(NamedTuple):
    """An answer with the version that gave it; probabilities (n, k) when they were asked for."""

    loaded: Loaded
    answer: Answer
    probabilities: Float64 | None


def wanted(request: Request, tenant: str, reference: str) -> Wanted:
    """What a request asks: its sticky key is the header X-Routing-Key, else the id of the request."""
    return Wanted(tenant, reference, request.headers.get(ROUTING_KEY) or REQUEST_ID.get())


async def answer(request: Request, rooms: Rooms, asks: Wanted) -> bytes:
    """The reply to a predict request, as `schemas.PredictReply` describes it. Raises XcrayError."""
    begun = time.perf_counter()
    settings = rooms.settings
    check_type(request, ("application/json",))
    body = await collect(request, settings.predict_body_bytes, settings.body_seconds)
    with span("parse", bytes=len(body)):
        asked = await _read(body, settings)
    count(request.scope, len(asked.instances))
    weight = len(asked.instances) + len(body) / TYPICAL
    told = await answered(
        rooms,
        asks,
        asked,
        lambda model: taken(model, asked.instances),
        len(asked.instances),
        weight,
        begun,
    )
    reply = partial(predict_reply, told.loaded, told.answer, asked.certificate, told.probabilities)
    with span("encode", labels=told.answer.labels.size):
        return reply() if told.answer.labels.size <= REPLY_INLINE else await heavily(reply)


async def answered(
    rooms: Rooms,
    asks: Wanted,
    asked: Ask,
    take: Callable[[Model], Given],
    n_rows: int,
    weight: float,
    begun: float,
) -> Told:
    """What a version says to a request, whatever protocol it came by. Raises XcrayError.

    asks: see `wanted`. take: the model that it means now -> the rows or texts asked about, `n_rows` of them. weight: what reading
    and computing them costs, in rows. begun: when the request began (time.perf_counter), for its deadline.
    """
    if asked.top_k > rooms.settings.max_top_k:
        raise InputError(
            f"top_k must be 1 to {rooms.settings.max_top_k}", code="K_RANGE", loc="top_k"
        )
    with rooms.desk.place(n_rows):
        with span("find"):
            loaded = await rooms.predictors.find(asks)
        shadow = rooms.predictors.shadow(asks)
        taking = partial(take, loaded.predictor.model)
        given = taking() if weight <= TAKE_INLINE else await heavily(taking)
        with span("compute", rows=n_rows):
            found, probabilities = await _computed(rooms, loaded, asked, given, weight, begun)
        rooms.gauges.searched(
            n_rows,
            int(found.labels_scored.sum()),
            int(found.postings_read.sum()),
            int(found.exact.sum()),
        )
        rooms.gauges.predict_seconds.observe(time.perf_counter() - begun)
        if (
            shadow is not None and shadow is not loaded
        ):  # in the loop's next turn: by then the reply has left
            asyncio.get_running_loop().call_soon(
                rooms.shadows.offer, _copy(asks, asked, take, loaded, shadow, found, begun)
            )
        return Told(loaded, found, probabilities)


def _copy(
    asks: Wanted,
    asked: Ask,
    take: Callable[[Model], Given],
    loaded: Loaded,
    shadow: Loaded,
    found: Answer,
    begun: float,
) -> Copy:
    """What a shadow needs to answer along."""
    seconds = time.perf_counter() - begun
    more = (take, len(found.labels), asked.top_k, asked.allow, asked.deny, found.labels, seconds)
    return Copy(asks.reference, loaded, shadow, *more)


async def _read(body: bytes, settings: Settings) -> Ask:
    """A body as a request: quickly when that can be, else strictly; large ones in a thread."""
    quickly = partial(quick.read, body, settings.max_instances)
    found = quickly() if len(body) <= INLINE else await heavily(quickly)
    if found is not None:
        return found
    strictly = partial(parse, PredictRequest, body, partial(_check_count, settings))
    return quick.strictly(strictly() if len(body) <= STRICT_INLINE else await heavily(strictly))


def _check_count(settings: Settings, value: dict[str, Any]) -> None:
    """Refuse too many instances before a million of them are looked at."""
    instances = value.get("instances")
    if isinstance(instances, list) and len(instances) > settings.max_instances:
        raise InputError(
            f"{len(instances):,} instances are more than the {settings.max_instances:,} of one request: send several",
            code="INSTANCES",
            limit=settings.max_instances,
        )


async def _computed(
    rooms: Rooms, loaded: Loaded, asked: Ask, given: Given, weight: float, begun: float
) -> Answered:
    """The answer by one version: together with others when nothing but rows and top_k was asked, else alone."""
    model = loaded.key
    if asked.probabilities:
        loaded.predictor.require_probabilities()  # before anything is searched
    if asked.allow is None and asked.deny is None and asked.deadline_ms is None:
        key = (model, asked.top_k, asked.probabilities, type(given))
        together = partial(_together, loaded, asked.top_k, asked.probabilities)
        return await rooms.desk.compute(key, given, together, weight=weight)  # type: ignore[no-any-return]
    limits = (
        asked.allow is not None,
        asked.deny is not None,
        asked.deadline_ms is not None,
        asked.probabilities,
    )
    alike = (model, asked.top_k.bit_length(), *limits)
    alone = partial(_alone, rooms, loaded, asked, begun)
    return await rooms.desk.compute(alike, given, alone, weight=weight, joins=False)  # type: ignore[no-any-return]


def _alone(
    rooms: Rooms, loaded: Loaded, asked: Ask, begun: float, given: list[Given]
) -> list[Answered]:
    """The answer to one request with a filter or a deadline; its time runs since the request began."""
    among = loaded.filter(asked.allow, asked.deny, rooms.registry_of(loaded.tenant))
    left = asked.deadline_ms
    if left is not None:
        left = max(LEAST_MS, left - 1e3 * (time.perf_counter() - begun))
    found = loaded.predictor.answer(
        given[0], asked.top_k, deadline_ms=left, allow=among, probabilities=asked.probabilities
    )
    return [
        (
            found,
            loaded.predictor.probabilities(found, filtered=among is not None)
            if asked.probabilities
            else None,
        )
    ]


def _together(loaded: Loaded, k: int, probable: bool, given: list[Given]) -> list[Answered]:
    """The answers to several requests by one call."""
    predictor = loaded.predictor
    found = predictor.answer(
        given[0] if len(given) == 1 else _joined(given), k, probabilities=probable
    )
    shares = predictor.probabilities(found) if probable else None
    if len(given) == 1:
        return [(found, shares)]
    ends = list(accumulate(len(each) if isinstance(each, list) else each.n_rows for each in given))
    spans = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    return [(_part(found, span), None if shares is None else shares[span]) for span in spans]


def _part(found: Answer, rows: slice) -> Answer:
    """Some rows of an answer."""
    return Answer._make([part[rows] for part in found])


def _joined(given: list[Given]) -> Given:
    """Texts, or rows, of several requests one after the other."""
    if isinstance(given[0], list):
        return list(chain.from_iterable(each for each in given if isinstance(each, list)))
    rows = [each for each in given if not isinstance(each, list)]
    lengths = np.concatenate([np.diff(each.indptr) for each in rows])
    return csr(
        np.concatenate(([0], np.cumsum(lengths))),
        np.concatenate([each.indices for each in rows]),
        np.concatenate([each.data for each in rows]),
        rows[0].n_cols,
    )
