"""What a request asks about, in the form in which a predictor takes it; the same rows that /v1 would make."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from xcray.arrays import CSR, csr
from xcray.errors import InputError
from xcray.model.model import Model
from xcray.service.inference_v2.tensors import Numbers
from xcray.service.schemas.base import FLOAT32_MAX


class Texts(NamedTuple):
    """Texts, one a row."""

    texts: list[str]

    @property
    def n_rows(self) -> int:
        """How many."""
        return len(self.texts)

    def given(self, model: Model) -> list[str]:
        """The same. Raises InputError NO_TEXT for a model that knows only features."""
        if model.text is None:
            raise InputError(
                "this model was not trained on text: send indptr, indices and values",
                code="NO_TEXT",
                loc="inputs",
            )
        return self.texts


class Sparse(NamedTuple):
    """Sparse rows: row i has the entries indptr[i] to indptr[i + 1], features in any order."""

    indptr: Numbers
    indices: Numbers
    values: Numbers

    @property
    def n_rows(self) -> int:
        """How many."""
        return len(self.indptr) - 1

    def given(self, model: Model) -> CSR:
        """Rows of the model. Raises InputError ROW_LENGTHS, INDEX_RANGE, DUP_INDEX, NOT_FINITE."""
        indptr, indices = self.indptr.astype(np.int64), self.indices.astype(np.int64)
        n_entries = len(indices)
        if indptr[0] != 0 or bool((np.diff(indptr) < 0).any()) or indptr[-1] != n_entries:
            raise InputError(
                f"indptr must begin with 0, never fall, and end with the {n_entries:,} of indices",
                code="ROW_LENGTHS",
                loc="indptr",
            )
        if len(self.values) != n_entries:
            raise InputError(
                f"there are {n_entries:,} indices and {len(self.values):,} values",
                code="ROW_LENGTHS",
                loc="values",
            )
        wrong = np.flatnonzero((indices < 0) | (indices >= model.n_features))
        if len(wrong):
            told = f"indices has {int(indices[wrong[0]])}, the model has features 0 to {model.n_features - 1}"
            raise InputError(told, code="INDEX_RANGE", loc="indices")
        values = _single(self.values, "values")
        rows = np.repeat(np.arange(self.n_rows, dtype=np.int64), np.diff(indptr))
        places = rows * model.n_features + indices
        order = np.argsort(places, kind="stable")
        twice = np.flatnonzero(np.diff(places[order]) == 0)
        if len(twice):
            first = order[twice[0]]
            told = f"row {int(rows[first])} has index {int(indices[first])} twice: give each once"
            raise InputError(told, code="DUP_INDEX", loc="indices")
        return csr(indptr, indices[order].astype(np.int32), values[order], model.n_features)


class Dense(NamedTuple):
    """(n x features) values."""

    values: Numbers

    @property
    def n_rows(self) -> int:
        """How many."""
        return len(self.values)

    def given(self, model: Model) -> CSR:
        """Rows of the model, without zeros. Raises InputError DIM, NOT_FINITE."""
        n_rows, n_columns = self.values.shape
        if n_columns != model.n_features:
            told = f"dense has {n_columns:,} columns, the model has {model.n_features:,} features"
            raise InputError(f"{told}: give all, or sparse rows", code="DIM", loc="dense")
        values = _single(self.values, "dense")
        rows, columns = np.nonzero(values)
        indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=n_rows))))
        return csr(indptr, columns.astype(np.int32), values[rows, columns], model.n_features)


Rows: TypeAlias = Texts | Sparse | Dense


def _single(values: Numbers, place: str) -> Numbers:
    """Values in single precision, as models are asked. Raises InputError for those beyond it."""
    if values.dtype.itemsize > 4 and bool((np.abs(values) > FLOAT32_MAX).any()):
        raise InputError(
            f"{place} has a number beyond those of 32 bits", code="NOT_FINITE", loc=place
        )
    return values.astype(np.float32)
