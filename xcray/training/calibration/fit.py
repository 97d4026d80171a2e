"""Calibration of a model: probabilities from its scores, fitted on rows it was not trained on, reported on others again.

The event is "this label is right for this row", of the labels that an answer holds. Held-out rows whose features equal those of a
training row to the bit are left out: the model knows them. The others are parted by a hash of their features, so that copies of
a row stay together: on one side the curves are fitted, on the other they are measured. Answers keep their order, and P@k its value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import numpy as np

from xcray.arrays import CSR, Float64, Int64, Pattern, TopK, frozen
from xcray.data.dataset import Dataset, Split
from xcray.errors import InputError
from xcray.kernels.fingerprint import fingerprints
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.metrics import brier, ece, ece_floor, matches, reliability
from xcray.model.calibration import Calibration
from xcray.training.calibration.isotonic import Answers, fit

CANDIDATES: Final = (
    100  # labels of a row that the curves learn from: deep enough for filtered answers
)
SHARE: Final = 0.5  # of the rows, to fit on
MOST_ROWS: Final = 50_000  # more rows change nothing, and take memory
AN_ANSWER: Final = 85  # bytes of memory that a candidate of a row takes while curves are chosen
GROUPS: Final = 15  # of `metrics.reliability`

Query: TypeAlias = Callable[[CSR, int], TopK]  # the k best labels of rows


def held_out(data: Dataset, part: str = "test") -> Split:
    """The rows of a data set that a calibration can use. Raises InputError when there are none."""
    if part not in data.splits or not data[part].n_rows:
        raise InputError(
            f"data set {data.name} has no rows in part {part!r}: probabilities are fitted on held-out rows; "
            "build it with --test FILE or --test-fraction 0.2",
            code="NO_HELD_OUT",
        )
    return data[part]


def memory(data: Dataset) -> int:
    """Bytes that calibrating on the test part takes, about."""
    rows = min(data.test.n_rows, MOST_ROWS) if data.test is not None else 0
    return AN_ANSWER * min(CANDIDATES, data.n_labels) * rows


def calibrated(
    query: Query,
    X: CSR,
    Y: Pattern,
    counts: Int64,
    trained: CSR | None,
    *,
    seed: int = 0,
    ks: Sequence[int] = (1, 3, 5),
) -> tuple[Calibration, dict[str, Any]]:
    """Curves, and how they were fitted and what they are worth (JSON).

    query: asks the model. X, Y: held-out rows and their labels (Y may have more columns than the model has labels). counts: (K,)
    training rows of each label. trained: the training rows; held-out rows equal to one of them are left out. seed: of the
    split into sides.
    Raises InputError TOO_FEW_ANSWERS.
    """
    rows, left_out, side = sides(X, trained, seed)
    top = query(take_rows(X, rows), CANDIDATES)
    answers = Answers(top.labels, top.scores, matches(top, take_pattern_rows(Y, rows)))
    curves = fit(answers.of(side), counts, seed)
    report = {
        str(k): measured(curves, answers.of(side), answers.of(~side), k)
        for k in ks
        if k <= top.labels.shape[1]
    }
    measures = {f"ECE@{k}": found["ece"] for k, found in report.items()}
    own = [counts[curves.bins == b] for b in range(curves.n_bins)]
    return curves, {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": {"fitted": int(side.sum()), "measured": int((~side).sum()), "left_out": left_out},
        "candidates": top.labels.shape[1],
        "seed": seed,
        "bins": [{"labels": len(c), "least": int(c.min()), "most": int(c.max())} for c in own],
        "places": curves.places.tolist(),
        "report": report,
        "measures": measures,
    }


def measured(curves: Calibration, fitted: Answers, others: Answers, k: int) -> dict[str, Any]:
    """What the probabilities of the first k places are worth on rows that took no part in fitting (JSON).

    ece, brier: of the probabilities; floor: what ece a perfect forecast would show; ece_sigmoid, brier_sigmoid: of
    1 / (1 + e^-score), what one has without calibration; brier_constant: of telling everyone the share of right answers on the
    rows of the fit.
    groups, groups_sigmoid: (answers, mean probability, share right) of the groups behind ece and ece_sigmoid.
    """
    answers = others.between(1, k)
    right = answers.right
    told, plain = (
        curves.of(answers.labels, answers.scores),
        0.5 * (1.0 + np.tanh(0.5 * answers.scores)),
    )
    return {
        "ece": ece(told, right, GROUPS),
        "floor": ece_floor(told, GROUPS),
        "ece_sigmoid": ece(plain, right, GROUPS),
        "brier": brier(told, right),
        "brier_sigmoid": brier(plain, right),
        "brier_constant": brier(np.full(right.shape, fitted.between(1, k).right.mean()), right),
        "groups": _groups(told, right),
        "groups_sigmoid": _groups(plain, right),
    }


def _groups(told: Float64, right: Any) -> list[list[float]]:
    """A reliability as JSON: a list a group."""
    return [
        list(group)
        for group in zip(
            *(values.tolist() for values in reliability(told, right, GROUPS)), strict=True
        )
    ]


def sides(X: CSR, trained: CSR | None, seed: int) -> tuple[Int64, int, Any]:
    """Rows to use, (n,) ascending; how many were left out because `trained` has the same; (n,) bool, whether each is to fit on.

    X: held-out rows, parted by a hash of each row's content and `seed`, so that equal rows are on one side.
    """
    marks = _marks(X, seed)
    seen = (
        np.isin(marks, _marks(trained, seed)) if trained is not None else np.zeros(len(marks), bool)
    )
    rows = np.flatnonzero(~seen)
    rows = np.sort(rows[np.argsort(_marks(X, seed + 1)[rows], kind="stable")[:MOST_ROWS]])
    return frozen(rows, np.int64), int(seen.sum()), marks[rows] < np.uint64(SHARE * 2**64)


def _marks(X: CSR, seed: int) -> Any:
    """A number for each row, by its content."""
    return fingerprints(X, X.data.view(np.uint32), seed)
