"""Replies of predictions as bytes, written once: what `schemas.PredictReply` describes, which a test compares."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from xcray.arrays import Float64
from xcray.index.search_result import Answer
from xcray.service.models.cache import Loaded

FEW: Final = 24  # names that are asked for one by one (0.6 us each); for more, Arrow's take is faster (12 us, and 0.05 us each)
AT_ONCE: Final = 65_536  # labels that are written in one go: large replies leave the interpreter to others now and then
_ENCODER: Final = msgspec.json.Encoder()


def predict_reply(
    loaded: Loaded, answer: Answer, certificate: bool, probabilities: Float64 | None
) -> bytes:
    """The reply of the version that is `loaded`. probabilities: (n, k), when they were asked for."""
    n_rows, k = answer.labels.shape
    step = max(1, AT_ONCE // max(1, k))
    if n_rows <= step:
        predictions = _predictions(loaded, answer, certificate, probabilities)
        return _ENCODER.encode({"model": msgspec.Raw(loaded.answerer), "predictions": predictions})
    parts = []
    for begin in range(0, n_rows, step):
        rows = slice(begin, begin + step)
        some = None if probabilities is None else probabilities[rows]
        part = _predictions(
            loaded, Answer._make([each[rows] for each in answer]), certificate, some
        )
        parts.append(_ENCODER.encode(part)[1:-1])
    return b'{"model":' + loaded.answerer + b',"predictions":[' + b",".join(parts) + b"]}"


def _predictions(
    loaded: Loaded, answer: Answer, certificate: bool, probabilities: Float64 | None
) -> list[dict[str, Any]]:
    """What is said of each row."""
    names = names_of(loaded.predictor.model.label_names, answer.labels)
    predictions: list[dict[str, Any]] = [
        {"labels": row, "scores": scores}
        for row, scores in zip(names, answer.scores.tolist(), strict=True)
    ]
    if probabilities is not None:
        for prediction, row in zip(predictions, probabilities.tolist(), strict=True):
            prediction["probabilities"] = row
    if certificate:
        for i, prediction in enumerate(predictions):
            prediction["certificate"] = _certificate(answer, i)
    return predictions


def names_of(names: pa.LargeStringArray, labels: np.ndarray) -> list[list[str]]:
    """Names of label numbers (n, k), row by row."""
    n_rows, k = labels.shape
    flat = labels.ravel()
    if len(flat) > FEW:
        found = names.take(pa.array(flat)).to_pylist()
    else:
        found = [names[j].as_py() for j in flat.tolist()]
    return [found[i * k : (i + 1) * k] for i in range(n_rows)]


def _certificate(answer: Answer, row: int) -> dict[str, Any]:
    """The proof of one row."""
    gap = float(answer.bound_gap[row])
    return {
        "exact": bool(answer.exact[row]),
        "labels_scored": int(answer.labels_scored[row]),
        "postings_read": int(answer.postings_read[row]),
        "bound_gap": gap if math.isfinite(gap) else None,
    }
