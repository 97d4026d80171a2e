"""Exact top-k: for each row the way that should be quickest."""

from __future__ import annotations

import numba
import numpy as np

from xcray.arrays import CSR
from xcray.kernels.search.bits import int64
from xcray.kernels.search.bounded_scan import (
    EVERYTHING,
    Engine,
    Found,
    Row,
    Work,
    offer_listed,
    read_row,
    scan,
    scan_exact,
    scan_touched,
    score_all,
)
from xcray.kernels.search.bounded_scan_wide import MANY_TERMS, wide_search
from xcray.kernels.search.lists import NARROW, Bytes
from xcray.kernels.search.postings import sort_best_first

BUILT_ON = {
    "search.bits": "b69c88f5",
    "search.bounded_scan": "e045300f",
    "search.bounded_scan_wide": "ec1c1492",
    "search.lists": "e4c3b501",
    "search.postings": "5bf42791",
}

UNSAFE = 1e30  # sums as large as this may leave float32
SPARSE = 4  # from K / SPARSE postings on, going through all labels is cheaper than remembering which were touched


@numba.njit(nogil=True, cache=True)
def search(
    X: CSR,
    first: int,
    stop: int,
    engine: Engine,
    allowed: Bytes,
    n_allowed: int,
    budget: int,
    work: Work,
    out: Found,
) -> None:
    """Answer rows [first, stop) into the same rows of `out`, whose k is at most the number of labels allowed.

    allowed: (K,) uint8, 1 for labels that may be answered, or empty for all; n_allowed of them. budget: postings that may be
    read for a row, negative for all; k labels are always scored.
    """
    for i in range(first, stop):
        row = read_row(X, i, engine)
        out.exact[i], out.labels_scored[i], out.postings_read[i], out.rival[i] = 1, 0, 0, -np.inf
        answer(row, engine, allowed, n_allowed, budget, work, out, i)
        sort_best_first(out.labels[i], out.scores[i])
        out.labels_scored[i] = max(
            out.labels_scored[i], out.labels.shape[1]
        )  # bare biases are scores too
        rival = out.rival[i]
        out.rival[i] = (
            out.scores[i, out.scores.shape[1] - 1] - rival if np.isfinite(rival) else 0.0
        )  # the gap from here on


@numba.njit(nogil=True, cache=True)
def answer(
    row: Row,
    engine: Engine,
    allowed: Bytes,
    n_allowed: int,
    budget: int,
    work: Work,
    out: Found,
    i: int,
) -> None:
    """One row; its answer is a heap still."""
    n_labels, k = len(engine.bias), out.labels.shape[1]
    most = budget if budget >= 0 else EVERYTHING
    whole_lists = (
        engine.lists.least == 0.0
    )  # else a label that no list touches may have weights all the same
    if row.n_terms == 0 and (whole_lists or not row.values.any()):
        offer_listed(engine.order, engine.bias, work.seen[:0], allowed, out, i, int64(0))
    elif not row.most < UNSAFE or n_allowed * engine.row_cost < min(row.reach, most):
        score_all(row, engine, allowed, out, i)
    elif row.reach * SPARSE < n_labels and row.reach <= most and row.n_dense == 0 and whole_lists:
        scan_touched(row, engine, allowed, work, out, i)
    elif engine.lists.width == NARROW and row.reach <= most and better_exact(row, engine, k):
        scan_exact(row, engine, allowed, work, out, i)
    elif engine.lists.width != NARROW and row.n_terms <= MANY_TERMS:
        wide_search(row, engine, allowed, most, work, out, i)
    else:
        scan(row, engine, allowed, most, work, out, i)


@numba.njit(nogil=True, cache=True)
def better_exact(row: Row, engine: Engine, k: int) -> bool:
    """Whether reading all weights of narrow lists takes less than bounds and the scores of some labels."""
    n_labels = len(engine.bias)
    bounded = (
        0.7 * row.reach
        + row.n_dense * (0.08 * n_labels)
        + 0.3 * n_labels
        + engine.row_cost * (1.5 * k + 4)
    )
    for t in range(row.n_terms):
        if row.terms.dense[t] >= 0:
            bounded -= 0.7 * (row.terms.n_all[t] - row.terms.n[t])
    return row.reach + 0.5 * n_labels < bounded
