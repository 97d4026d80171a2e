"""Which labels may be answered: allow and deny lists, made once and used by any number of queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from xcray.arrays import Int32, frozen
from xcray.errors import NotFound, ParameterError


class LabelFilter(NamedTuple):
    """allowed: (K,) uint8, 1 for labels that may be answered; labels: (m,) int32, their numbers, ascending."""

    allowed: NDArray[np.uint8]
    labels: Int32

    @classmethod
    def of(
        cls, n_labels: int, allow: Sequence[int] | Any = None, deny: Sequence[int] | Any = None
    ) -> Self:
        """Labels of `allow` (None: all) that are not in `deny`, given by number in any order, repeats allowed.

        Raises NotFound for a number that is no label, ParameterError when no label is left.
        """
        mask = np.ones(n_labels, np.uint8) if allow is None else np.zeros(n_labels, np.uint8)
        if allow is not None:
            mask[_numbers(allow, n_labels)] = 1
        if deny is not None:
            mask[_numbers(deny, n_labels)] = 0
        kept = np.flatnonzero(mask)
        if not len(kept):
            raise ParameterError(
                "no label is allowed: give `allow` a label that `deny` does not name",
                code="NO_LABELS",
            )
        return cls(frozen(mask, np.uint8), frozen(kept, np.int32))


def _numbers(labels: Any, n_labels: int) -> NDArray[np.int64]:
    """Label numbers, each checked."""
    numbers = np.asarray(labels)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise ParameterError(
            f"labels of a filter are numbers, not {numbers.dtype}; use Model.label_id for names"
        )
    out = numbers.astype(np.int64).reshape(-1)
    bad = out[(out < 0) | (out >= n_labels)]
    if len(bad):
        raise NotFound(
            f"there is no label number {int(bad[0])}: the model has labels 0 to {n_labels - 1}"
        )
    return out
