"""Handling of inference requests: decode, run the inference of /v1, encode."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from fastapi import Request

from xcray.errors import InputError, Unavailable
from xcray.service.app_state import app_state_of
from xcray.service.http.body import check_media_type, first_header, read_body
from xcray.service.http.limits import count_instances
from xcray.service.http.offload import run_in_heavy_thread
from xcray.service.inference_v2.decode import decode_request
from xcray.service.inference_v2.encode import encode_reply
from xcray.service.prediction.fast_path import JSON_TYPE, Reply
from xcray.service.prediction.handler import BODY_BYTES_PER_ROW, model_target, run_inference

BINARY_TYPE: Final = "application/octet-stream"
LENGTH_HEADER: Final = b"inference-header-content-length"
INLINE_BODY_BYTES: Final = 32_768  # larger bodies are decoded in a thread


async def handle_infer(request: Request, tenant: str, name: str, version: int | None) -> Reply:
    """Return the reply to an inference request; version None: the one that answers /v1.

    Raises XcrayError.
    """
    started = time.perf_counter()
    services = app_state_of(request).prediction
    settings = services.settings
    # Triton's client sends no Content-Type; the length header shows whether tensors follow.
    check_media_type(request, (JSON_TYPE, BINARY_TYPE), default=JSON_TYPE)
    body = await read_body(request, settings.predict_body_bytes)
    decode = partial(decode_request, body, _header_length(request), name, settings)
    if len(body) <= INLINE_BODY_BYTES:
        decoded = decode()
    else:
        decoded = await run_in_heavy_thread(decode)
    target = model_target(request, tenant, to_reference(name, version))
    n_rows = decoded.head.n_rows
    weight = n_rows + len(body) / BODY_BYTES_PER_ROW
    count_instances(request.scope, n_rows)
    result = await run_inference(
        services, target, decoded.head.query, decoded.rows.to_rows, n_rows, weight, started
    )
    if result.search.missing.any():
        raise Unavailable(
            "a shard does not answer, and tensors can't say that they are partial: try again, or "
            "use /v1",
            code="SHARD",
            retry_after=1,
        )
    content, json_length = encode_reply(result, decoded.head)
    if json_length is None:
        return Reply(content)
    return Reply(content, BINARY_TYPE, ((LENGTH_HEADER, b"%d" % json_length),))


def to_reference(name: str, version: int | None) -> str:
    """Return the registry reference of a model or of one version."""
    return name if version is None else f"{name}:{version}"


def _header_length(request: Request) -> int | None:
    """Return the length of the JSON object if binary tensors follow it. Raises InputError."""
    value = first_header(request, LENGTH_HEADER)
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) < 16):
        raise InputError(
            "Inference-Header-Content-Length is not a valid number of bytes", code="BAD_HEADER"
        )
    return int(value)
