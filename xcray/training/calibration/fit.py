"""Fit and measure the calibration of a model on held-out rows.

The event is "this label is correct for this row", for the labels in an answer. Held-out rows whose
features equal a training row bit by bit are left out, because the model was trained on them. The
other rows are split by a hash of their features, so that copies of a row stay together. The curves
are fitted on one side and measured on the other. The order of answers and P@k do not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np

from xcray.arrays import CSR, Float64, Int64, Pattern, TopK, frozen
from xcray.data.dataset import Dataset, Split
from xcray.errors import Conflict, InputError
from xcray.kernels.fingerprint import fingerprints
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.measures import matches
from xcray.model.calibration import Calibration
from xcray.model.model import Model
from xcray.training.calibration.isotonic import MIN_ANSWERS, RankedLabels, fit_curves
from xcray.training.calibration.measures import brier, ece, ece_floor, reliability

# Labels per row that the curves are fitted to: enough for filtered answers.
CANDIDATES: Final = 100
FIT_SHARE: Final = 0.5  # share of the rows to fit on
MAX_ROWS: Final = 50_000  # more rows do not change the result, but need memory
BYTES_PER_CANDIDATE: Final = 85  # memory per row and candidate while curves are chosen
RELIABILITY_GROUPS: Final = 15  # groups of `metrics.reliability`

SearchFn: TypeAlias = Callable[[CSR, int], TopK]  # the k best labels of rows


def held_out_part(data: Dataset, part: str = "test") -> Split:
    """Return the rows of a part, to fit or to measure on. Raises InputError if there are none."""
    if part not in data.splits or not data[part].n_rows:
        raise InputError(
            f"data set {data.name} has no rows in part {part!r}, and this needs held-out rows: "
            "build it with --test FILE or --test-fraction 0.2",
            code="NO_HELD_OUT",
        )
    return data[part]


def unseen_part(models: Sequence[Model], data: Dataset, part: str) -> Split:
    """Return the rows of a part that none of the models was trained on.

    Raises Conflict for the training rows of a model, InputError as `held_out_part`.
    """
    if part == "train" and any(data.content_hash in trained_on(model) for model in models):
        raise Conflict(
            f"a model was trained on the training rows of {data.name}: use rows it has not seen"
        )
    return held_out_part(data, part)


def trained_on(model: Model) -> set[str]:
    """Return the content hashes of the data sets that a model, and models it is made of, had."""
    parts = model.manifest["report"].get("blend", {}).get("parts", ())
    steps = [step["dataset_hash"] for step in model.provenance if "dataset_hash" in step]
    return {model.manifest["dataset_hash"], *steps, *chain(*(part["data"] for part in parts))}


def calibration_bytes(data: Dataset) -> int:
    """Return the approximate memory in bytes of calibrating on the test part."""
    rows = min(data.test.n_rows, MAX_ROWS) if data.test is not None else 0
    return BYTES_PER_CANDIDATE * min(CANDIDATES, data.n_labels) * rows


def calibrate_held_out(
    search: SearchFn, data: Dataset, seed: int, ks: Sequence[int]
) -> tuple[Calibration, dict[str, Any]]:
    """Return the curves fitted on the test part of a training's data set, see `fit_calibration`."""
    test = held_out_part(data)
    rows = (test.X, test.Y, data.label_counts, data.train.X)
    curves, details = fit_calibration(search, *rows, seed=seed, ks=ks)
    return curves, {**details, "dataset_hash": data.content_hash, "part": "test"}


def fit_calibration(
    search: SearchFn,
    X: CSR,
    Y: Pattern,
    counts: Int64,
    train_rows: CSR | None,
    *,
    seed: int = 0,
    ks: Sequence[int] = (1, 3, 5),
) -> tuple[Calibration, dict[str, Any]]:
    """Return the calibration curves, and a description of the fit and its quality (JSON).

    search: queries the model. X, Y: held-out rows and their labels (Y can have more columns than
    the model has labels). counts: (K,) training rows per label. train_rows: the training rows;
    equal held-out rows are left out. seed: of the split.
    Raises InputError TOO_FEW_ANSWERS.
    """
    rows, left_out, in_fit = split_rows(X, train_rows, seed)
    top = search(take_rows(X, rows), CANDIDATES)
    answers = RankedLabels(top.labels, top.scores, matches(top, take_pattern_rows(Y, rows)))
    _check_answers(
        int(answers.correct[in_fit].sum()), int(in_fit.sum()), left_out, len(X.indptr) - 1
    )
    curves = fit_curves(answers.select(in_fit), counts, seed)
    report = {
        str(k): measure_calibration(curves, answers.select(in_fit), answers.select(~in_fit), k)
        for k in ks
        if k <= top.labels.shape[1]
    }
    measures = {f"ECE@{k}": errors["ece"] for k, errors in report.items()}
    bin_counts = [counts[curves.bins == b] for b in range(curves.n_bins)]
    return curves, {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": {
            "fitted": int(in_fit.sum()),
            "measured": int((~in_fit).sum()),
            "left_out": left_out,
        },
        "candidates": top.labels.shape[1],
        "seed": seed,
        "bins": [
            {"labels": len(c), "least": int(c.min()), "most": int(c.max())} for c in bin_counts
        ],
        "places": curves.places.tolist(),
        "report": report,
        "measures": measures,
    }


