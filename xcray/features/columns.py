"""Some of the columns of the input, as blocks of stagewise regression over sparse rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from xcray.arrays import CSR, Float32, Int64, csr, frozen
from xcray.errors import ParameterError
from xcray.features.pipeline import Rows, StoredPipeline, check_width


@dataclass(frozen=True)
class Columns(StoredPipeline):
    """The columns `numbers` of the input, in this order: sparse rows stay sparse.

    n_inputs: columns of the input. numbers: (n_outputs,) int64, ascending, without repeats.
    """

    kind: ClassVar[str] = "columns"
    n_inputs: int
    numbers: Int64

    @property
    def n_outputs(self) -> int:
        """Return the number of columns."""
        return len(self.numbers)

    def transform(self, rows: Rows) -> Rows:
        """Return the columns (n, n_outputs) of rows (n, n_inputs). Raises ShapeMismatch."""
        check_width(rows, self.n_inputs)
        if not isinstance(rows, CSR):
            taken: Float32 = np.ascontiguousarray(rows[:, self.numbers], np.float32)
            return taken
        position = np.full(self.n_inputs, -1, np.int32)
        position[self.numbers] = np.arange(self.n_outputs)
        indices = position[rows.indices]
        kept = indices >= 0
        counts = np.concatenate(([0], np.cumsum(kept)))
        return csr(counts[rows.indptr], indices[kept], rows.data[kept], self.n_outputs)

    def fields(self) -> tuple[dict[str, Any], dict[str, Float32]]:
        """Return the settings, and no arrays."""
        return {"n_inputs": self.n_inputs, "numbers": self.numbers.tolist()}, {}

    @classmethod
    def from_fields(cls, settings: Mapping[str, Any], arrays: Mapping[str, Float32]) -> Self:
        """Return the pipeline with these settings. Raises KeyError, TypeError or ValueError."""
        try:
            chosen = select_columns(settings["n_inputs"], np.asarray(settings["numbers"]))
        except ParameterError as error:
            raise ValueError(str(error)) from None
        return cls(chosen.n_inputs, chosen.numbers)


def select_columns(n_inputs: int, numbers: Int64) -> Columns:
    """Return the columns with these numbers, in any order, of n_inputs columns.

    Raises ParameterError for none, for a repeated one, or for one outside 0 .. n_inputs-1.
    """
    ascending = frozen(np.sort(numbers), np.int64)
    if not len(ascending) or ascending[0] < 0 or ascending[-1] >= n_inputs:
        raise ParameterError(f"columns must be some of 0 to {n_inputs - 1}")
    if (np.diff(ascending) == 0).any():
        raise ParameterError("columns must be without repeats")
    return Columns(n_inputs, ascending)


def column_blocks(n_inputs: int, order: Int64, size: int) -> list[Columns]:
    """Return blocks of `size` columns, the last one may have fewer, in the order of `order`.

    order: (m,) distinct column numbers: a random permutation samples without replacement.
    """
    return [
        select_columns(n_inputs, order[lo : lo + size]) for lo in range(0, len(order), max(size, 1))
    ]
