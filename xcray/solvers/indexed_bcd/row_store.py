"""Where the rows of a training are: the contract, and rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple, Protocol, TypeAlias

from xcray.arrays import CSR, Float64, Int32, Int64
from xcray.kernels.training.dual_hinge import HingeRows

# Entries of X between two checks of the stop flag: at most 100 ms.
SLICE_ENTRIES: Final = 10_000_000

# (first position, bytes to read, sizes of the pages) -> (next position, positions to read)
Plan: TypeAlias = Callable[[int, int, Int64], tuple[int, Int64]]


class Visit(NamedTuple):
    """The rows that are needed up to a position (not included) in an order of pages."""

    rows: HingeRows
    end: int


class RowStore(Protocol):
    """Rows of the data by position on pages; one training at a time uses it.

    norms: (N,) of the rows with the 1. costs: (N,). n_cols: features. average: entries of a row.
    is_squared: whether the loss is the squared hinge.
    """

    norms: Float64
    costs: Float64
    is_squared: bool
    n_cols: int
    average: float

    @property
    def bytes_read(self) -> int:
        """Bytes read from disk so far."""

    def take_bytes_read(self) -> int:
        """Return the bytes that were read since the last call."""

    @property
    def slice_rows(self) -> int:
        """Number of average rows between two checks of the stop flag."""
        return max(1, int(SLICE_ENTRIES / max(self.average, 1.0)))

    def activate(self, rows: Int64) -> None:
        """Add rows (n,), ascending, to the active ones."""

    def stash(self, rows: Int64, visit: Visit) -> None:
        """Store rows (n,) of a visit, ascending, because they can become active; see `keep`."""

    def keep(self, rows: Int64) -> None:
        """Remove all stored rows except `rows` (n,), ascending."""

    def active_parts(self, rows: Int64) -> Iterator[tuple[Int64, HingeRows]]:
        """Yield views of parts of `rows` (n,), which are active, with the rows in memory.

        Rows of one group of zones should be adjacent in `rows`.
        """

    def visits(self, order: Int64, plan: Plan) -> Generator[Visit, None, None]:
        """Yield the rows of the pages in `order` that `plan` needs, in this order."""

    def clone(self) -> RowStore:
        """Return a store of the same rows for another thread."""


class RowsInMemory(RowStore):
    """All rows in memory, or mapped.

    X: (N, D); slots: (N,) row of X by position; norms, costs: (N,) by position; is_squared: see
    `RowStore`.
    """

    bytes_read = 0

    def __init__(
        self,
        X: CSR,
        slots: Int32,
        norms: Float64,
        costs: Float64,
        is_squared: bool = False,
    ) -> None:
        self.rows = HingeRows(X, slots, 0, norms, costs, is_squared)
        self.is_squared = is_squared
        self.norms, self.costs, self.n_cols = norms, costs, int(X.n_cols)
        self.average = X.nnz / max(X.n_rows, 1)

    def take_bytes_read(self) -> int:
        """Return 0."""
        return 0

    def activate(self, rows: Int64) -> None:
        """Do nothing."""

    def stash(self, rows: Int64, visit: Visit) -> None:
        """Do nothing."""

    def keep(self, rows: Int64) -> None:
        """Do nothing."""

    def active_parts(self, rows: Int64) -> Iterator[tuple[Int64, HingeRows]]:
        """Yield slices of `rows`."""
        for lo in range(0, len(rows), self.slice_rows):
            yield rows[lo : lo + self.slice_rows], self.rows

    def visits(self, order: Int64, plan: Plan) -> Generator[Visit, None, None]:
        """Yield all rows at once."""
        yield Visit(self.rows, len(order))

    def clone(self) -> RowsInMemory:
        """Return this store: a training does not change it."""
        return self
