"""Dual variables of labels by row of the data, for warm starts."""

from __future__ import annotations

import numpy as np

from xcray.arrays import CSR, Int32, csr, frozen
from xcray.errors import ParameterError
from xcray.solvers.indexed_bcd.active_set import Duals
from xcray.solvers.indexed_bcd.one_vs_rest import HingeState


class DualRows:
    """Dual variables of some labels. start: (n, N) of a similar problem, or None.

    Raises ParameterError for a start of another shape.
    """

    def __init__(self, local: HingeState, labels: Int32, start: CSR | None) -> None:
        self._local, self._start = local, start
        self._shape = (len(labels), local.YT.n_cols)
        if start is not None and start.shape != self._shape:
            raise ParameterError(
                f"the start is {start.shape}; give one row of dual variables per label "
                f"and one column per sample: {self._shape}"
            )
        empty = (np.empty(0, np.int32), np.empty(0, np.float32))
        self._rows = [empty] * len(labels)

    def start_of(self, i: int) -> Duals | None:
        """Return the start of label number i; None if it has none."""
        if self._start is None:
            return None
        rows, values = self._start.row(i)
        positions = self._local.positions_of(frozen(rows[values > 0.0], np.int32))
        order = np.argsort(positions)
        chosen = values[values > 0.0][order].astype(np.float64)
        return Duals(frozen(positions[order], np.int64), chosen) if len(order) else None

    def store(self, i: int, duals: Duals) -> None:
        """Store the dual variables of label number i."""
        rows = self._local.selection.pages.rows[duals.rows]
        order = np.argsort(rows)
        self._rows[i] = (rows[order], duals.values[order].astype(np.float32))

    def merge(self) -> CSR:
        """Return the stored dual variables: (n, N)."""
        rows, values = (np.concatenate(parts) for parts in zip(*self._rows, strict=True))
        ends = np.cumsum([0, *(len(part) for part, _ in self._rows)])
        return csr(ends, rows, values, self._shape[1])
