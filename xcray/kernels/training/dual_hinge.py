"""Dual coordinate descent for hinge losses on some rows of a problem, with bounded scores.

    min over v   1/2 |v|^2 + sum over the rows that are not outliers of cost_i L(y_i v.x_i)

v = (w, b), and every row x_i has an additional feature of value 1. L(m) is max(0, 1 - m) (L1) or
its square (L2), and v = sum_i alpha_i y_i x_i. Dual variables alpha_i are in [0, cost_i] (L1) or at
least 0 (L2, with D_i = 1 / (2 cost_i) on the diagonal of the dual problem).

Rows are numbered by their position on pages; a page is a range of positions.

Scores are stored with the length of the path that v has travelled so far. While v has moved by at
most r since a score was stored, the score has changed by at most r |x_i|. A row that the bound
excludes is not read.

Source: Hsieh, Chang, Lin, Keerthi, Sundararajan, "A dual coordinate descent method for large-scale
linear SVM", ICML 2008, Algorithm 3.
"""

from typing import NamedTuple

import numba
import numpy as np

from xcray.arrays import CSR, Float64, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.random import shuffle

INLIER, OUTLIER, UNKNOWN = 0, 1, 2  # status of a row
# rounding of a score, relative to the path of v times |x_i|
ROUNDING = 1e-10
# a page is exhausted if fewer than one in this number of its rows violates the margin
EXHAUSTED_ROWS = 20


class HingeRows(NamedTuple):
    """Rows in memory, all or some of N.

    X: (M, D); row i is row slots[i - first] of X. norms: (N,) of the rows with the 1; costs: (N,)
    above 0. is_squared: whether the loss is the squared hinge.
    """

    X: CSR
    slots: Int32
    first: int
    norms: Float64
    costs: Float64
    is_squared: bool


class Pages(NamedTuple):
    """Pages of rows. indptr: (pages + 1,) positions; rows: (N,) row of the data at a position."""

    indptr: Int64
    rows: Int32

    @property
    def n_pages(self) -> int:
        """Number of pages."""
        return len(self.indptr) - 1


class DualState(NamedTuple):
    """State of one class, changed in place.

    y: (N,) int8, 1 or -1; alpha: (N,); v: (D + 1,); scores: (N,) v.x_i, stored when the path of v
    had the length scored_at: (N,), negative if there is no score; status: (N,) uint8, INLIER,
    OUTLIER or UNKNOWN; is_active: (N,) bool.
    """

    y: np.ndarray
    alpha: Float64
    v: Float64
    scores: Float64
    scored_at: Float64
    status: np.ndarray
    is_active: np.ndarray


class OutlierRule(NamedTuple):
    """Weights that define the outliers: rows with y_i v.x_i < -s. v: (D + 1,)."""

    v: Float64
    s: float


class Query(NamedTuple):
    """Limits of a query: it ends after the page that reaches one of them.

    violating: rows to return; reads: rows of the pages that are read.
    """

    violating: int
    reads: int


@inner()
def slot(rows: HingeRows, i: int) -> int:
    """Return the row of X that is row i."""
    return int(rows.slots[i - rows.first])


@inner()
def dot(X: CSR, i: int, v: Float64) -> float:
    """Return v.x_i, with the additional feature."""
    total = v[X.n_cols]
    for p in range(X.indptr[i], X.indptr[i + 1]):
        total += X.data[p] * v[X.indices[p]]
    return float(total)


@inner()
def add_row(X: CSR, i: int, step: float, v: Float64) -> None:
    """Add `step` times x_i to v."""
    for p in range(X.indptr[i], X.indptr[i + 1]):
        v[X.indices[p]] += step * X.data[p]
    v[X.n_cols] += step


@inner()
def hinge(margin: float, is_squared: bool) -> float:
    """Return the loss of a row with this margin y_i v.x_i and cost 1."""
    z = max(0.0, 1.0 - margin)
    return z * z if is_squared else z


