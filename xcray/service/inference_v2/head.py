"""The JSON object of an inference request, checked as far as that is possible without the data.

For binary tensors it only names shapes, sizes and options, so the objects of different requests are
often the same. The last ones are cached (`read_cached`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from xcray.errors import InputError
from xcray.service.http.body import parse_body
from xcray.service.inference_v2.fast_decode import decode_fast
from xcray.service.inference_v2.tensors import InputTensor
from xcray.service.prediction.fast_decode import PredictQuery
from xcray.service.schemas.inference import DEFAULT_TOP_K, InferRequest

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
MAX_CACHED_BYTES: Final = 1024  # of one object; three tensors with options take 400
MAX_CACHED_HEADS: Final = 1024


class InferHead(NamedTuple):
    """A valid JSON object of a request. It is cached, so it must not be changed.

    form: text, sparse or dense. tensors: by name. n_bytes: of all binary tensors. outputs: the
    requested tensors as (name, as_bytes).
    """

    id: str | None
    model_name: str | None
    form: str
    n_rows: int
    tensors: dict[str, InputTensor]
    n_bytes: int
    outputs: list[tuple[str, bool]]
    query: PredictQuery


def read_head(body: bytes) -> InferHead:
    """Read the JSON object of a request, fast if possible, else strictly. Raises InputError."""
    request = decode_fast(body) or parse_body(InferRequest, body)
    outputs = _requested_outputs(request)
    tensors, n_bytes = _input_tensors(request.inputs)
    form = _input_form(tensors, len(request.inputs))
    return InferHead(
        request.id,
        request.model_name,
        form,
        _count_rows(form, tensors["indptr" if form == "sparse" else form]),
        tensors,
        n_bytes,
        outputs,
        _to_query(request, any(name == "probabilities" for name, _ in outputs)),
    )


read_cached: Final = lru_cache(MAX_CACHED_HEADS)(read_head)


def _to_query(request: InferRequest, probabilities: bool) -> PredictQuery:
    """Return the query of a request. An option without a value has its default."""
    options = request.parameters
    if options is None:
        return PredictQuery((), DEFAULT_TOP_K, probabilities=probabilities)
    return PredictQuery(
        instances=(),
        top_k=DEFAULT_TOP_K if options.top_k is None else options.top_k,
        allow=_to_list(options.allow),
        deny=_to_list(options.deny),
        min_score=options.min_score,
        min_probability=options.min_probability,
        label_thresholds=bool(options.label_thresholds),
        deadline_ms=options.deadline_ms,
        probabilities=probabilities,
    )


def _to_list(value: str | list[str] | None) -> list[str] | None:
    """Return one label as a list of one."""
    return [value] if isinstance(value, str) else value


def _requested_outputs(request: InferRequest) -> list[tuple[str, bool]]:
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


def _input_tensors(inputs: Sequence[Any]) -> tuple[dict[str, InputTensor], int]:
    """Return the tensors by name, and the bytes that follow the JSON object.

    inputs: `InferInput` or its counterpart of the fast decoder.
    """
    tensors, begin = {}, 0
    for i, given in enumerate(inputs):
        size = given.parameters.binary_data_size if given.parameters else None
        if (size is None) == (given.data is None):
            raise InputError(
                f"inputs[{i}] needs either data or binary_data_size",
                code="TENSOR_DATA",
                loc=f"inputs[{i}]",
            )
        tensors[given.name] = InputTensor(
            given.name,
            f"inputs[{i}]",
            given.datatype,
            given.shape,
            math.prod(given.shape),
            given.data,
            begin,
            size,
        )
        begin += size or 0
    return tensors, begin


def _input_form(tensors: dict[str, InputTensor], n_inputs: int) -> str:
    """Return the form of the rows. Raises InputError for wrong tensors or datatypes."""
    form = INPUT_FORMS.get(frozenset(tensors))
    if form is None or len(tensors) < n_inputs:
        raise InputError(
            "send text, dense, or indptr with indices and values, each tensor once",
            code="ROW_KIND",
            loc="inputs",
        )
    for name, tensor in tensors.items():
        if tensor.datatype not in DATATYPES[name]:
            message = (
                f"{tensor.location}: {name} is {tensor.datatype}; expected "
                f"{' or '.join(DATATYPES[name])}"
            )
            raise InputError(message, code="DATATYPE", loc=tensor.location)
    return form


def _count_rows(form: str, tensor: InputTensor) -> int:
    """Return the number of rows. Raises InputError for a wrong shape or no rows."""
    shape = tensor.shape
    n_dimensions = 2 if form == "dense" else 1
    if len(shape) == n_dimensions or (form == "text" and shape[1:] == [1]):
        count = shape[0] - (form == "sparse")
        if count < 1:
            raise InputError(
                "the inputs have no rows: send at least one", code="INSTANCES", loc="inputs"
            )
        return count
    expected = {"text": "[n] or [n, 1]", "dense": "[n, features]", "sparse": "[n + 1]"}[form]
    raise InputError(
        f"{tensor.name} has shape {shape}; expected {expected}",
        code="TENSOR_SHAPE",
        loc="inputs",
    )
