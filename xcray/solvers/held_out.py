"""Evaluation of held-out rows during a training: their best labels, merged over workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, Int64, Pattern
from xcray.index.search_result import best_positions

TOP_K: Final = 5  # labels reported per held-out row
MANY_LABELS: Final = 256  # with more labels, a row is not sorted to find the best ones


class PartialTopK(NamedTuple):
    """Best labels of each row among some of the labels, with their scores; both (n, k).

    Highest score first, ties by lower label.
    """

    labels: Int32
    scores: Float64


class HeldOut(NamedTuple):
    """Evaluation of held-out rows under the current weights.

    loss: the objective without the norm, with held-out weights that add up to 1, None if unknown;
    labels, scores: (n, k), see `PartialTopK`; rows: (n,).
    """

    loss: float | None
    labels: Int32
    scores: Float64
    rows: Int64


def merge_held_out(parts: Sequence[HeldOut]) -> HeldOut | None:
    """Merge the held-out rows of all workers; None if there are none.

    The loss is unknown if that of a worker is.
    """
    if not parts:
        return None
    labels, scores, rows = (
        np.concatenate([getattr(each, name) for each in parts])
        for name in ("labels", "scores", "rows")
    )
    known = [each.loss for each in parts if each.loss is not None]
    return HeldOut(sum(known) if len(known) == len(parts) else None, labels, scores, rows)


def top_k(S: Float64, lo: int, k: int = TOP_K) -> PartialTopK:
    """Return the k best labels of each row of scores S (n, m), of labels from `lo` on."""
    if S.shape[1] <= MANY_LABELS:
        order: Int64 = np.argsort(-S, axis=1, kind="stable")[:, :k]
    else:
        order = np.array([best_positions(row, k) for row in S], np.int64).reshape(len(S), -1)
    return PartialTopK((order + lo).astype(np.int32), np.take_along_axis(S, order, axis=1))


def merge_top_k(tops: Sequence[PartialTopK], k: int = TOP_K) -> PartialTopK:
    """Return the k best labels of each row over groups of labels in ascending order."""
    labels, scores = (
        np.concatenate([getattr(each, name) for each in tops], axis=1)
        for name in ("labels", "scores")
    )
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return PartialTopK(
        np.take_along_axis(labels, order, axis=1), np.take_along_axis(scores, order, axis=1)
    )


def split_rows(Y: Pattern, share: float, seed: int) -> Int64:
    """Return the numbers of the held-out rows, sorted: about `share` of the rows with labels.

    The first row of each class stays in training. Y: (N, K).
    """
    labelled = np.flatnonzero(np.diff(Y.indptr))
    first = np.unique(Y.indices, return_index=True)[1]
    needed = np.searchsorted(Y.indptr, first, side="right") - 1
    free = labelled[~np.isin(labelled, needed)]
    count = min(len(free), round(share * len(labelled)))
    rng = np.random.default_rng([seed, 0])
    return np.sort(rng.permutation(free)[:count])