def _check_answers(n_correct: int, n_fit: int, left_out: int, n_rows: int) -> None:
    """Raise InputError TOO_FEW_ANSWERS with the reason, if too few answers are correct.

    n_correct: correct answers of the n_fit rows to fit on. left_out: copies of training rows among
    the n_rows held-out rows.
    """
    if n_correct >= MIN_ANSWERS:
        return
    have = (
        f"probabilities need {MIN_ANSWERS} correct answers on held-out rows, and the "
        f"{n_fit:,} rows to fit on (half of those that can be used) have {n_correct}: "
    )
    if 2 * left_out >= n_rows:
        reason = (
            f"{left_out:,} of {n_rows:,} held-out rows are copies of training rows and cannot be "
            "used; hold out other rows"
        )
    elif 2 * n_correct >= n_fit:
        share = n_correct / n_fit if n_fit else 1.0
        needed = math.ceil(1.2 * MIN_ANSWERS / (share * FIT_SHARE))
        reason = f"hold out more rows, about {needed:,} instead of {n_rows:,}"
    else:
        reason = (
            "the model is seldom right on these rows; check its measures and the warnings of the "
            "data set, or hold out more rows"
        )
    raise InputError(f"{have}{reason}", code="TOO_FEW_ANSWERS")


def measure_calibration(
    curves: Calibration, fitted: RankedLabels, measured: RankedLabels, k: int
) -> dict[str, Any]:
    """Measure the probabilities of the first k places on rows not used for fitting (JSON).

    ece, brier: of the probabilities. floor: the ece of a perfect forecast. ece_sigmoid,
    brier_sigmoid: of 1 / (1 + e^-score), without calibration. brier_constant: of a constant
    forecast, the share of correct answers on the rows of the fit. groups, groups_sigmoid: (answers,
    mean probability, share correct) of the groups behind ece and ece_sigmoid.
    """
    answers = measured.at_places(1, k)
    correct = answers.correct
    calibrated, sigmoid = (
        curves.estimate(answers.labels, answers.scores),
        0.5 * (1.0 + np.tanh(0.5 * answers.scores)),
    )
    return {
        "ece": ece(calibrated, correct, RELIABILITY_GROUPS),
        "floor": ece_floor(calibrated, RELIABILITY_GROUPS),
        "ece_sigmoid": ece(sigmoid, correct, RELIABILITY_GROUPS),
        "brier": brier(calibrated, correct),
        "brier_sigmoid": brier(sigmoid, correct),
        "brier_constant": brier(
            np.full(correct.shape, fitted.at_places(1, k).correct.mean()), correct
        ),
        "groups": _reliability_groups(calibrated, correct),
        "groups_sigmoid": _reliability_groups(sigmoid, correct),
    }


def _reliability_groups(probabilities: Float64, correct: Any) -> list[list[float]]:
    """Return the reliability diagram as JSON: one list per group."""
    return [
        list(group)
        for group in zip(
            *(
                values.tolist()
                for values in reliability(probabilities, correct, RELIABILITY_GROUPS)
            ),
            strict=True,
        )
    ]


def split_rows(X: CSR, train_rows: CSR | None, seed: int) -> tuple[Int64, int, Any]:
    """Return the usable rows, the number of rows left out, and which rows to fit on.

    The rows are (n,), ascending; the mask is (n,) bool. Rows that `train_rows` contains are left
    out.
    X: held-out rows, split by a hash of each row's content and `seed`, so that equal rows are on
    one side.
    """
    rows, left_out, hashes = usable_rows(X, train_rows, seed)
    return rows, left_out, hashes < np.uint64(FIT_SHARE * 2**64)


def usable_rows(X: CSR, train_rows: CSR | None, seed: int) -> tuple[Int64, int, Any]:
    """Return the rows that `train_rows` lacks, the number of others, and the hashes of the former.

    The rows are (n,), ascending, at most MAX_ROWS; the hashes are (n,) uint64, see `split_rows`.
    """
    hashes = _row_hashes(X, seed)
    in_training = (
        np.isin(hashes, _row_hashes(train_rows, seed))
        if train_rows is not None
        else np.zeros(len(hashes), bool)
    )
    rows = np.flatnonzero(~in_training)
    rows = np.sort(rows[np.argsort(_row_hashes(X, seed + 1)[rows], kind="stable")[:MAX_ROWS]])
    return frozen(rows, np.int64), int(in_training.sum()), hashes[rows]


def _row_hashes(X: CSR, seed: int) -> Any:
    """Return one hash per row, from its content."""
    return fingerprints(X, X.data.view(np.uint32), seed)
