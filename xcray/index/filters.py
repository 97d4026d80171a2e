"""Label filters: allow and deny lists, built once and used by any number of queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from xcray.arrays import Int32, frozen
from xcray.errors import NotFound, ParameterError


class LabelFilter(NamedTuple):
    """The labels that can be returned by a search.

    allowed: (K,) uint8, 1 for allowed labels. labels: (m,) int32, their numbers, ascending.
    """

    allowed: NDArray[np.uint8]
    labels: Int32

    @classmethod
    def of(
        cls, n_labels: int, allow: Sequence[int] | Any = None, deny: Sequence[int] | Any = None
    ) -> Self:
        """Return a filter of the labels in `allow` (None: all) that are not in `deny`.

        allow, deny: label numbers in any order, duplicates allowed. Raises NotFound for an invalid
        label number, ParameterError if no label is left.
        """
        mask = np.ones(n_labels, np.uint8) if allow is None else np.zeros(n_labels, np.uint8)
        if allow is not None:
            mask[_check_numbers(allow, n_labels)] = 1
        if deny is not None:
            mask[_check_numbers(deny, n_labels)] = 0
        allowed_labels = np.flatnonzero(mask)
        if not len(allowed_labels):
            raise ParameterError(
                "no label is allowed: add a label to `allow` that is not in `deny`",
                code="NO_LABELS",
            )
        return cls(frozen(mask, np.uint8), frozen(allowed_labels, np.int32))


def _check_numbers(labels: Any, n_labels: int) -> NDArray[np.int64]:
    """Return label numbers after validating them."""
    numbers = np.asarray(labels)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise ParameterError(
            f"labels of a filter must be numbers, not {numbers.dtype}; use Model.label_id for names"
        )
    out = numbers.astype(np.int64).reshape(-1)
    invalid = out[(out < 0) | (out >= n_labels)]
    if len(invalid):
        raise NotFound(
            f"there is no label number {int(invalid[0])}: the labels of the model are 0 to "
            f"{n_labels - 1}"
        )
    return out
