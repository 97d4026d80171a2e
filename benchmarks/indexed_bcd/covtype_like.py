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
FLIPPED = 0.03  # wrong labels
SEED = 0


class GeneratedRows(NamedTuple):
    """Rows X (n, 54) and their labels y (n,), 1 or -1."""

    X: CSR
    y: np.ndarray


def generate(n_rows: int = ROWS) -> tuple[GeneratedRows, GeneratedRows]:
    """Return the training and the test rows: two thirds and one third of `n_rows`."""
    rng = np.random.default_rng(SEED)
    area = rng.choice(AREAS, n_rows, p=[0.45, 0.05, 0.44, 0.06])
    frequencies = rng.dirichlet(np.full(SOILS, 0.3), AREAS)
    soil = np.empty(n_rows, np.int64)
    for each in range(AREAS):
        rows = area == each
        soil[rows] = rng.choice(SOILS, rows.sum(), p=frequencies[each])
    numeric = _numeric(rng, soil, n_rows)
    dense = np.zeros((n_rows, NUMERIC + AREAS + SOILS), np.float32)
    dense[:, :NUMERIC] = numeric
    dense[np.arange(n_rows), NUMERIC + area] = 1.0
    dense[np.arange(n_rows), NUMERIC + AREAS + soil] = 1.0
    y = _labels(rng, numeric, dense)
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


def _numeric(rng: np.random.Generator, soil: np.ndarray, n_rows: int) -> np.ndarray:
    """Return correlated numeric features from 0 to 1: (n_rows, NUMERIC)."""
    means = rng.normal(size=(SOILS, NUMERIC))
    mixing = np.eye(NUMERIC) + 0.4 * rng.normal(size=(NUMERIC, NUMERIC))
    values = means[soil] + rng.normal(size=(n_rows, NUMERIC)) @ mixing
    low, high = values.min(0), values.max(0)
    out: np.ndarray = (values - low) / (high - low)
    return out


def _labels(rng: np.random.Generator, numeric: np.ndarray, dense: np.ndarray) -> np.ndarray:
    """Return labels, 1 or -1: (n_rows,)."""
    linear = dense @ rng.normal(size=dense.shape[1])
    scaled = (numeric - numeric.mean(0)) / numeric.std(0)
    curved = scaled[:, 0] * scaled[:, 1] + scaled[:, 2] * scaled[:, 3] - scaled[:, 4] ** 2
    score = linear / linear.std() + 0.3 * curved / curved.std()
    score += 0.3 * rng.logistic(size=len(score))
    y = np.where(score > np.quantile(score, 1.0 - POSITIVE_SHARE), 1, -1)
    y[rng.random(len(y)) < FLIPPED] *= -1
    return y