@numba.njit(nogil=True, cache=True)
def sweep(
    rows: HingeRows, state: DualState, order: Int64, high: float, low: float
) -> tuple[int, float, float]:
    """Take one step for each row of `order`; return the rows that remain, and gradients.

    order: (n,) row numbers, reordered in place. Rows at a bound whose gradient is above `high` (at
    0) or below `low` (at the upper one) are moved to the end and not counted; the others keep their
    order, so a sweep in parts has the same result. Infinite limits keep all rows. Returns their
    number, and the largest and smallest projected gradient.
    """
    X, shrunk, n_shrunk = rows.X, np.empty(len(order), np.int64), 0
    largest, smallest = -np.inf, np.inf
    for t in range(len(order)):
        i = order[t]
        y, alpha, cost = state.y[i], state.alpha[i], rows.costs[i]
        at = slot(rows, i)
        upper, diagonal = (np.inf, 0.5 / cost) if rows.is_squared else (cost, 0.0)
        gradient = y * dot(X, at, state.v) - 1.0 + diagonal * alpha
        if (alpha == 0.0 and gradient > high) or (alpha == upper and gradient < low):
            shrunk[n_shrunk] = i
            n_shrunk += 1
            continue
        order[t - n_shrunk] = i
        projected = gradient
        if alpha == 0.0:
            projected = min(gradient, 0.0)
        elif alpha == upper:
            projected = max(gradient, 0.0)
        largest, smallest = max(largest, projected), min(smallest, projected)
        if projected != 0.0:
            norm = rows.norms[i]
            new = min(max(alpha - gradient / (norm * norm + diagonal), 0.0), upper)
            add_row(X, at, y * (new - alpha), state.v)
            state.alpha[i] = new
    n = len(order) - n_shrunk
    order[n:] = shrunk[:n_shrunk]
    return n, largest, smallest


@numba.njit(nogil=True, cache=True)
def drop_rows(rows: HingeRows, state: DualState, order: Int64) -> None:
    """Set the dual variables of some rows to 0, and update v."""
    for i in order:
        if state.alpha[i] != 0.0:
            add_row(rows.X, slot(rows, i), -state.y[i] * state.alpha[i], state.v)
            state.alpha[i] = 0.0


@numba.njit(nogil=True, cache=True)
def add_rows(rows: HingeRows, state: DualState, order: Int64) -> None:
    """Add the part of some rows, alpha_i y_i x_i, to v."""
    for i in order:
        add_row(rows.X, slot(rows, i), state.y[i] * state.alpha[i], state.v)


@numba.njit(nogil=True, cache=True)
def hinge_sum(rows: HingeRows, state: DualState, order: Int64, total: float) -> float:
    """Return `total` plus the loss of some rows at the present v."""
    for i in order:
        margin = state.y[i] * dot(rows.X, slot(rows, i), state.v)
        total += rows.costs[i] * hinge(margin, rows.is_squared)
    return float(total)


@numba.njit(nogil=True, cache=True)
def dual_sum(state: DualState, costs: Float64, is_squared: bool, order: Int64) -> float:
    """Return the dual objective of the rows of `order` without |v|^2 / 2."""
    total = 0.0
    for i in order:
        alpha = state.alpha[i]
        total += alpha - (0.25 * alpha * alpha / costs[i] if is_squared else 0.0)
    return float(total)


@inner()
def is_satisfied(norms: Float64, state: DualState, i: int, path: float) -> bool:
    """Return whether the stored score proves that row i has no loss."""
    at = state.scored_at[i]
    change = norms[i] * (path - at + ROUNDING * path)
    return bool(at >= 0.0 and state.y[i] * state.scores[i] - change > 1.0)


@inner()
def is_certain_outlier(norms: Float64, state: DualState, s: float, i: int, path: float) -> bool:
    """Return whether row i is an outlier, and the stored score proves that it remains one."""
    at = state.scored_at[i]
    change = norms[i] * (path - at + ROUNDING * path)
    known = at >= 0.0 and state.status[i] == OUTLIER
    return bool(known and state.y[i] * state.scores[i] + change < -s)


