"""A generated set with the shape of covtype: many rows, few features, classes that overlap.

Covtype (UCI) has 581,012 rows of forest cover, with 10 numeric features and the one-hot coded
wilderness area (4) and soil type (40); linear models of class 2 against the rest err on 23 to 24 %.
The generated rows have the same numbers of features, and classes that overlap as much:

- the area has one of four frequencies; each area has its own frequencies of soil types, of which
  few are frequent;
- numeric features are normal around a mean of the soil type, with correlations, scaled to 0 ... 1;
- the label depends on a linear function of all features, on products of numeric features that no
  linear model can represent, and on noise; 3 % of the labels are wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from xcray.arrays import CSR, csr_from, pattern
from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter

NAME = "covtype-like"
ROWS = 581_012
NUMERIC, AREAS, SOILS = 10, 4, 40
TEST_SHARE = 1 / 3  # as in the paper
POSITIVE_SHARE = 0.4876  # of class 2 in covtype
AREA_SHARES = (0.45, 0.05, 0.44, 0.06)
SCALE = 0.12  # of numeric features
NOISE = 0.45  # of the score that decides on the label
FLIPPED = 0.03  # wrong labels
SEED = 0


class GeneratedRows(NamedTuple):
    """Rows X (n, 54) and their labels y (n,), 1 or -1."""

    X: CSR
    y: np.ndarray


class Model(NamedTuple):
    """Parameters of the generator; they do not depend on the number of rows.

    soils: (AREAS, SOILS) frequencies; means: (SOILS, NUMERIC); mixing: (NUMERIC, NUMERIC); weights:
    (features,) of the linear part of the label.
    """

    soils: np.ndarray
    means: np.ndarray
    mixing: np.ndarray
    weights: np.ndarray


def draw_model() -> Model:
    """Return the parameters of the generator."""
    rng = np.random.default_rng(SEED)
    return Model(
        rng.dirichlet(np.full(SOILS, 0.3), AREAS),
        rng.normal(size=(SOILS, NUMERIC)),
        np.eye(NUMERIC) + 0.4 * rng.normal(size=(NUMERIC, NUMERIC)),
        rng.normal(size=NUMERIC + AREAS + SOILS),
    )


def generate(n_rows: int = ROWS) -> tuple[GeneratedRows, GeneratedRows]:
    """Return the training and the test rows: two thirds and one third of `n_rows`."""
    model, rng = draw_model(), np.random.default_rng([SEED, 1])
    area = rng.choice(AREAS, n_rows, p=AREA_SHARES)
    soil = np.empty(n_rows, np.int64)
    for each in range(AREAS):
        rows = area == each
        soil[rows] = rng.choice(SOILS, rows.sum(), p=model.soils[each])
    values = model.means[soil] + rng.normal(size=(n_rows, NUMERIC)) @ model.mixing
    dense = np.zeros((n_rows, NUMERIC + AREAS + SOILS), np.float32)
    dense[:, :NUMERIC] = np.clip(0.5 + SCALE * values, 0.0, 1.0)
    dense[np.arange(n_rows), NUMERIC + area] = 1.0
    dense[np.arange(n_rows), NUMERIC + AREAS + soil] = 1.0
    y = _labels(rng, model, dense, values)
    n_train = n_rows - int(TEST_SHARE * n_rows)
    train, test = slice(0, n_train), slice(n_train, None)
    return (
        GeneratedRows(csr_from(dense[train]), y[train]),
        GeneratedRows(csr_from(dense[test]), y[test]),
    )


def write(target: Path, n_rows: int = ROWS) -> Dataset:
    """Write the rows as a data set; label 1 are the positives."""
    with DatasetWriter(target, name=target.name, n_labels=2) as writer:
        for part, (X, y) in zip(("train", "test"), generate(n_rows), strict=True):
            writer.add(part, X, pattern(np.arange(len(y) + 1), (y > 0).astype(np.int32), 2))
        return writer.finish(source={"format": "generated"})


def _labels(
    rng: np.random.Generator, model: Model, dense: np.ndarray, values: np.ndarray
) -> np.ndarray:
    """Return labels, 1 or -1: (n,). values: (n, NUMERIC) before they are scaled."""
    linear = dense @ model.weights
    curved = values[:, 0] * values[:, 1] + values[:, 2] * values[:, 3] - values[:, 4] ** 2
    score = linear / linear.std() + 0.3 * curved / curved.std()
    score += NOISE * rng.logistic(size=len(score))
    y = np.where(score > np.quantile(score, 1.0 - POSITIVE_SHARE), 1, -1)
    y[rng.random(len(y)) < FLIPPED] *= -1
    return y
