"""Calibrate an existing model: publish a new model directory that shares files with the old one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from xcray.arrays import Int64, frozen
from xcray.data.dataset import open_verified
from xcray.errors import Conflict
from xcray.model.linked_copy import with_calibration
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.training.calibration.fit import fit_calibration, held_out_part
from xcray.training.edit.apply import (
    LabelChange,
    check_features,
    check_output_path,
    match_labels,
    renumber_labels,
)

NO_LABELS: Int64 = frozen([], np.int64)


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
    check_features(opened, data)
    known = {
        opened.manifest["dataset_hash"],
        *(step.get("dataset_hash") for step in opened.provenance),
    }
    if part == "train" and data.content_hash in known:
        raise Conflict(
            f"the model was trained on the training rows of {data.name}: "
            "calibrate it on rows it has not seen"
        )
    split = held_out_part(data, part)
    place, counts = match_labels(
        LabelChange("calibrate", opened.label_names.to_pylist(), NO_LABELS, NO_LABELS, {}), data
    )
    # The training rows of the model itself have precedence over those of the data set.
    if opened.label_table is not None and "positives" in opened.label_table.column_names:
        counts = opened.label_table.column("positives").fill_null(0).to_numpy().astype(np.int64)
    truth = renumber_labels(
        split.Y, place, max(len(counts), int(place.max(initial=-1)) + 1, opened.n_labels)
    )
    curves, details = fit_calibration(
        Predictor(opened).predict,
        split.X,
        truth,
        counts[: opened.n_labels],
        data.train.X if part == "test" else None,
        seed=seed,
    )
    return with_calibration(
        opened, out, curves, {**details, "dataset_hash": data.content_hash, "part": part}
    )
