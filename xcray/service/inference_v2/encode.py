"""Encoding of inference replies and model metadata as JSON and binary tensors."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from xcray.errors import InputError
from xcray.predict import Predictor
from xcray.service.inference_v2.decode import DecodedRequest
from xcray.service.inference_v2.tensors import Numbers, to_binary
from xcray.service.prediction.encode import to_label_names
from xcray.service.prediction.handler import InferenceResult
from xcray.service.schemas.inference import ModelMetadata, TensorMetadata

LINEAR: Final = "xcray_linear"
STAGES: Final = "xcray_stages"
_ENCODER: Final = msgspec.json.Encoder()


def encode_reply(result: InferenceResult, decoded: DecodedRequest) -> tuple[bytes, int | None]:
    """Return the body of a reply, and the length of its JSON object if binary tensors follow it."""
    outputs, binary_parts = [], []
    for name, as_bytes in decoded.outputs:
        datatype, shape, values = _output_tensor(result, name)
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if as_bytes:
            binary_parts.append(to_binary(values))
            entry["parameters"] = {"binary_data_size": len(binary_parts[-1])}
        else:
            entry["data"] = values if isinstance(values, list) else values.tolist()
        outputs.append(entry)
    head = {"model_name": result.loaded.name, "model_version": str(result.loaded.version)}
    if decoded.id is not None:
        head["id"] = decoded.id
    json_bytes = _ENCODER.encode({**head, "outputs": outputs})
    return (
        (b"".join((json_bytes, *binary_parts)), len(json_bytes))
        if binary_parts
        else (json_bytes, None)
    )


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
        platform=STAGES if model.linear is None else LINEAR,
        inputs=inputs,
        outputs=outputs,
    )


def _output_tensor(
    result: InferenceResult, name: str
) -> tuple[str, list[int], Numbers | list[str]]:
    """Return datatype, shape and elements of an output tensor."""
    labels = result.search.labels
    shape = list(labels.shape)
    if name == "labels":
        names = to_label_names(result.loaded.predictor.model.label_names, labels)
        return "BYTES", shape, list(chain.from_iterable(names))
    if name == "scores":
        return "FP64", shape, result.search.scores.ravel()
    if name == "label_ids":
        return "INT64", shape, labels.astype(np.int64).ravel()
    if name == "exact":
        return "BOOL", shape[:1], result.search.exact
    if result.probabilities is None:
        raise InputError("probabilities were not requested", code="OUTPUTS", loc="outputs")
    return "FP64", shape, result.probabilities.ravel()
