"""Predict handler: decode the request, find the model, compute in the batcher, encode the reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

from fastapi import Request

from xcray.arrays import CSR, Float64, stack_rows
from xcray.data.text.pipeline import empty_rows
from xcray.errors import InputError
from xcray.index.search_result import Bools, SearchResult
from xcray.model.model import Model
from xcray.predict.thresholds import require_label_thresholds, thresholds_of
from xcray.service.http.body import check_media_type, first_header, parse_body, read_body
from xcray.service.http.limits import count_instances
from xcray.service.http.offload import run_in_heavy_thread
from xcray.service.models.cache import LoadedModel, ModelTarget
from xcray.service.observability.metrics import Metrics
from xcray.service.observability.request_log import REQUEST_ID
from xcray.service.prediction import fast_decode
from xcray.service.prediction.encode import encode_predict_reply
from xcray.service.prediction.fast_decode import PredictQuery
from xcray.service.prediction.instances import to_rows
from xcray.service.prediction.services import PredictionServices
from xcray.service.prediction.shadow import ShadowCopy
from xcray.service.schemas.predict import PredictRequest
from xcray.service.settings import Settings
from xcray.telemetry.tracing import span

# bytes of a body that is decoded on the event loop (a millisecond); larger ones go to a thread
INLINE_BODY_BYTES: Final = 262_144
STRICT_INLINE_BYTES: Final = 32_768  # the same for the strict decoder
# weight (see BODY_BYTES_PER_ROW) of a request whose instances are encoded on the event loop
INLINE_ENCODE_WEIGHT: Final = 300.0
INLINE_REPLY_LABELS: Final = 8_192  # labels of a reply that is encoded on the event loop
BODY_BYTES_PER_ROW: Final = 4_096  # bytes of a body that weigh as much as a row
ROUTING_KEY: Final = b"x-routing-key"  # equal keys get the same version of a traffic split
# used if the deadline passed while the request waited: the search then returns at once
MIN_DEADLINE_MS: Final = 0.01

ModelInput = list[str] | CSR


class PredictOutput(NamedTuple):
    """A search result; probabilities (n, k) if requested; empty (n,): rows without a feature."""

    search: SearchResult
    probabilities: Float64 | None
    empty: Bools


class InferenceResult(NamedTuple):
    """A search result, the version that computed it, and the other fields of `PredictOutput`.

    keep: (n, k), which labels reach the thresholds of the query; None without thresholds.
    """

    loaded: LoadedModel
    search: SearchResult
    probabilities: Float64 | None
    empty: Bools
    keep: Bools | None


def model_target(request: Request, tenant: str, reference: str) -> ModelTarget:
    """Return the target of a request.

    Its sticky key is the header X-Routing-Key, else the id of the request.
    """
    return ModelTarget(tenant, reference, first_header(request, ROUTING_KEY) or REQUEST_ID.get())


async def handle_predict(
    request: Request, services: PredictionServices, target: ModelTarget
) -> bytes:
    """Return the reply to a predict request, see `PredictReply`. Raises XcrayError."""
    started = time.perf_counter()
    settings = services.settings
    check_media_type(request, ("application/json",))
    body = await read_body(request, settings.predict_body_bytes)
    with span("parse", bytes=len(body)):
        query = await _decode(body, settings)
    count_instances(request.scope, len(query.instances))
    weight = len(query.instances) + len(body) / BODY_BYTES_PER_ROW
    result = await run_inference(
        services,
        target,
        query,
        lambda model: to_rows(model, query.instances),
        len(query.instances),
        weight,
        started,
    )
    n_labels = result.search.labels.size
    encode = partial(
        encode_predict_reply,
        result.loaded,
        result.search,
        query.certificate,
        result.probabilities,
        result.empty,
        result.keep,
    )
    with span("encode", labels=n_labels):
        return encode() if n_labels <= INLINE_REPLY_LABELS else await run_in_heavy_thread(encode)


async def run_inference(
    services: PredictionServices,
    target: ModelTarget,
    query: PredictQuery,
    encode: Callable[[Model], ModelInput],
    n_rows: int,
    weight: float,
    started: float,
) -> InferenceResult:
    """Answer a query with the version of `target`, for any protocol. Raises XcrayError.

    encode: model -> its input, `n_rows` rows or texts. weight: cost of decoding and computing them,
    in rows. started: when the request began (time.perf_counter), for its deadline.
    """
    if query.top_k > services.settings.max_top_k:
        raise InputError(
            f"top_k must be 1 to {services.settings.max_top_k}", code="K_RANGE", loc="top_k"
        )
    with services.batcher.admit(n_rows):
        with span("find"):
            loaded = await services.model_cache.find(target)
        shadow = services.model_cache.shadow_for(target)
        encode_rows = partial(encode, loaded.predictor.model)
        if weight <= INLINE_ENCODE_WEIGHT:
            rows = encode_rows()
        else:
            rows = await run_in_heavy_thread(encode_rows)
        with span("compute", rows=n_rows):
            output = await _compute(services, loaded, query, rows, weight, started)
        services.metrics.predict_seconds.observe(time.perf_counter() - started)
        if shadow is not None and shadow is not loaded:
            # in the next iteration of the loop: by then the reply has been sent
            asyncio.get_running_loop().call_soon(
                services.shadows.submit,
                _shadow_copy(target, query, encode, loaded, shadow, output.search, started),
            )
        search = output.search
        keep = thresholds_of(
            loaded.predictor.model,
            search,
            query.min_score,
            query.min_probability,
            query.label_thresholds,
        ).keep(search.labels, search.scores, output.probabilities)
        probabilities = output.probabilities if query.probabilities else None
        return InferenceResult(loaded, output.search, probabilities, output.empty, keep)


def _shadow_copy(
    target: ModelTarget,
    query: PredictQuery,
    encode: Callable[[Model], ModelInput],
    loaded: LoadedModel,
    shadow: LoadedModel,
    result: SearchResult,
    started: float,
) -> ShadowCopy:
    """Return the copy of an answered request for a shadow."""
    return ShadowCopy(
        target.reference,
        loaded,
        shadow,
        encode,
        len(result.labels),
        query.top_k,
        query.allow,
        query.deny,
        result.labels,
        time.perf_counter() - started,
    )


async def _decode(body: bytes, settings: Settings) -> PredictQuery:
    """Decode a body, fast if possible, else strictly; large ones in a thread."""
    decode_fast = partial(fast_decode.decode_fast, body, settings.max_instances)
    if len(body) <= INLINE_BODY_BYTES:
        query = decode_fast()
    else:
        query = await run_in_heavy_thread(decode_fast)
    if query is not None:
        return query
    decode_strictly = partial(
        parse_body, PredictRequest, body, partial(_check_instance_count, settings)
    )
    if len(body) <= STRICT_INLINE_BYTES:
        return fast_decode.to_query(decode_strictly())
    return fast_decode.to_query(await run_in_heavy_thread(decode_strictly))


def _check_instance_count(settings: Settings, value: dict[str, Any]) -> None:
    """Raise InputError for too many instances before they are validated one by one."""
    instances = value.get("instances")
    if isinstance(instances, list) and len(instances) > settings.max_instances:
        raise InputError(
            f"{len(instances):,} instances exceed the limit of {settings.max_instances:,} per "
            "request: send several requests",
            code="INSTANCES",
            limit=settings.max_instances,
        )


async def _compute(
    services: PredictionServices,
    loaded: LoadedModel,
    query: PredictQuery,
    rows: ModelInput,
    weight: float,
    started: float,
) -> PredictOutput:
    """Search with one version: batched if the query has neither filter nor deadline."""
    model = loaded.key
    if query.needs_probabilities:
        loaded.predictor.require_probabilities()  # raise before the search
    if query.label_thresholds:
        require_label_thresholds(loaded.predictor.model.manifest)
    if query.allow is None and query.deny is None and query.deadline_ms is None:
        with_probabilities = query.needs_probabilities
        key = (model, query.top_k, with_probabilities, type(rows))
        predict_batch = partial(
            _predict_batch, services.metrics, loaded, query.top_k, with_probabilities
        )
        return await services.batcher.submit(  # type: ignore[no-any-return]
            key, rows, predict_batch, weight=weight, waits=loaded.is_in_shards
        )
    options = (
        query.allow is not None,
        query.deny is not None,
        query.deadline_ms is not None,
        query.needs_probabilities,
    )
    cost_key = (model, query.top_k.bit_length(), *options)
    predict_single = partial(_predict_single, services, loaded, query, started)
    return await services.batcher.submit(  # type: ignore[no-any-return]
        cost_key,
        rows,
        predict_single,
        weight=weight,
        batchable=False,
        waits=loaded.is_in_shards,
    )


def _predict_single(
    services: PredictionServices,
    loaded: LoadedModel,
    query: PredictQuery,
    started: float,
    payloads: list[ModelInput],
) -> list[PredictOutput]:
    """Answer one query with a filter or a deadline, which counts from the start of the request."""
    predictor = loaded.predictor
    label_filter = loaded.filter(query.allow, query.deny, services.registries.of(loaded.tenant))
    encoded = predictor.encode(payloads[0])
    remaining_ms = query.deadline_ms
    if remaining_ms is not None:
        remaining_ms = max(MIN_DEADLINE_MS, remaining_ms - 1e3 * (time.perf_counter() - started))
    result = predictor.search(
        encoded,
        query.top_k,
        deadline_ms=remaining_ms,
        allow=label_filter,
        probabilities=query.needs_probabilities,
    )
    probabilities = (
        predictor.probabilities(result, filtered=label_filter is not None)
        if query.needs_probabilities
        else None
    )
    empty = empty_rows(predictor.features(encoded))
    services.metrics.count_search(result, empty)
    return [PredictOutput(result, probabilities, empty)]


def _predict_batch(
    metrics: Metrics,
    loaded: LoadedModel,
    k: int,
    with_probabilities: bool,
    payloads: list[ModelInput],
) -> list[PredictOutput]:
    """Answer several queries with one search."""
    predictor = loaded.predictor
    rows = predictor.encode(payloads[0] if len(payloads) == 1 else _concatenate(payloads))
    result = predictor.search(rows, k, probabilities=with_probabilities)
    probabilities = predictor.probabilities(result) if with_probabilities else None
    empty = empty_rows(predictor.features(rows))
    metrics.count_search(result, empty)
    if loaded.drift is not None:
        loaded.drift.add(payloads[0], result.top, empty.tolist())
    if len(payloads) == 1:
        return [PredictOutput(result, probabilities, empty)]
    lengths = [_n_rows(each) for each in payloads]
    ends = list(accumulate(lengths))
    spans = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    return [
        PredictOutput(
            _slice_result(result, span),
            None if probabilities is None else probabilities[span],
            empty[span],
        )
        for span in spans
    ]


def _n_rows(rows: ModelInput) -> int:
    """Return the number of texts or rows."""
    return len(rows) if isinstance(rows, list) else rows.n_rows


def _slice_result(result: SearchResult, rows: slice) -> SearchResult:
    """Return some rows of a search result."""
    return SearchResult._make([column[rows] for column in result])


def _concatenate(payloads: list[ModelInput]) -> ModelInput:
    """Return the texts or rows of several requests, one after the other."""
    if isinstance(payloads[0], list):
        return list(chain.from_iterable(each for each in payloads if isinstance(each, list)))
    rows = [each for each in payloads if not isinstance(each, list)]
    return stack_rows(rows, rows[0].n_cols)
