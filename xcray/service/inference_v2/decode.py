"""Decoding of inference requests: from the body to input rows and a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from xcray.errors import InputError
from xcray.service.http.body import parse_body
from xcray.service.inference_v2.fast_decode import FastInferRequest, decode_fast
from xcray.service.inference_v2.rows import DenseRows, InputRows, SparseRows, TextRows
from xcray.service.inference_v2.tensors import InputTensor, read_numbers, read_texts, split_binary
from xcray.service.prediction.fast_decode import PredictQuery
from xcray.service.schemas.inference import DEFAULT_TOP_K, InferRequest
from xcray.service.settings import Settings

INPUT_FORMS: Final[dict[frozenset[str], str]] = {
    frozenset({"text"}): "text",
    frozenset({"indptr", "indices", "values"}): "sparse",
    frozenset({"dense"}): "dense",
}
DATATYPES: Final = {
    **dict.fromkeys(("indptr", "indices"), ("INT64", "INT32")),
    **dict.fromkeys(("values", "dense"), ("FP32", "FP64")),
    "text": ("BYTES",),
}
DEFAULT_OUTPUTS: Final = ("labels", "scores", "label_ids")


class DecodedRequest(NamedTuple):
    """A decoded request: input rows, query, and the requested tensors as (name, as_bytes)."""

    id: str | None
    rows: InputRows
    query: PredictQuery
    outputs: list[tuple[str, bool]]


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
    request = decode_fast(body[:end]) or parse_body(InferRequest, body[:end])
    if request.model_name not in (None, name):
        raise InputError(
            "model_name differs from the model in the path: omit it",
            code="MODEL_NAME",
            loc="model_name",
        )
    outputs = _requested_outputs(request)
    rows = _to_input_rows(
        request.inputs, split_binary(request.inputs, memoryview(body)[end:]), settings.max_instances
    )
    query = _to_query(request, "probabilities" in dict(outputs))
    return DecodedRequest(request.id, rows, query, outputs)


def _to_query(request: InferRequest | FastInferRequest, probabilities: bool) -> PredictQuery:
    """Return the query of a request. An option without a value has its default."""
    options = request.parameters
    if options is None:
        return PredictQuery((), DEFAULT_TOP_K, probabilities=probabilities)
    return PredictQuery(
        instances=(),
        top_k=DEFAULT_TOP_K if options.top_k is None else options.top_k,
        allow=_to_list(options.allow),
        deny=_to_list(options.deny),
        deadline_ms=options.deadline_ms,
        probabilities=probabilities,
    )


def _to_list(value: str | list[str] | None) -> list[str] | None:
    """Return one label as a list of one."""
    return [value] if isinstance(value, str) else value


def _requested_outputs(request: InferRequest | FastInferRequest) -> list[tuple[str, bool]]:
    """Return the requested tensors as (name, as_bytes), each once."""
    options = request.parameters
    as_bytes = options is not None and bool(options.binary_data_output)
    if request.outputs is None:
        with_probabilities = options is not None and bool(options.probabilities)
        names = [*DEFAULT_OUTPUTS, *(["probabilities"] if with_probabilities else [])]
        return [(name, as_bytes) for name in names]
    out = []
    for output in request.outputs:
        own = output.parameters.binary_data if output.parameters else None
        out.append((str(output.name), as_bytes if own is None else own))
    if len(dict(out)) < len(out):
        raise InputError("duplicate output: name each output once", code="OUTPUTS", loc="outputs")
    return out


def _to_input_rows(
    inputs: Sequence[InputTensor], parts: list[memoryview | None], max_rows: int
) -> InputRows:
    """Return the tensors as texts, sparse rows or dense rows."""
    positions: dict[str, int] = {tensor.name: i for i, tensor in enumerate(inputs)}
    form = INPUT_FORMS.get(frozenset(positions))
    if form is None or len(positions) < len(inputs):
        raise InputError(
            "send text, dense, or indptr with indices and values, each tensor once",
            code="ROW_KIND",
            loc="inputs",
        )
    for i, tensor in enumerate(inputs):
        if tensor.datatype not in DATATYPES[tensor.name]:
            message = (
                f"inputs[{i}]: {tensor.name} is {tensor.datatype}; expected "
                f"{' or '.join(DATATYPES[tensor.name])}"
            )
            raise InputError(message, code="DATATYPE", loc=f"inputs[{i}]")
    _check_row_count(form, inputs[positions["indptr" if form == "sparse" else form]], max_rows)

    def array(name: str) -> np.ndarray:
        i = positions[name]
        return read_numbers(inputs[i], parts[i], f"inputs[{i}]")

    if form == "text":
        return TextRows(read_texts(inputs[0], parts[0], "inputs[0]"))
    if form == "dense":
        return DenseRows(array("dense").reshape(inputs[0].shape))
    return SparseRows(array("indptr"), array("indices"), array("values"))


def _check_row_count(form: str, tensor: InputTensor, max_rows: int) -> None:
    """Raise InputError for a wrong shape or too many rows, before the elements are read."""
    shape = tensor.shape
    n_dimensions = 2 if form == "dense" else 1
    if len(shape) == n_dimensions or (form == "text" and shape[1:] == [1]):
        count = shape[0] - (form == "sparse")
        if count < 1:
            raise InputError(
                "the inputs have no rows: send at least one", code="INSTANCES", loc="inputs"
            )
        if count > max_rows:
            raise InputError(
                f"{count:,} rows exceed the limit of {max_rows:,} per request: send several "
                "requests",
                code="INSTANCES",
                limit=max_rows,
            )
        return
    expected = {"text": "[n] or [n, 1]", "dense": "[n, features]", "sparse": "[n + 1]"}[form]
    raise InputError(
        f"{tensor.name} has shape {shape}; expected {expected}",
        code="TENSOR_SHAPE",
        loc="inputs",
    )
