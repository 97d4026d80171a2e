"""Input rows of an inference request, converted to the same model rows as in /v1."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from xcray.arrays import CSR, csr
from xcray.errors import InputError
from xcray.kernels.canonical import first_fault
from xcray.model.model import Model
from xcray.service.inference_v2.tensors import Numbers
from xcray.service.schemas.base import FLOAT32_MAX


class TextRows(NamedTuple):
    """Texts, one per row."""

    texts: list[str]

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return len(self.texts)

    def to_rows(self, model: Model) -> list[str]:
        """Return the texts. Raises InputError NO_TEXT if the model has no text pipeline."""
        if model.text is None:
            raise InputError(
                "the model was not trained on text: send indptr, indices and values",
                code="NO_TEXT",
                loc="inputs",
            )
        return self.texts


class SparseRows(NamedTuple):
    """Sparse rows: row i has the entries indptr[i] to indptr[i + 1], with features in any order."""

    indptr: Numbers
    indices: Numbers
    values: Numbers

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return len(self.indptr) - 1

    def to_rows(self, model: Model) -> CSR:
        """Return the rows as CSR with ascending features.

        Raises InputError with code ROW_LENGTHS, INDEX_RANGE, DUP_INDEX or NOT_FINITE.
        """
        rows = self._valid_rows(model.n_features)
        return self._checked_rows(model.n_features) if rows is None else rows

    def _valid_rows(self, n_features: int) -> CSR | None:
        """Return rows that are valid and ascending in one pass, otherwise None."""
        if len(self.indices) != len(self.values) or not self._has_all_entries():
            return None
        if _is_too_large(self.values):
            return None
        rows = csr(self.indptr, self.indices, self.values, n_features)
        is_wide = self.indices.dtype.itemsize > 4
        if is_wide and np.count_nonzero(rows.indices != self.indices):
            return None
        return rows if first_fault(rows)[0] == 0 else None

    def _has_all_entries(self) -> bool:
        """Return whether the rows begin with the first entry and end with the last one."""
        return bool(self.indptr.item(0) == 0 and self.indptr.item(-1) == len(self.indices))

    def _checked_rows(self, n_features: int) -> CSR:
        """Return rows with features in any order. Raises as `to_rows`."""
        indptr, indices = self.indptr.astype(np.int64), self.indices.astype(np.int64)
        n_entries = len(indices)
        if not self._has_all_entries() or bool((np.diff(indptr) < 0).any()):
            raise InputError(
                f"indptr must start at 0, never decrease, and end at {n_entries:,}, the length of "
                "indices",
                code="ROW_LENGTHS",
                loc="indptr",
            )
        if len(self.values) != n_entries:
            raise InputError(
                f"there are {n_entries:,} indices but {len(self.values):,} values",
                code="ROW_LENGTHS",
                loc="values",
            )
        invalid = np.flatnonzero((indices < 0) | (indices >= n_features))
        if len(invalid):
            message = (
                f"indices has {int(indices[invalid[0]])}; the features of the model are 0 to "
                f"{n_features - 1}"
            )
            raise InputError(message, code="INDEX_RANGE", loc="indices")
        values = _to_float32(self.values, "values")
        keys = indices
        if self.n_rows > 1:
            rows = np.repeat(np.arange(self.n_rows, dtype=np.int64), np.diff(indptr))
            keys = rows * n_features + indices
        order = np.argsort(keys, kind="stable")
        duplicates = np.flatnonzero(np.diff(keys[order]) == 0)
        if len(duplicates):
            first = int(keys[order[duplicates[0]]])
            row, index = divmod(first, n_features)
            raise InputError(
                f"row {row} has index {index} twice: send each once",
                code="DUP_INDEX",
                loc="indices",
            )
        return csr(indptr, indices[order].astype(np.int32), values[order], n_features)


class DenseRows(NamedTuple):
    """Dense rows: (n, features) values."""

    values: Numbers

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return len(self.values)

    def to_rows(self, model: Model) -> CSR:
        """Return the rows as CSR, without zeros. Raises InputError with code DIM or NOT_FINITE."""
        n_rows, n_columns = self.values.shape
        if n_columns != model.n_features:
            message = (
                f"dense has {n_columns:,} columns, the model has {model.n_features:,} features"
            )
            raise InputError(
                f"{message}: send all columns, or sparse rows", code="DIM", loc="dense"
            )
        values = _to_float32(self.values, "dense")
        rows, columns = np.nonzero(values)
        indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=n_rows))))
        return csr(indptr, columns.astype(np.int32), values[rows, columns], model.n_features)


InputRows: TypeAlias = TextRows | SparseRows | DenseRows


def _is_too_large(values: Numbers) -> bool:
    """Return whether a finite value is outside the range of 32-bit floats."""
    return values.dtype.itemsize > 4 and bool(np.count_nonzero(np.abs(values) > FLOAT32_MAX))


def _to_float32(values: Numbers, location: str) -> Numbers:
    """Return values in single precision. Raises InputError NOT_FINITE if one is out of range."""
    if _is_too_large(values):
        raise InputError(
            f"{location} has a number outside the range of 32-bit floats",
            code="NOT_FINITE",
            loc=location,
        )
    return values.astype(np.float32)
