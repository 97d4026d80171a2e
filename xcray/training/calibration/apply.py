"""Calibration of a model that is there: a new model directory with probabilities, which shares its files with the old one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from xcray.arrays import Int64, frozen
from xcray.data.dataset import Dataset
from xcray.errors import Conflict
from xcray.model.linked_copy import with_calibration
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.training.calibration.fit import calibrated, held_out
from xcray.training.edit.apply import Change, check_features, check_out, matched, renumbered

NONE: Int64 = frozen([], np.int64)


def calibrate(
    model: str | Path,
    dataset: str | Path,
    out: str | Path,
    *,
    part: str = "test",
    seed: int = 0,
    ks: Sequence[int] = (1, 3, 5),
) -> Model:
    """Publish the model with probabilities at `out`; it shares its files with the one at `model`, which stays as it is.

    dataset: one with the model's features; its rows of `part` are what is fitted and measured on, labels matched by name.
    part="train" is for rows that came after the training: the data set that the model was trained on is refused. seed: of the
    split into rows to fit and rows to measure on. ks: places of the report.
    Raises NotFound, Corrupt, Conflict (`out` exists), ShapeMismatch for other features, InputError when there are no held-out
    rows (NO_HELD_OUT) or too few right answers (TOO_FEW_ANSWERS).
    """
    check_out(out)
    opened, data = Model.open(model), Dataset.open(dataset)
    check_features(opened, data)
    known = {
        opened.manifest["dataset_hash"],
        *(step.get("dataset_hash") for step in opened.provenance),
    }
    if part == "train" and data.content_hash in known:
        raise Conflict(
            f"the model was trained on the training rows of {data.name}: calibrate it on rows it has not seen"
        )
    split = held_out(data, part)
    place, counts = matched(
        Change("calibrate", opened.label_names.to_pylist(), NONE, NONE, {}), data
    )
    if (
        opened.classes is not None and "positives" in opened.classes.column_names
    ):  # what it was trained on, whatever the data set
        counts = opened.classes.column("positives").fill_null(0).to_numpy().astype(np.int64)
    truth = renumbered(
        split.Y, place, max(len(counts), int(place.max(initial=-1)) + 1, opened.n_labels)
    )
    curves, facts = calibrated(
        Predictor(opened).predict,
        split.X,
        truth,
        counts[: opened.n_labels],
        data.train.X if part == "test" else None,
        seed=seed,
        ks=ks,
    )
    return with_calibration(
        opened, out, curves, {**facts, "dataset_hash": data.content_hash, "part": part}
    )
