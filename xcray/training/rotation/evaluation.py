"""What a rest shows: the objective, and what held-out rows say; as entries of a history that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xcray.arrays import Pattern, TopK, frozen
from xcray.kernels.sparse import take_pattern_rows
from xcray.metrics import chosen, f1, precision_at_k
from xcray.solvers.rotation_contract import LapFigures, Rest


def observed(
    squared: Sequence[float], figures: Sequence[LapFigures], lam: float, truth: Pattern | None
) -> dict[str, Any]:
    """L1 = lam/2 sum |W_block|^2 + sum of losses, as "objective", and the measures of `watched`.

    Numbers that are not finite are None. squared: |W|^2 of each block; figures: of each shard; truth: labels of the watched
    part's rows. Sums are correctly rounded, so they don't depend on who told first.
    """
    objective = 0.5 * lam * math.fsum(squared) + math.fsum(each.loss for each in figures)
    some = [each for each in figures if each.watched_rows]
    measures = watched(some, truth) if some and truth is not None else {}
    return {
        name: value if math.isfinite(value) else None
        for name, value in {"objective": objective, **measures}.items()
    }


def watched(figures: Sequence[LapFigures], truth: Pattern) -> dict[str, float]:
    """Of the watched rows of all shards: "held_out", their loss; "P@1", "P@3" and "P@k" for the k labels that were told of each;
    "micro-F1" and "macro-F1" of the first label.

    Rows without labels are not watched. In P@k they count as misses, with their share of the part, as in `xcray.metrics`: so it
    is what the published model will be measured to have, when all rows are watched.
    """
    labels, scores, rows = (
        np.concatenate([getattr(each, name) for each in figures])
        for name in ("labels", "scores", "rows")
    )
    top, Y = (
        TopK(frozen(labels, np.int32), frozen(scores, np.float64)),
        take_pattern_rows(truth, frozen(rows, np.int64)),
    )
    share = float(np.mean(np.diff(truth.indptr) > 0))
    precision = {
        f"P@{k}": share * precision_at_k(top, Y, k)
        for k in sorted({1, min(3, labels.shape[1]), labels.shape[1]})
    }
    return {
        "held_out": math.fsum(each.watched_loss for each in figures),
        **precision,
        **f1(chosen(top, truth.n_cols, k=1), Y),
    }


def rest_of(entry: Mapping[str, Any]) -> Rest:
    """An entry of the history as the solver's judge sees it."""
    objective = entry["objective"]
    exact = {name: entry[name] for name in ("length", "slope") if name in entry}
    return Rest(
        entry["epoch"],
        entry["rate"],
        math.inf if objective is None else objective,
        held_out=entry.get("held_out"),
        back=entry["back"],
        **exact,
    )
