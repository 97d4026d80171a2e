"""Validation of query rows, because kernels read them without bounds checks."""

from __future__ import annotations

from xcray.arrays import CSR
from xcray.errors import InputError, NotFound, ParameterError, ShapeMismatch
from xcray.index.filters import LabelFilter
from xcray.kernels.canonical import FAULTS, first_fault
from xcray.kernels.entry_points import DirectKernel

MAX_DEADLINE_MS = 86_400_000

_first_fault = DirectKernel(first_fault)


def check_rows(X: CSR, n_features: int) -> None:
    """Raise ShapeMismatch for an invalid matrix, InputError for values that are not finite."""
    if X.n_cols != n_features:
        raise ShapeMismatch(
            f"X has {X.n_cols} features, the model {n_features}; read it with "
            f"n_features={n_features}"
        )
    code, row = _first_fault(X)
    if code == 4:
        raise InputError(
            f"row {row} of X: {FAULTS[code]}; remove or replace NaN and infinity", code="NOT_FINITE"
        )
    if code:
        raise ShapeMismatch(
            f"row {row} of X: {FAULTS[code]}; create it with arrays.csr_from, which sorts and "
            "validates"
        )


def check_query(
    k: int, deadline_ms: float | None, label_filter: LabelFilter | None, n_labels: int
) -> None:
    """Raise ParameterError for an invalid k or deadline, ShapeMismatch for the filter."""
    if k < 1:
        raise ParameterError(f"k is {k}: it must be at least 1")
    if deadline_ms is not None and not 0 <= deadline_ms <= MAX_DEADLINE_MS:
        raise ParameterError(
            f"deadline_ms is {deadline_ms}: it must be from 0 to {MAX_DEADLINE_MS:,}, a day; leave "
            "it out for no limit"
        )
    if label_filter is not None and len(label_filter.allowed) != n_labels:
        raise ShapeMismatch(
            f"the filter is for {len(label_filter.allowed)} labels, the model has {n_labels}"
        )


def check_position(X: CSR, row: int, label: int, n_labels: int) -> None:
    """Raise NotFound unless the label exists, ShapeMismatch unless the row does."""
    if not 0 <= label < n_labels:
        raise NotFound(
            f"there is no label number {label}: the labels of the model are 0 to {n_labels - 1}"
        )
    if not 0 <= row < X.n_rows:
        raise ShapeMismatch(f"X has no row {row}: it has {X.n_rows}")
