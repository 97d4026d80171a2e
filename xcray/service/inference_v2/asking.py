"""An inference request: from its body to what is asked of a model."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from xcray.errors import InputError
from xcray.service.http.body import parse
from xcray.service.inference_v2.rows import Dense, Rows, Sparse, Texts
from xcray.service.inference_v2.tensors import numbers, split, texts
from xcray.service.prediction.fast_decode import Ask
from xcray.service.schemas.inference import InferInput, InferParameters, InferRequest
from xcray.service.settings import Settings

FORMS: Final[dict[str, frozenset[str]]] = {
    "text": frozenset({"text"}),
    "sparse": frozenset({"indptr", "indices", "values"}),
    "dense": frozenset({"dense"}),
}
KINDS: Final = {
    **dict.fromkeys(("indptr", "indices"), ("INT64", "INT32")),
    **dict.fromkeys(("values", "dense"), ("FP32", "FP64")),
    "text": ("BYTES",),
}
ALWAYS: Final = ("labels", "scores", "label_ids")


class Asked(NamedTuple):
    """A request: rows or texts, what is asked of them, and the tensors wanted: (name, whether as bytes)."""

    id: str | None
    rows: Rows
    ask: Ask
    outputs: list[tuple[str, bool]]


def read(body: bytes, header_length: int | None, name: str, settings: Settings) -> Asked:
    """A body as a request to the model `name`; its JSON object ends after `header_length` bytes, None: with the body.

    Raises InputError with the mend.
    """
    end = len(body) if header_length is None else header_length
    if end > len(body):
        raise InputError(
            f"Inference-Header-Content-Length is {end:,}, the body has {len(body):,} bytes",
            code="TENSOR_SIZE",
        )
    found = parse(InferRequest, body[:end])
    if found.model_name not in (None, name):
        raise InputError(
            "model_name is not the model of the path: leave it out",
            code="MODEL_NAME",
            loc="model_name",
        )
    options = found.parameters or InferParameters.model_validate({})
    outputs = _outputs(found, options)
    rows = _rows(found.inputs, split(found.inputs, memoryview(body)[end:]), settings.max_instances)
    ask = Ask(
        instances=(),
        top_k=options.top_k,
        allow=_listed(options.allow),
        deny=_listed(options.deny),
        deadline_ms=options.deadline_ms,
        probabilities="probabilities" in dict(outputs),
    )
    return Asked(found.id, rows, ask, outputs)


def _listed(given: str | list[str] | None) -> list[str] | None:
    """One label is a list of one."""
    return [given] if isinstance(given, str) else given


def _outputs(found: InferRequest, options: InferParameters) -> list[tuple[str, bool]]:
    """The tensors wanted, each once, and whether as bytes."""
    if found.outputs is None:
        names = [*ALWAYS, *(["probabilities"] if options.probabilities else [])]
        return [(name, options.binary_data_output) for name in names]
    out = []
    for wanted in found.outputs:
        own = wanted.parameters.binary_data if wanted.parameters else None
        out.append((str(wanted.name), options.binary_data_output if own is None else own))
    if len(dict(out)) < len(out):
        raise InputError("an output is named twice: name each once", code="OUTPUTS", loc="outputs")
    return out


def _rows(inputs: list[InferInput], parts: list[memoryview | None], most: int) -> Rows:
    """The tensors as one of the three forms."""
    given: dict[str, int] = {tensor.name: i for i, tensor in enumerate(inputs)}
    form = next((form for form, names in FORMS.items() if names == set(given)), None)
    if form is None or len(given) < len(inputs):
        raise InputError(
            "send text, or dense, or indptr with indices and values; each once",
            code="ROW_KIND",
            loc="inputs",
        )
    for i, tensor in enumerate(inputs):
        if tensor.datatype not in KINDS[tensor.name]:
            told = f"inputs[{i}]: {tensor.name} is {tensor.datatype}, {' or '.join(KINDS[tensor.name])} was expected"
            raise InputError(told, code="DATATYPE", loc=f"inputs[{i}]")
    _check_count(form, inputs[given["indptr" if form == "sparse" else form]], most)

    def array(name: str) -> np.ndarray:
        i = given[name]
        return numbers(inputs[i], parts[i], f"inputs[{i}]")

    if form == "text":
        return Texts(texts(inputs[0], parts[0], "inputs[0]"))
    if form == "dense":
        return Dense(array("dense").reshape(inputs[0].shape))
    return Sparse(array("indptr"), array("indices"), array("values"))


def _check_count(form: str, tensor: InferInput, most: int) -> None:
    """Refuse shapes that are not those of rows, and too many rows, before their elements are looked at."""
    shape = tensor.shape
    if {
        "text": len(shape) == 1 or shape[1:] == [1],
        "dense": len(shape) == 2,
        "sparse": len(shape) == 1,
    }[form]:
        count = shape[0] - (form == "sparse")
        if count < 1:
            raise InputError(
                "there is no row in the inputs: send at least one", code="INSTANCES", loc="inputs"
            )
        if count > most:
            raise InputError(
                f"{count:,} rows are more than the {most:,} of one request: send several",
                code="INSTANCES",
                limit=most,
            )
        return
    expected = {"text": "[n] or [n, 1]", "dense": "[n, features]", "sparse": "[n + 1]"}[form]
    raise InputError(
        f"{tensor.name} has shape {shape}, {expected} was expected",
        code="TENSOR_SHAPE",
        loc="inputs",
    )
