"""Drift: how the answers to recent rows differ from those to the held-out rows of a training.

A distribution is kept as the shares of ten bins. Their edges are the deciles of the held-out rows,
so that ties can leave bins empty. Two distributions are compared by their population stability
index: below 0.1 they are usually called alike, above 0.25 different.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, TopK
from xcray.data.text.pipeline import TextPipeline, count_empty_rows
from xcray.model.model import Model

BINS: Final = 10
WINDOW_ROWS: Final = 1000  # figures are those of the last one to two windows
MAX_TEXTS: Final = 256  # texts whose words are looked up
MAX_CHARS: Final = 2000  # of a recent text, as one of a megabyte would be kept and read as often
LEAST_SHARE: Final = 1e-3  # of a bin in an index, which would be infinite for an empty one


class Drift(NamedTuple):
    """Recent rows against the held-out rows of the training.

    indices: the stability index of the best scores ("score"), of the training rows of the best
    labels ("label"), of rows without a feature ("empty") and of words that are not in the
    vocabulary ("unknown"). empty, unknown: these shares, recent ones and those of the training.
    Without words or training rows of labels there is no such entry, and `unknown` is None.
    """

    indices: dict[str, float]
    empty: tuple[float, float]
    unknown: tuple[float, float] | None


def reference_of(
    top: TopK, X: CSR, positives: Any, text: TextPipeline | None, texts: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of held-out rows, for the report of a training; JSON.

    top, X: their answers and features. positives: training rows of the labels. texts: some of
    theirs. "rows"; "score" and "label", with "edges" and "shares" of the bins; "empty"; "unknown".
    """
    is_answered = top.labels[:, 0] >= 0
    frequency = np.asarray(positives)[top.labels[is_answered, 0]]
    words, unknown = (0, 0) if text is None else text.count_words(texts)
    return {
        "rows": len(top.labels),
        "score": _distribution(top.scores[is_answered, 0]),
        "label": _distribution(frequency),
        "empty": count_empty_rows(X) / max(X.n_rows, 1),
        "unknown": unknown / words if words else None,
    }


def _distribution(values: Any) -> dict[str, list[float]]:
    """Return the deciles of values, and the shares of the bins between them."""
    if not len(values):
        return {"edges": [], "shares": [1.0]}
    edges = np.unique(np.quantile(values, np.arange(1, BINS) / BINS, method="higher"))
    counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
    return {"edges": edges.tolist(), "shares": (counts / len(values)).tolist()}


def stability_index(shares: Sequence[float], expected: Sequence[float]) -> float:
    """Return the population stability index of two distributions over the same bins."""
    p, q = (np.maximum(np.asarray(each), LEAST_SHARE) for each in (shares, expected))
    return float(((p - q) * np.log(p / q)).sum())


class DriftCounter:
    """Counts of the answers of a version. Adding a row takes less than a microsecond.

    reference: of the training, see `reference_of`. Threads can lose single counts.
    """

    def __init__(self, model: Model, reference: Mapping[str, Any]) -> None:
        self._reference = reference
        self._text = model.text
        self._edges: list[float] = reference["score"]["edges"]
        self._bin_of_label = _bins_of_labels(model, reference["label"]["edges"])
        self._texts: deque[str] = deque(maxlen=MAX_TEXTS)
        self._earlier = self._counts = self._zeros()

    def _zeros(self) -> tuple[list[int], list[int], list[int]]:
        """Return counts of no row: by score, by label, and [rows, empty rows]."""
        labels = len(self._reference["label"]["shares"])
        return [0] * (len(self._edges) + 1), [0] * labels, [0, 0]

    def add(self, rows: Any, top: TopK, empty: Sequence[bool]) -> None:
        """Count answered rows. rows: texts, of which the first is kept for a while, or a matrix."""
        scores, labels, totals = self._counts
        edges, bins = self._edges, self._bin_of_label
        for score, label in zip(top.scores[:, 0].tolist(), top.labels[:, 0].tolist(), strict=True):
            if label >= 0:
                scores[bisect_right(edges, score)] += 1
                if label < len(bins):
                    labels[bins[label]] += 1
        totals[0] += len(empty)
        totals[1] += sum(empty)
        if isinstance(rows, list):
            self._texts.append(rows[0][:MAX_CHARS])
        if totals[0] >= WINDOW_ROWS:
            self._earlier, self._counts = self._counts, self._zeros()

    def drift(self) -> Drift | None:
        """Return the drift of the last rows; None before the first window is full."""
        scores, labels, (rows, n_empty) = (
            [a + b for a, b in zip(*pair, strict=True)]
            for pair in zip(self._earlier, self._counts, strict=True)
        )
        if rows < WINDOW_ROWS:
            return None
        reference, texts = self._reference, [*self._texts]
        words, n_unknown = (0, 0) if self._text is None else self._text.count_words(texts)
        empty = (n_empty / rows, float(reference["empty"]))
        indices = {"score": self._index("score", scores), "empty": _index_of_shares(*empty)}
        if self._bin_of_label:
            indices["label"] = self._index("label", labels)
        if not words or reference["unknown"] is None:
            return Drift(indices, empty, None)
        unknown = (n_unknown / words, float(reference["unknown"]))
        return Drift({**indices, "unknown": _index_of_shares(*unknown)}, empty, unknown)

    def _index(self, kind: str, counts: list[int]) -> float:
        """Return the index of counts against the reference."""
        total = max(sum(counts), 1)
        return stability_index([n / total for n in counts], self._reference[kind]["shares"])


def _index_of_shares(share: float, expected: float) -> float:
    """Return the index of two shares of rows or words."""
    return stability_index([share, 1.0 - share], [expected, 1.0 - expected])


def drift_counter(model: Model) -> DriftCounter | None:
    """Return a counter for a model, or None if its training kept no reference."""
    reference = model.manifest["report"].get("drift")
    return None if reference is None else DriftCounter(model, reference)


def _bins_of_labels(model: Model, edges: Sequence[float]) -> bytes:
    """Return the bin of every label, one byte each; empty if their training rows are not known."""
    table = model.label_table
    if table is None or "positives" not in table.column_names:
        return b""
    positives = table.column("positives").to_numpy()
    return bytes(np.searchsorted(edges, positives, side="right").astype(np.uint8))
