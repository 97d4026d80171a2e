"""Answers as tensors: in JSON, or as bytes behind it; and what a model takes and gives."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from xcray.errors import InputError
from xcray.predict import Predictor
from xcray.service.inference_v2.asking import Asked
from xcray.service.inference_v2.tensors import Numbers, binary_of
from xcray.service.prediction.encode import names_of
from xcray.service.prediction.handler import Told
from xcray.service.schemas.inference import ModelMetadata, TensorMetadata

PLATFORM: Final = "xcray_linear"
_ENCODER: Final = msgspec.json.Encoder()


def reply(told: Told, asked: Asked) -> tuple[bytes, int | None]:
    """The body of a reply; and how long its JSON object is, when bytes follow it."""
    outputs, behind = [], []
    for name, as_bytes in asked.outputs:
        datatype, shape, values = _tensor(told, name)
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if as_bytes:
            behind.append(binary_of(values))
            entry["parameters"] = {"binary_data_size": len(behind[-1])}
        else:
            entry["data"] = values if isinstance(values, list) else values.tolist()
        outputs.append(entry)
    head = {"model_name": told.loaded.name, "model_version": str(told.loaded.version)}
    if asked.id is not None:
        head["id"] = asked.id
    written = _ENCODER.encode({**head, "outputs": outputs})
    return (b"".join((written, *behind)), len(written)) if behind else (written, None)


def metadata(name: str, versions: list[int], predictor: Predictor) -> ModelMetadata:
    """What a version takes and gives."""
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
    given = {"labels": "BYTES", "scores": "FP64", "label_ids": "INT64"} | (
        {"probabilities": "FP64"} if predictor.likely is not None else {}
    )
    outputs = [
        TensorMetadata(name=tensor, datatype=datatype, shape=[-1, -1])  # type: ignore[arg-type]
        for tensor, datatype in given.items()
    ]
    outputs.append(TensorMetadata(name="exact", datatype="BOOL", shape=[-1]))
    return ModelMetadata(
        name=name,
        versions=[str(each) for each in versions],
        platform=PLATFORM,
        inputs=inputs,
        outputs=outputs,
    )


def _tensor(told: Told, name: str) -> tuple[str, list[int], Numbers | list[str]]:
    """Datatype, shape and elements of an output."""
    labels = told.answer.labels
    shape = list(labels.shape)
    if name == "labels":
        names = names_of(told.loaded.predictor.model.label_names, labels)
        return "BYTES", shape, list(chain.from_iterable(names))
    if name == "scores":
        return "FP64", shape, told.answer.scores.ravel()
    if name == "label_ids":
        return "INT64", shape, labels.astype(np.int64).ravel()
    if name == "exact":
        return "BOOL", shape[:1], told.answer.exact
    if told.probabilities is None:
        raise InputError("probabilities were not asked for", code="OUTPUTS", loc="outputs")
    return "FP64", shape, told.probabilities.ravel()
