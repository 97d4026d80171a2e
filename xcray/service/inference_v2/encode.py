"""Encoding of inference replies and model metadata as JSON and binary tensors."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from xcray.errors import InputError
from xcray.predict import Predictor
from xcray.service.inference_v2.head import InferHead
from xcray.service.inference_v2.tensors import Numbers, numbers_to_binary, strings_to_binary
from xcray.service.prediction.handler import InferenceResult
from xcray.service.schemas.inference import ModelMetadata, TensorMetadata

LINEAR: Final = "xcray_linear"
STAGES: Final = "xcray_stages"
LOWEST_SCORE: Final = float(np.finfo(np.float64).min)  # JSON has no infinity
_TENSOR_STARTS: Final = {
    name: b'{"name":"%b","datatype":"%b",' % (name.encode(), datatype)
    for name, datatype in {
        "labels": b"BYTES",
        "scores": b"FP64",
        "label_ids": b"INT64",
        "probabilities": b"FP64",
        "exact": b"BOOL",
    }.items()
}
_ENCODER: Final = msgspec.json.Encoder()


def encode_reply(result: InferenceResult, head: InferHead) -> tuple[bytes, int | None]:
    """Return the body of a reply, and the length of its JSON object if binary tensors follow it."""
    tensors, parts = [], []
    result = _move_kept_first(result)
    n_rows, k = result.search.labels.shape
    for name, as_bytes in head.outputs:
        if as_bytes:
            parts.append(_to_binary(result, name))
            content = b'"parameters":{"binary_data_size":%d}' % len(parts[-1])
        else:
            content = b'"data":' + _ENCODER.encode(_to_list(result, name))
        shape = b"%d" % n_rows if name == "exact" else b"%d,%d" % (n_rows, k)
        tensors.append(b'%b"shape":[%b],%b}' % (_TENSOR_STARTS[name], shape, content))
    json_bytes = b'{"model_name":%b,"model_version":"%d"%b,"outputs":[%b]}' % (
        _ENCODER.encode(result.loaded.name),
        result.loaded.version,
        b"" if head.id is None else b',"id":' + _ENCODER.encode(head.id),
        b",".join(tensors),
    )
    return (b"".join((json_bytes, *parts)), len(json_bytes)) if parts else (json_bytes, None)


def model_metadata(name: str, versions: list[int], predictor: Predictor) -> ModelMetadata:
    """Return the input and output tensors of a version."""
    model = predictor.model
    forms = [("text", "text", "BYTES", [-1])] if model.text is not None else []
    forms += [
        ("indptr", "sparse", "INT64", [-1]),
        ("indices", "sparse", "INT32", [-1]),
        ("values", "sparse", "FP32", [-1]),
    ]
    forms += [("dense", "dense", "FP32", [-1, model.n_features])]
    inputs = [
        TensorMetadata(name=tensor, datatype=datatype, shape=shape, parameters={"form": form})  # type: ignore[arg-type]
        for tensor, form, datatype, shape in forms
    ]
    datatypes = {"labels": "BYTES", "scores": "FP64", "label_ids": "INT64"} | (
        {"probabilities": "FP64"} if predictor.probability_source is not None else {}
    )
    outputs = [
        TensorMetadata(name=tensor, datatype=datatype, shape=[-1, -1])  # type: ignore[arg-type]
        for tensor, datatype in datatypes.items()
    ]
    outputs.append(TensorMetadata(name="exact", datatype="BOOL", shape=[-1]))
    return ModelMetadata(
        name=name,
        versions=[str(version) for version in versions],
        platform=STAGES if model.stages else LINEAR,
        inputs=inputs,
        outputs=outputs,
    )


def _move_kept_first(result: InferenceResult) -> InferenceResult:
    """Return a result whose rows begin with the labels that reach the thresholds.

    Tensors have rows of one length, that of the longest: shorter rows end with the label number -1,
    the lowest score and the probability 0.
    """
    if result.keep is None:
        return result
    length = int(np.count_nonzero(result.keep, axis=1).max())
    order = np.argsort(~result.keep, axis=1, kind="stable")[:, :length]
    is_label = np.take_along_axis(result.keep, order, axis=1)

    def reorder(values: Any, rest: float) -> Any:
        return np.where(is_label, np.take_along_axis(values, order, axis=1), rest)

    search = result.search
    return result._replace(
        search=search._replace(
            labels=reorder(search.labels, -1).astype(np.int32),
            scores=reorder(search.scores, LOWEST_SCORE),
        ),
        probabilities=None if result.probabilities is None else reorder(result.probabilities, 0.0),
    )


def _to_binary(result: InferenceResult, name: str) -> bytes:
    """Return an output tensor as bytes."""
    if name == "labels":
        return strings_to_binary(result.loaded.label_names.utf8(result.search.labels))
    return numbers_to_binary(_numbers(result, name))


def _to_list(result: InferenceResult, name: str) -> list[Any]:
    """Return the elements of an output tensor."""
    if name == "labels":
        return result.loaded.label_names.texts(result.search.labels)
    return list(_numbers(result, name).ravel().tolist())


def _numbers(result: InferenceResult, name: str) -> Numbers:
    """Return a numeric output tensor."""
    if name == "scores":
        return result.search.scores
    if name == "label_ids":
        return result.search.labels.astype(np.int64)
    if name == "exact":
        return result.search.exact
    if result.probabilities is None:
        raise InputError("probabilities were not requested", code="OUTPUTS", loc="outputs")
    return result.probabilities
