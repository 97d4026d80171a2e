"""A model that is a chain of two stages, with the scores of its rows in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xcray.arrays import Float32, csr_from
from xcray.data.dataset import Dataset
from xcray.features.fourier import random_fourier
from xcray.index.simplex import project_on_simplex
from xcray.index.staged import Stage, StageCalibration
from xcray.model.model import Model
from xcray.model.write import ModelContent, TrainingRecord, write_model

D, K, OUTPUTS = 6, 4, 5
LABELS = ["red", "green", "blue", "grey"]
FEATURES = [f"f{i}" for i in range(D)]
_RANDOM = np.random.default_rng(11)


def _numbers(*shape: int) -> Float32:
    """Return random float32 numbers of this shape."""
    return _RANDOM.normal(size=shape).astype(np.float32)


# a sparse stage over the input, then a calibrated one over random Fourier features
STAGES = (
    Stage(csr_from(_numbers(D, K) * (_RANDOM.random((D, K)) < 0.5)), _numbers(K)),
    Stage(
        _numbers(OUTPUTS, K),
        _numbers(K),
        random_fourier(D, OUTPUTS, 4.0, seed=1),
        StageCalibration(_numbers(3 * K, K), _numbers(K)),
    ),
)
ROWS = csr_from(_numbers(7, D) * (_RANDOM.random((7, D)) < 0.7))


def staged_content(stages: Sequence[Stage] = STAGES, **more: Any) -> ModelContent:
    """Return the content of a model with these stages."""
    return ModelContent(None, None, LABELS, FEATURES, stages=stages, **more)


def replay(X: Any, stages: Sequence[Stage] = STAGES) -> Any:
    """Return the scores (n, K) of rows by the definition of a chain, in double precision."""
    y = np.zeros((X.n_rows, K))
    for stage in stages:
        outputs = X if stage.features is None else stage.features.transform(X)
        F = outputs if isinstance(outputs, np.ndarray) else outputs.to_scipy().toarray()
        W = stage.W if isinstance(stage.W, np.ndarray) else stage.W.to_scipy().toarray()
        y = y + F.astype(np.float64) @ W.astype(np.float64) + stage.b
        if stage.calibration is not None:
            cubic = np.hstack((y, y**2, y**3)) @ stage.calibration.C.astype(np.float64)
            y = project_on_simplex(cubic + stage.calibration.c)
    return y


def text_chain(path: Path, data: Dataset) -> Model:
    """Write a model of two stages for the texts of a data set, better than chance.

    The weights of the first stage are the feature sums of the rows of each label.
    """
    X, Y = data.train.X.to_scipy(), data.train.Y.to_scipy()
    n_features, n_labels = X.shape[1], Y.shape[1]
    small = np.full((OUTPUTS, n_labels), 0.01, np.float32)
    zeros = np.zeros(n_labels, np.float32)
    stages = (
        Stage(csr_from((X.T @ Y).astype(np.float32)), zeros),
        Stage(small, zeros, random_fourier(n_features, OUTPUTS, 4.0, seed=1)),
    )
    content = ModelContent(
        None, None, data.label_names, data.feature_names, text=data.text, stages=stages
    )
    return write_model(path, content, TrainingRecord("stagewise", {}, data.content_hash))