@inner()
def is_certain(norms: Float64, state: DualState, s: float, i: int, path: float) -> bool:
    """Return whether the stored score and status give the loss of row i."""
    return bool(
        state.status[i] != UNKNOWN
        and (is_satisfied(norms, state, i, path) or is_certain_outlier(norms, state, s, i, path))
    )


@inner()
def can_enter(norms: Float64, state: DualState, i: int, path: float) -> bool:
    """Return whether row i is not active, and can violate the margin as far as is known."""
    return bool(
        not state.is_active[i]
        and state.status[i] != OUTLIER
        and not is_satisfied(norms, state, i, path)
    )


@inner()
def read_row(
    rows: HingeRows, state: DualState, reference: OutlierRule, i: int, path: float
) -> float:
    """Store the score of row i, and its status if that is unknown; return y_i times the score."""
    at = slot(rows, i)
    if state.status[i] == UNKNOWN:
        margin = state.y[i] * dot(rows.X, at, reference.v)
        state.status[i] = OUTLIER if margin < -reference.s else INLIER
    state.scores[i] = dot(rows.X, at, state.v)
    state.scored_at[i] = path
    return float(state.y[i] * state.scores[i])


@numba.njit(nogil=True, cache=True)
def refresh_rows(
    rows: HingeRows, state: DualState, reference: OutlierRule, path: float, order: Int64
) -> None:
    """Read the rows of `order` whose loss is not certain: store their scores and status."""
    for i in order:
        if not is_certain(rows.norms, state, reference.s, i, path):
            read_row(rows, state, reference, i, path)


@numba.njit(nogil=True, cache=True)
def shuffle_rows(order: Int64, counter: np.uint64) -> np.uint64:
    """Shuffle (n,) rows in place; return the counter after n - 1 draws."""
    return shuffle(order, counter)


@numba.njit(nogil=True, cache=True)
def plan_pages(
    norms: Float64,
    state: DualState,
    s: float,
    path: float,
    pages: Pages,
    order: Int64,
    waits: Int32,
    begin: int,
    sizes: Int64,
    max_size: int,
    needed: Int64,
) -> tuple[int, int]:
    """Find the pages that a query or refresh will read, from position `begin` of `order`.

    waits: as in `query_pages`; an empty array plans `refresh_pages`. sizes: (pages,) bytes. needed:
    output, positions in `order`. Ends after `max_size` bytes or more, or `len(needed)` pages.
    Returns the next position and the number of pages to read.
    """
    position, count, size = begin, 0, 0
    while position < len(order) and size < max_size and count < len(needed):
        page = order[position]
        is_needed = False
        if len(waits) == 0 or waits[page] == 0:
            for i in range(pages.indptr[page], pages.indptr[page + 1]):
                if len(waits) > 0:
                    is_needed = can_enter(norms, state, i, path)
                else:
                    is_needed = not state.is_active[i] and not is_certain(norms, state, s, i, path)
                if is_needed:
                    break
        if is_needed:
            needed[count] = position
            count += 1
            size += sizes[page]
        position += 1
    return position, count


@numba.njit(nogil=True, cache=True)
def refresh_pages(
    rows: HingeRows,
    state: DualState,
    reference: OutlierRule,
    path: float,
    pages: Pages,
    span: tuple[int, int],
    max_rows: int,
) -> tuple[int, int]:
    """Read the inactive rows whose loss is not certain.

    span: first and last page (not included) to visit.

    Ends after the page with which at least `max_rows` rows were visited; returns the next page, and
    the rows of the pages that were read. Afterwards the stored scores of the visited rows give
    their exact loss, truncated for outliers.
    """
    indptr = pages.indptr
    begin, end = span
    reads, page = 0, begin
    while page < end and indptr[page] - indptr[begin] < max_rows:
        is_needed = False
        for i in range(indptr[page], indptr[page + 1]):
            if state.is_active[i] or is_certain(rows.norms, state, reference.s, i, path):
                continue
            is_needed = True
            read_row(rows, state, reference, i, path)
        reads += indptr[page + 1] - indptr[page] if is_needed else 0
        page += 1
    return page, reads


