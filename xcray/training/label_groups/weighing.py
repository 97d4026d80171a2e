"""The weight of label groups: chosen on training rows that are held out of another training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from xcray.api.options import DEFAULT_MEASURE
from xcray.arrays import CSR, Pattern, frozen
from xcray.errors import InputError
from xcray.index.search import SearchIndex
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.measures import evaluate, labelled_rows
from xcray.training.selection.measure import measure_value, parse_measure

# tried first; then the values between the best of them and its neighbours
WEIGHTS: Final = (0.0, 0.1, 0.2, 0.4, 0.8, 1.2)
MAX_ROWS: Final = 5_000  # held-out rows that are measured
KS: Final = (1, 5)


def choose_weight(
    index: SearchIndex,
    X: CSR,
    Y: Pattern,
    threads: int,
    tick: Callable[[], None] = lambda: None,
) -> tuple[float, dict[str, Any]]:
    """Return the weight of the groups that is best on held-out rows, and what was measured; JSON.

    index: of a model with groups that did not learn from X (n, D), Y (n, K). The measure is
    DEFAULT_MEASURE; equal values are decided for the lower weight, and 0 leaves groups out. tick:
    called after each weight. Raises InputError if no row has a label.
    """
    labelled = np.flatnonzero(np.diff(Y.indptr))[:MAX_ROWS]
    if not len(labelled) or index.groups is None:
        raise InputError(
            "too few rows to weigh label groups on: train without groups", code="TOO_FEW_ROWS"
        )
    rows = frozen(labelled, np.int64)
    X, Y = take_rows(X, rows), take_pattern_rows(Y, rows)
    groups, n_labels, tried = index.groups, index.n_labels, dict[float, dict[str, float]]()
    ks = tuple(min(k, n_labels) for k in KS)

    def value(weight: float) -> float:
        if weight not in tried:
            own = index.with_groups(replace(groups, weight=weight))
            top = own.query(X, max(ks), threads=threads).top
            tried[weight] = evaluate(*labelled_rows(top, Y), ks=ks)
            tick()
        return measure_value(tried[weight], DEFAULT_MEASURE, n_labels)

    best = max(WEIGHTS, key=value)
    place = WEIGHTS.index(best)
    for other in (*WEIGHTS[max(place - 1, 0) : place], *WEIGHTS[place + 1 : place + 2]):
        value(round((best + other) / 2, 3))
    best = max(sorted(tried), key=value)
    names = [f"{metric}@{min(k, n_labels)}" for metric, k in parse_measure(DEFAULT_MEASURE)]
    measured = [
        {"weight": weight, **{name: tried[weight][name] for name in names}}
        for weight in sorted(tried)
    ]
    return best, {"rows": len(rows), "measure": DEFAULT_MEASURE, "tried": measured}
