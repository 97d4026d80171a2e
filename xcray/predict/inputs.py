"""What a predictor takes: texts, documents of fields, or rows of features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xcray.arrays import CSR, csr_from
from xcray.data.text.fields import document
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import InputError, excerpt
from xcray.model.model import Model


def texts_of(rows: Any, model: Model) -> list[str] | None:
    """Return a text or document, or a list or column of them, as texts; None for other rows.

    Raises ParameterError for a field that the model does not have, InputError if only some rows are
    texts or documents.
    """
    if isinstance(rows, CSR):  # a tuple, but not of texts
        return None
    if isinstance(rows, str | Mapping):
        rows = [rows]
    if getattr(rows, "ndim", 0) == 1 and hasattr(rows, "tolist"):  # of a data frame, or an array
        rows = rows.tolist()
    if not isinstance(rows, (list, tuple)):
        return None
    other = [i for i, row in enumerate(rows) if not isinstance(row, str | Mapping)]
    if not other:
        return [row if isinstance(row, str) else document(row, model.text_fields) for row in rows]
    if len(other) < len(rows):
        raise InputError(
            f"row {other[0]} is {excerpt(repr(rows[other[0]]))}: give a text for each row",
            code="ROWS",
        )
    return None


def matrix_of(rows: Any, n_features: int) -> CSR:
    """Return a matrix of any type as rows of features. Raises InputError for other types."""
    try:
        return csr_from(rows, n_features)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"rows of type {type(rows).__name__} can't be read ({error}); use a CSR, a scipy "
            "sparse matrix, a 2-d array of numbers, a list of texts, or documents as of "
            "frame.to_dict('records')",
            code="ROWS",
        ) from None


def text_pipeline(model: Model) -> TextPipeline:
    """Return a model's text pipeline. Raises InputError NO_TEXT if it has none."""
    if model.text is None:
        raise InputError(
            "this model was trained on feature rows and has no text pipeline: use rows of "
            f"{model.n_features} features, or train it on a data set built from text",
            code="NO_TEXT",
        )
    return model.text