@numba.njit(nogil=True, cache=True)
def query_pages(
    rows: HingeRows,
    state: DualState,
    reference: OutlierRule,
    path: float,
    pages: Pages,
    order: Int64,
    skips: tuple[Int32, int],
    span: tuple[int, int],
    limits: Query,
    violating: Int64,
) -> tuple[int, int, int]:
    """Collect inactive rows that violate the margin and are not outliers, page by page.

    order: page numbers. span: first and last position (not included) to visit.
    skips: for how many queries each page is skipped, changed in place, and the value for a page
    that is exhausted. violating: output; its size is limits.violating plus the largest page.
    Returns the next position, and the numbers of violating rows and of rows in pages that were
    read. A page is read if a stored score does not exclude one of its inactive rows.
    """
    indptr = pages.indptr
    waits, wait = skips
    position, end = span
    n_violating, reads = 0, 0
    while position < end and n_violating < limits.violating and reads < limits.reads:
        page = order[position]
        position += 1
        if waits[page] > 0:
            waits[page] -= 1
            continue
        before, is_needed = n_violating, False
        for i in range(indptr[page], indptr[page + 1]):
            if not can_enter(rows.norms, state, i, path):
                continue
            is_needed = True
            margin = read_row(rows, state, reference, i, path)
            if margin < 1.0 and state.status[i] == INLIER:
                violating[n_violating] = i
                n_violating += 1
        reads += indptr[page + 1] - indptr[page] if is_needed else 0
        if EXHAUSTED_ROWS * (n_violating - before) < indptr[page + 1] - indptr[page]:
            waits[page] = wait
    return position, n_violating, reads


@numba.njit(nogil=True, cache=True)
def sum_losses(
    state: DualState, costs: Float64, is_squared: bool, s: float, outliers: np.ndarray
) -> tuple[float, float, float]:
    """Return the losses of the inliers, of the outliers as truncated, and of all rows truncated.

    By stored scores. A truncated loss is at most that of a row with y_i v.x_i = -s. outliers: (N,)
    bool output, the rows beyond the boundary by more than s.
    """
    convex, constant, truncated = 0.0, 0.0, 0.0
    largest = hinge(-s, is_squared)
    for i in range(len(costs)):
        margin = state.y[i] * state.scores[i]
        loss = hinge(margin, is_squared)
        if state.status[i] == INLIER:
            convex += costs[i] * loss
        else:
            constant += costs[i] * largest
        truncated += costs[i] * min(loss, largest)
        outliers[i] = margin < -s
    return convex, constant, truncated


@numba.njit(nogil=True, cache=True)
def violating_rows(state: DualState, s: float, first: int, last: int) -> Int64:
    """Return inactive rows from `first` to `last` - 1 whose stored score violates the margin.

    In ascending order; only rows that are inliers, or have y_i v.x_i >= -s.
    """
    count = 0
    for write in range(2):
        out = np.empty(count if write else 0, np.int64)
        count = 0
        for i in range(first, last):
            margin = state.y[i] * state.scores[i]
            is_inlier = state.status[i] == INLIER or margin >= -s
            if margin < 1.0 and is_inlier and not state.is_active[i]:
                if write:
                    out[count] = i
                count += 1
    return out


@numba.njit(nogil=True, cache=True)
def write_margins(rows: HingeRows, state: DualState, order: Int64, margins: Float64) -> None:
    """Write y_i v.x_i of the rows of `order` (n,) to `margins` (n,)."""
    for t in range(len(order)):
        i = order[t]
        margins[t] = state.y[i] * dot(rows.X, slot(rows, i), state.v)
