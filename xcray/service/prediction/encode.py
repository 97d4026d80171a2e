"""Encoding of predict replies as JSON bytes.

The bytes match `PredictReply`; a test compares both.
"""

from __future__ import annotations

import math
from itertools import compress
from typing import Any, Final

import msgspec
import numpy as np

from xcray.arrays import Float64
from xcray.index.search_result import Bools, SearchResult
from xcray.predict.input_warnings import empty_rows_warning
from xcray.predict.ranking import origin_views
from xcray.service.models.cache import LoadedModel

# labels encoded per call: between chunks of a large reply, other threads can take the interpreter
# lock
LABELS_PER_CHUNK: Final = 65_536
_ENCODER: Final = msgspec.json.Encoder()


def encode_predict_reply(
    loaded: LoadedModel,
    result: SearchResult,
    certificate: bool,
    probabilities: Float64 | None,
    empty: Bools,
    keep: Bools | None = None,
) -> bytes:
    """Return the reply of a model version as JSON.

    probabilities: (n, k) if requested, else None. empty: (n,), which rows have no feature. keep:
    (n, k), which labels the reply has; None: all.
    """
    listed = [_empty_rows_warning(empty)] if np.count_nonzero(empty) else []
    listed += [_partial_warning(result)] if np.count_nonzero(result.missing) else []
    warnings = {"warnings": listed} if listed else {}
    n_rows, k = result.labels.shape
    step = max(1, LABELS_PER_CHUNK // max(1, k))
    if n_rows <= step:
        predictions = _to_predictions(loaded, result, certificate, probabilities, keep)
        return _ENCODER.encode(
            {"model": msgspec.Raw(loaded.served_by), "predictions": predictions, **warnings}
        )
    parts = []
    for begin in range(0, n_rows, step):
        rows = slice(begin, begin + step)
        part_probabilities = None if probabilities is None else probabilities[rows]
        part = _to_predictions(
            loaded,
            SearchResult._make([column[rows] for column in result]),
            certificate,
            part_probabilities,
            None if keep is None else keep[rows],
        )
        parts.append(_ENCODER.encode(part)[1:-1])
    head = b'{"model":' + loaded.served_by + b',"predictions":[' + b",".join(parts) + b"]"
    return head + b"," + _ENCODER.encode(warnings)[1:] if warnings else head + b"}"


def _empty_rows_warning(empty: Bools) -> dict[str, Any]:
    """Return the warning about rows without a feature, with their numbers."""
    instances = np.flatnonzero(empty).tolist()
    return {**empty_rows_warning(len(empty), len(instances)), "instances": instances}


def _partial_warning(result: SearchResult) -> dict[str, Any]:
    """Return the warning about instances that were not searched in all labels."""
    instances = np.flatnonzero(result.missing).tolist()
    message = (
        f"up to {int(result.missing.max()):,} labels were not searched for {len(instances):,} "
        "rows, because their shard does not answer: better labels can be among them"
    )
    return {"code": "PARTIAL", "message": message, "instances": instances}


def _to_predictions(
    loaded: LoadedModel,
    result: SearchResult,
    certificate: bool,
    probabilities: Float64 | None,
    keep: Bools | None,
) -> list[dict[str, Any]]:
    """Return one JSON-ready dict per row."""
    names = loaded.label_names.rows(result.labels)
    predictions: list[dict[str, Any]] = [
        {"labels": row, "scores": scores}
        for row, scores in zip(names, result.scores.tolist(), strict=True)
    ]
    if loaded.display_names is not None:
        shown = loaded.display_names.rows(result.labels)
        for prediction, row in zip(predictions, shown, strict=True):
            prediction["names"] = row
    if result.is_ranked:
        for prediction, origins in zip(predictions, origin_views(result), strict=True):
            prediction["origins"] = origins
    if probabilities is not None:
        for prediction, row in zip(predictions, probabilities.tolist(), strict=True):
            prediction["probabilities"] = row
    if keep is not None:
        for prediction, kept in zip(predictions, keep.tolist(), strict=True):
            for name, values in prediction.items():
                prediction[name] = list(compress(values, kept))
    if certificate:
        for i, prediction in enumerate(predictions):
            prediction["certificate"] = _certificate(result, i)
    return predictions


def _certificate(result: SearchResult, row: int) -> dict[str, Any]:
    """Return the certificate of one row."""
    gap = float(result.bound_gap[row])
    return {
        "exact": bool(result.exact[row]),
        "labels_scored": int(result.labels_scored[row]),
        "postings_read": int(result.postings_read[row]),
        "bound_gap": gap if math.isfinite(gap) else None,
    }
