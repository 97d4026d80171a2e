"""Data sets of the sizing benchmark: synthetic ones over a grid of shapes, and real ones.

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

    fit: whether constants were fitted to it. made: parameters of a synthetic set, None for a real
    one.
    fresh: first run with the final formula; the other sets without fit were inspected while the
    form of the formula was chosen.
    """

    name: str
    fit: bool
    made: Dense | SyntheticParams | float | None = None
    fresh: bool = False

    @property
    def role(self) -> str:
        """What a result on it is worth."""
        return "fitted" if self.fit else "fresh" if self.fresh else "looked at"


def _text(
    rows: int, features: int, labels: int, nnz: float, per_row: float, **more: float
) -> SyntheticParams:
    """Return the parameters of a sparse set."""
    return SyntheticParams(
        rows=rows, features=features, labels=labels, nnz_per_row=nnz, labels_per_row=per_row, **more
    )  # type: ignore[arg-type]


CASES = (
    Case("bibtex", True),
    Case("gutenberg_lcsh", True),
    Case("clef_imclef07a", True),
    Case("cooking", False),
    Case("news20_bydate", False),
    Case("gnd_tibkat", False),
    Case("mnist", False),
    Case("kddcup99_10pct", False),
    Case("pydocs", False),
    Case("sparse-1e3-few", True, _text(1_000, 5_000, 50, 30, 2)),
    Case("sparse-1e4", False, _text(10_000, 20_000, 1_000, 50, 2)),
    Case("sparse-1e4-many", True, _text(10_000, 30_000, 10_000, 40, 5)),
    Case("sparse-1e5-few", True, _text(100_000, 50_000, 20, 30, 1)),
    Case("sparse-1e5", False, _text(100_000, 50_000, 1_000, 20, 2)),
    Case("sparse-3e4-many", False, _text(30_000, 100_000, 10_000, 60, 3, signal=0.3)),
    Case("sparse-long", True, _text(5_000, 100_000, 500, 400, 3)),
    Case("sparse-1e3-many", False, _text(1_000, 10_000, 5_000, 80, 20)),
    Case("sparse-noise", False, _text(20_000, 20_000, 300, 30, 2, label_noise=0.3)),
    Case("dense-1e3", True, Dense(1_000, 50, 20)),
    Case("dense-1e4", False, Dense(10_000, 100, 50)),
    Case("dense-1e4-wide", True, Dense(10_000, 500, 20)),
    Case("dense-1e5", True, Dense(100_000, 32, 10)),
    Case("dense-1e5-half", False, Dense(100_000, 64, 20, share=0.5)),
    Case("dense-many", False, Dense(5_000, 64, 1_000, 2)),
    Case("dense-2000", True, Dense(3_000, 2_000, 10)),
    Case("dense-1500", False, Dense(2_000, 1_500, 30, spread=1.0)),
    Case("unit-1e4", True, Dense(10_000, 384, 500, 2, unit=True)),
    Case("unit-3e4", False, Dense(30_000, 128, 2_000, 2, unit=True)),
    Case("unit-3e3-wide", False, Dense(3_000, 768, 100, 1, unit=True)),
    Case("shape-lshtc1", True, 0.1),
    Case("shape-wiki", False, 0.03),
    Case("shape-amazon", False, 0.03),
    Case("fresh-sparse-5e3", False, _text(5_000, 8_000, 2_000, 25, 3, seed=11), True),
    Case(
        "fresh-sparse-4e4",
        False,
        _text(40_000, 20_000, 100, 40, 1, seed=12, feature_exponent=0.8),
        True,
    ),
    Case(
        "fresh-sparse-2e4",
        False,
        _text(20_000, 60_000, 3_000, 90, 4, seed=13, own_features=20, label_exponent=0.7),
        True,
    ),
    Case("fresh-dense", False, Dense(20_000, 200, 30, spread=0.9), True),
    Case("fresh-dense-many", False, Dense(3_000, 150, 400, 3), True),
    Case("fresh-unit", False, Dense(8_000, 256, 300, 1, unit=True, spread=0.9), True),
)


def opened(case: Case, data: Path | None, folder: Path) -> Dataset:
    """Return the data set of a case in `folder`; create it if missing."""
    target = folder / case.name
    if case.made is None:
        return dataset(case.name, data, folder)
    if target.exists():
        return Dataset.open(target)
    if isinstance(case.made, float):
        return corpus.generate(
            TASKS[case.name.removeprefix("shape-")].shape.scaled(case.made), target
        )
    X, Y = points(case.made) if isinstance(case.made, Dense) else generate(case.made)
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
