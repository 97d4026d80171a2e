"""Add calibration or thresholds to a model: a new directory that shares files with the old one."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import CSR, Int64, Pattern, frozen
from xcray.data.dataset import Dataset, open_verified
from xcray.data.texts import TEXTS, read_texts
from xcray.errors import Conflict, InputError, ParameterError
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.measures import matches
from xcray.model.linked_copy import with_calibration, with_label_thresholds
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.training.calibration.fit import (
    CANDIDATES,
    fit_calibration,
    unseen_part,
    usable_rows,
)
from xcray.training.calibration.isotonic import RankedLabels
from xcray.training.calibration.label_thresholds import (
    FOLDS,
    OBJECTIVES,
    ThresholdObjective,
    fit_label_thresholds,
)
from xcray.training.edit.apply import (
    check_features,
    check_output_path,
    match_labels,
    renumber_labels,
)


class UnseenRows(NamedTuple):
    """Rows that a model was not trained on.

    X: (n, D). texts: of the rows, if the model has a ranker, else None. Y: (n, K or more), their
    labels in the numbers of the model's answers; labels that it lacks have higher ones. counts:
    (K,) training rows per label. train_X: the training rows of the data set, whose copies must be
    left out, or None.
    """

    X: CSR
    texts: list[str] | None
    Y: Pattern
    counts: Int64
    train_X: CSR | None


def calibrate(
    model: str | Path,
    dataset: str | Path,
    out: str | Path,
    *,
    part: str = "test",
    seed: int = 0,
) -> Model:
    """Publish the model with probabilities at `out`.

    It shares its files with the model at `model`, which is not changed.
    dataset: must have the model's features. Its rows of `part` are used to fit and to measure;
    labels are matched by name. part="train" is for rows collected after the training; the data set
    of the training itself is refused. seed: of the split into rows to fit and rows to measure.
    Raises NotFound, Corrupt, Conflict (`out` exists), ShapeMismatch for other features, InputError
    without held-out rows (NO_HELD_OUT) or with too few correct answers (TOO_FEW_ANSWERS).
    """
    check_output_path(out)
    opened, data = Model.open(model), open_verified(dataset)
    if opened.ranker is not None:
        raise Conflict("the model has a ranker, whose probabilities are calibrated already")
    rows = _held_out_rows(opened, data, part)
    curves, details = fit_calibration(
        Predictor(opened).predict, rows.X, rows.Y, rows.counts, rows.train_X, seed=seed
    )
    return with_calibration(
        opened, out, curves, {**details, "dataset_hash": data.content_hash, "part": part}
    )


def fit_thresholds(
    model: str | Path,
    dataset: str | Path,
    out: str | Path,
    *,
    objective: str = "macro-F1",
    precision: float | None = None,
    part: str = "test",
    seed: int = 0,
) -> Model:
    """Publish the model with one threshold per label at `out`.

    With them, `label_thresholds=True` of predictions turns a ranking into decisions. objective:
    "micro-F1" or "macro-F1", which the thresholds maximise, or "precision": the largest recall with
    at least this `precision` per label. dataset, part, seed, and errors: as for `calibrate`; the
    manifest has the measures on rows that the thresholds were not fitted to. A model with a ranker
    gets thresholds for its scores, and needs a data set with texts. Raises ParameterError for
    softmax models, whose scores of different rows can't be compared.
    """
    check_output_path(out)
    chosen = threshold_objective(objective, precision)
    opened, data = Model.open(model), open_verified(dataset)
    if opened.link == "softmax" and opened.ranker is None:
        raise ParameterError(
            "scores of softmax models differ by a number per row: use min_probability instead"
        )
    held_out = _held_out_rows(opened, data, part)
    rows, left_out, hashes = usable_rows(held_out.X, held_out.train_X, seed)
    X, Y = take_rows(held_out.X, rows), take_pattern_rows(held_out.Y, rows)
    texts = None if held_out.texts is None else [held_out.texts[row] for row in rows]
    top = Predictor(opened).search(X if texts is None else texts, CANDIDATES).top
    answers = RankedLabels(top.labels, top.scores, matches(top, Y))
    correct = int(answers.correct.sum())
    if correct < FOLDS:
        raise InputError(
            f"{correct} answers are correct on the {len(rows):,} rows that can be used "
            f"({left_out:,} others are copies of training rows), and thresholds need {FOLDS}: "
            "hold out more or other rows",
            code="TOO_FEW_ANSWERS",
        )
    folds = frozen(hashes % np.uint64(FOLDS), np.int64)
    fitted = fit_label_thresholds(answers, Y, folds, held_out.counts, chosen)
    report = {
        "objective": objective,
        "precision": precision,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": {"fitted": len(rows), "left_out": left_out},
        "measures": fitted.measured.measures(len(held_out.counts)),
        "labels_per_row": float(fitted.measured.predicted.sum() / max(len(rows), 1)),
        "never": int(np.isinf(fitted.thresholds).sum()),
        "strength": fitted.strength,
        "candidates": top.labels.shape[1],
        "dataset_hash": data.content_hash,
        "part": part,
        "seed": seed,
    }
    return with_label_thresholds(opened, out, fitted.thresholds, report)


def threshold_objective(name: str, precision: float | None) -> ThresholdObjective:
    """Return the objective of thresholds. Raises ParameterError."""
    if name not in OBJECTIVES:
        raise ParameterError(f"objective must be one of {', '.join(OBJECTIVES)}, not {name[:40]!r}")
    if (name == "precision") != (precision is not None):
        raise ParameterError("give the precision with the objective precision, and only with it")
    if precision is not None and not 0.0 < precision <= 1.0:
        raise ParameterError(f"precision must be above 0 and at most 1, not {precision}")
    return ThresholdObjective(name, precision or 0.0)


def _held_out_rows(model: Model, data: Dataset, part: str) -> UnseenRows:
    """Return the rows of a part with the model's features. Raises as `calibrate`."""
    check_features(model, data)
    split = unseen_part([model], data, part)
    names = model.answer_names.to_pylist()
    place, counts = match_labels(names, data)
    truth = renumber_labels(split.Y, place, len(counts))
    # The training rows of the model itself have precedence over those of the data set.
    if model.label_table is not None and "positives" in model.label_table.column_names:
        own = model.label_table.column("positives").fill_null(0).to_numpy()
        counts = np.concatenate([own, np.zeros(len(names) - len(own))]).astype(np.int64)
    texts: Any = None
    if model.ranker is not None:
        if f"{part}/{TEXTS}" not in data.files:
            raise ParameterError(
                f"the model has a ranker, which needs texts, and data set {data.name} has none in "
                f"part {part!r}: use one that was built from texts"
            )
        texts = [*chain.from_iterable(read_texts(data, part))]
    return UnseenRows(
        split.X, texts, truth, counts[: len(names)], data.train.X if part == "test" else None
    )
