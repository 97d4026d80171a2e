"""Predictions by an approximate index, and how much such an index misses.

It is an option for comparisons, never the default: on sparse weights the exact search is faster.
An index is used for a model only if its recall was measured and is in the model card.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from xcray.arrays import CSR, Float32, csr
from xcray.data.dataset import Dataset
from xcray.errors import InputError, ParameterError
from xcray.index.approximate import build_index
from xcray.index.filters import LabelFilter
from xcray.index.scorer import SparseScorer, check_query, sparse_rows
from xcray.index.search_result import SearchResult
from xcray.kernels.sparse import row_range, take_rows
from xcray.model.linked_copy import with_approximate_index
from xcray.model.model import Model

PREDICTION_INDEXES: Final = ("sw-graph",)
MAX_QUERIES: Final = 1000  # held-out rows that an index is measured on
RANKS: Final = (1, 5)


class ApproximateScorer(SparseScorer):
    """The scorer of a linear model whose best labels an index finds, or misses.

    Scores of returned labels are exact. The index is built from the weights of the model.
    """

    def __init__(self, model: Model, kind: str) -> None:
        """Build the index. Raises ParameterError, and Unavailable if a library is missing."""
        if kind not in PREDICTION_INDEXES:
            raise ParameterError(
                f"index must be one of {', '.join(PREDICTION_INDEXES)}, not {kind[:80]!r}"
            )
        if model.linear is None:
            raise ParameterError(
                "a chain of stages has no index over its labels: predict without an index"
            )
        super().__init__(model.search)
        self._approximate = build_index(kind, _with_column(model.W, model.b))

    def top_k(
        self,
        X: CSR | Float32,
        k: int = 5,
        *,
        label_filter: LabelFilter | None = None,
        deadline_ms: float | None = None,
        kernels: bool = True,
    ) -> SearchResult:
        """Return k labels of each row, best first; `exact` is False.

        Rows of which the index finds fewer than k labels are searched exactly. Raises
        ParameterError for a filter or a deadline, which the index does not support.
        """
        if label_filter is not None or deadline_ms is not None:
            raise ParameterError(
                "an approximate index has no filters and no deadlines: predict without an index"
            )
        check_query(k, None, None, self.n_labels)
        rows = self.index.input_rows(sparse_rows(X))
        top = self._approximate.query(_with_column(rows, np.ones(rows.n_rows, np.float32)), k)
        n, missing = len(top.labels), np.flatnonzero((top.labels < 0).any(axis=1))
        labels, scores, is_exact = top.labels.copy(), top.scores.copy(), np.zeros(n, bool)
        if len(missing):
            right = self.index.query(take_rows(sparse_rows(X), missing), k)
            labels[missing], scores[missing], is_exact[missing] = right.labels, right.scores, True
        zeros, unknown = np.zeros(n, np.int64), np.full(n, -np.inf)
        return SearchResult(labels, scores, is_exact, zeros, zeros, unknown)


def recorded_scorer(model: Model, kind: str) -> ApproximateScorer:
    """Return the scorer of an index that was measured for the model.

    Raises ParameterError if it was not, and as `ApproximateScorer`.
    """
    if model.manifest.get("approximate_index", {}).get("index") != kind:
        raise ParameterError(
            f"the recall of {kind[:80]!r} is not known for this model: "
            "run `xcray models approximate MODEL DATASET --output NEW` and use NEW"
        )
    return ApproximateScorer(model, kind)


def measure_index(model: Model, data: Dataset, kind: str) -> dict[str, Any]:
    """Return how an index answers held-out rows, compared with the exact search; JSON.

    "recall@k": share of the exact k best labels that it finds. "margin_error": mean of the best
    score less that of its first label. Raises InputError without held-out rows, ParameterError.
    """
    if data.test is None or not data.test.n_rows:
        raise InputError(
            "the data set has no held-out rows to measure the index on", code="NO_TEST"
        )
    X = row_range(data.test.X, 0, min(MAX_QUERIES, data.test.n_rows))
    began = time.perf_counter()
    scorer, exact = ApproximateScorer(model, kind), model.scorer()
    built = time.perf_counter()
    k = min(max(RANKS), model.n_labels)
    exact.top_k(row_range(X, 0, 1), k)  # compiles the search
    right, exact_seconds = _timed(exact, X, k)
    found, seconds = _timed(scorer, X, k)
    gaps = right.scores[:, 0] - found.scores[:, 0]
    return {
        "index": kind,
        "rows": X.n_rows,
        "dataset_hash": data.content_hash,
        "build_seconds": round(built - began, 3),
        **{
            f"recall@{rank}": _recall(found.labels[:, :rank], right.labels[:, :rank])
            for rank in RANKS
            if rank <= k
        },
        "margin_error": round(float(np.maximum(0.0, gaps).mean()), 6),
        "ms_per_row": round(1e3 * seconds / X.n_rows, 4),
        "exact_ms_per_row": round(1e3 * exact_seconds / X.n_rows, 4),
    }


def record_index(
    model: Model, data: Dataset, target: Path, kind: str = "sw-graph"
) -> tuple[Model, Mapping[str, Any]]:
    """Publish a copy of the model at `target` whose card states the recall of an index.

    Returns the copy and the facts. Raises Conflict if `target` exists, and as `measure_index`.
    """
    facts = measure_index(model, data, kind)
    return with_approximate_index(model, target, facts), facts


def _timed(scorer: SparseScorer | Any, X: CSR, k: int) -> tuple[SearchResult, float]:
    """Return the answers of a scorer and their seconds."""
    began = time.perf_counter()
    return scorer.top_k(X, k), time.perf_counter() - began


def _recall(found: Any, right: Any) -> float:
    """Return the share of the right labels (n, k) that are among those found."""
    hits = (right[:, :, None] == found[:, None, :]).any(axis=2)
    return round(float(hits.mean()), 4)


def _with_column(rows: CSR, values: Any) -> CSR:
    """Return rows with another column, at the end, of these values (n,)."""
    n, width = rows.shape
    present = values != 0.0
    counts = np.diff(rows.indptr) + present
    indptr = np.concatenate([[0], np.cumsum(counts)])
    last = indptr[1:][present] - 1
    indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    is_old = np.ones(indptr[-1], bool)
    is_old[last] = False
    indices[is_old], data[is_old] = rows.indices, rows.data
    indices[last], data[last] = width, values[present]
    return csr(indptr, indices, data, width + 1)
