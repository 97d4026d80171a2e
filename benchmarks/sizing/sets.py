"""Data sets of the sizing benchmark: synthetic ones of several shapes, and real ones.

Sparse sets come from `xcray.data.synthetic`, text-like ones from `benchmarks.data.corpus`. Dense
ones are classes of points around centres that several labels share. A core trains each set in about
a minute, or solves a sample.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common import dataset
from benchmarks.data import corpus
from benchmarks.data.shapes import TASKS
from xcray.arrays import CSR, Pattern, csr_from, pattern
from xcray.data.dataset import Dataset
from xcray.data.synthetic import SyntheticParams, generate
from xcray.data.writer import DatasetWriter


class Dense(NamedTuple):
    """Dense rows: N x D, K labels.

    per_row: labels per row. spread: noise relative to distances of centres. unit: rows of length 1,
    as embeddings are; otherwise features are standardised. share: of the features that a row has.
    """

    rows: int
    features: int
    labels: int
    per_row: int = 1
    spread: float = 0.7
    unit: bool = False
    share: float = 1.0


class Case(NamedTuple):
    """A data set.

    synthetic: parameters of a synthetic set, or its share of a famous set; None for a real one.
    """

    name: str
    synthetic: Dense | SyntheticParams | float | None = None


def _text(
    rows: int, features: int, labels: int, nnz: float, per_row: float, **more: float
) -> SyntheticParams:
    """Return the parameters of a sparse set."""
    return SyntheticParams(
        rows=rows, features=features, labels=labels, nnz_per_row=nnz, labels_per_row=per_row, **more
    )  # type: ignore[arg-type]


CASES = (
    Case("bibtex"),
    Case("gutenberg_lcsh"),
    Case("clef_imclef07a"),
    Case("cooking"),
    Case("news20_bydate"),
    Case("gnd_tibkat"),
    Case("mnist"),
    Case("kddcup99_10pct"),
    Case("pydocs"),
    Case("sparse-1e3-many", _text(1_000, 10_000, 5_000, 80, 20)),
    Case("sparse-1e4", _text(10_000, 20_000, 1_000, 50, 2)),
    Case("sparse-1e5-few", _text(100_000, 50_000, 20, 30, 1)),
    Case("sparse-long", _text(5_000, 100_000, 500, 400, 3)),
    Case("sparse-noise", _text(20_000, 20_000, 300, 30, 2, label_noise=0.3)),
    Case("dense-1e4", Dense(10_000, 100, 50)),
    Case("dense-1e5-half", Dense(100_000, 64, 20, share=0.5)),
    Case("dense-many", Dense(5_000, 64, 1_000, 2)),
    Case("dense-2000", Dense(3_000, 2_000, 10)),
    Case("unit-1e4", Dense(10_000, 384, 500, 2, unit=True)),
    Case("unit-3e3-wide", Dense(3_000, 768, 100, 1, unit=True)),
    Case("shape-lshtc1", 0.1),
    Case("shape-wiki", 0.03),
    Case("shape-amazon", 0.03),
)


def opened(case: Case, data: Path | None, folder: Path) -> Dataset:
    """Return the data set of a case in `folder`; create it if missing."""
    target = folder / case.name
    if case.synthetic is None:
        return dataset(case.name, data, folder)
    if target.exists():
        return Dataset.open(target)
    if isinstance(case.synthetic, float):
        return corpus.generate(
            TASKS[case.name.removeprefix("shape-")].shape.scaled(case.synthetic), target
        )
    X, Y = points(case.synthetic) if isinstance(case.synthetic, Dense) else generate(case.synthetic)
    with DatasetWriter(target, name=case.name, n_features=X.n_cols, n_labels=Y.n_cols) as writer:
        writer.add("train", X, Y)
        return writer.finish(source={"format": "made"})


def points(shape: Dense) -> tuple[CSR, Pattern]:
    """Draw rows around the mean of their labels' centres.

    D/2 of the features carry no information. Labels are drawn in proportion to k^-0.5.
    """
    n, d, K = shape.rows, shape.features, shape.labels
    rng = np.random.default_rng([n, d, K])
    shares = np.arange(1, K + 1) ** -0.5
    Y = np.sort(
        np.stack([rng.choice(K, n, p=shares / shares.sum()) for _ in range(shape.per_row)], axis=1),
        axis=1,
    )
    centres = np.where(np.arange(d) % 2 == 0, rng.normal(size=(K, d)), 0.0).astype(np.float32)
    X = (1.0 - shape.spread / 2) * centres[Y].mean(axis=1) + shape.spread * rng.normal(
        size=(n, d)
    ).astype(np.float32)
    X = (
        X / np.linalg.norm(X, axis=1, keepdims=True)
        if shape.unit
        else (X - X.mean(axis=0)) / X.std(axis=0)
    )
    X = np.where(rng.random(X.shape) < shape.share, X, 0.0) if shape.share < 1.0 else X
    keep = np.concatenate([np.ones((n, 1), bool), np.diff(Y, axis=1) > 0], axis=1)
    return csr_from(X.astype(np.float32)), pattern(
        np.concatenate([[0], np.cumsum(keep.sum(axis=1))]), Y[keep], K
    )
