"""Decoding of inference requests: from the body to input rows and a query."""

from __future__ import annotations

from typing import NamedTuple

from xcray.errors import InputError
from xcray.service.inference_v2.head import MAX_CACHED_BYTES, InferHead, read_cached, read_head
from xcray.service.inference_v2.rows import DenseRows, InputRows, SparseRows, TextRows
from xcray.service.inference_v2.tensors import read_numbers, read_texts
from xcray.service.settings import Settings


class DecodedRequest(NamedTuple):
    """A decoded request: its JSON object and its input rows."""

    head: InferHead
    rows: InputRows


def decode_request(
    body: bytes, header_length: int | None, name: str, settings: Settings
) -> DecodedRequest:
    """Decode the body of a request to the model `name`. Raises InputError with a fix.

    header_length: length of the JSON object in bytes; None if it is the whole body.
    """
    end = len(body) if header_length is None else header_length
    if end > len(body):
        raise InputError(
            f"Inference-Header-Content-Length is {end:,}, the body has {len(body):,} bytes",
            code="TENSOR_SIZE",
        )
    is_cached = header_length is not None and end <= MAX_CACHED_BYTES
    head = (read_cached if is_cached else read_head)(body[:end])
    if head.model_name not in (None, name):
        raise InputError(
            "model_name differs from the model in the path: omit it",
            code="MODEL_NAME",
            loc="model_name",
        )
    binary = body[end:]  # a copy, whose arrays are aligned
    if len(binary) != head.n_bytes:
        message = (
            f"binary_data_size of all inputs is {head.n_bytes:,}, but {len(binary):,} bytes follow "
            "the JSON object"
        )
        raise InputError(message, code="TENSOR_SIZE", loc="inputs")
    if head.n_rows > settings.max_instances:
        raise InputError(
            f"{head.n_rows:,} rows exceed the limit of {settings.max_instances:,} per request: "
            "send several requests",
            code="INSTANCES",
            limit=settings.max_instances,
        )
    return DecodedRequest(head, _to_input_rows(head, binary))


def _to_input_rows(head: InferHead, binary: bytes) -> InputRows:
    """Return the tensors as texts, sparse rows or dense rows."""
    tensors = head.tensors
    if head.form == "text":
        return TextRows(read_texts(tensors["text"], binary))
    if head.form == "dense":
        dense = tensors["dense"]
        return DenseRows(read_numbers(dense, binary).reshape(dense.shape))
    return SparseRows(
        read_numbers(tensors["indptr"], binary),
        read_numbers(tensors["indices"], binary),
        read_numbers(tensors["values"], binary),
    )
