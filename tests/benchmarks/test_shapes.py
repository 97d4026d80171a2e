"""Corpora with the shapes of public data sets.

They are reproducible from a seed and have the requested statistics.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.data.corpus import Shape, generate, label_uses
from benchmarks.data.shapes import prepare, statistics
from xcray.data.dataset import Dataset
from xcray.model.model import Model

TINY = Shape(
    "tiny",
    labels=500,
    features=4000,
    rows=5000,
    words_per_row=40,
    labels_per_row=3.0,
    held_out=500,
    least=2,
    most=0.02,
    from_labels=0.3,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return generate(TINY, tmp_path_factory.mktemp("shapes") / "tiny")


def test_a_seed_determines_the_corpus(tiny: Dataset, tmp_path: Path) -> None:
    assert generate(TINY, tmp_path / "again").content_hash == tiny.content_hash
    assert generate(replace(TINY, seed=1), tmp_path / "other").content_hash != tiny.content_hash


def test_statistics_are_near_the_requested_ones(tiny: Dataset) -> None:
    train = tiny.train
    assert 30 <= train.X.nnz / train.n_rows <= 40  # repeated words are merged
    assert 2.85 <= train.Y.nnz / train.n_rows <= 3.0
    assert tiny.label_counts.max() <= 0.02 * 5500
    assert np.median(tiny.label_counts) < tiny.label_counts.mean() / 2
    df = np.sort(np.diff(train.XT.indptr))[::-1]
    assert 0.1 <= df[0] / train.n_rows <= 0.6  # no stop words, but some common words
    assert df[:400].sum() > 5 * df[-400:].sum()


def test_label_uses_add_up_between_their_bounds() -> None:
    uses = label_uses(10_000, 40_000, 2, 300)
    assert abs(uses.sum() - 40_000) < 400
    assert (uses[0], uses[-1]) == (300, 2)
    assert (np.diff(uses) <= 0).all()


def test_statistics_count_postings_per_query(tmp_path: Path) -> None:
    prepare("lshtc1", tmp_path, scale=0.01, threads=1)
    dataset, model = Dataset.open(tmp_path / "dataset"), Model.open(tmp_path / "model")
    result = statistics(dataset, model)
    queries, weights = dataset["test"].X.to_scipy(), model.W.to_scipy()
    touched = (queries != 0).astype(np.int64) @ (weights != 0).astype(np.int64).T
    assert result["postings_per_query"] == pytest.approx(touched.sum() / queries.shape[0], abs=0.06)
    assert result["weights_per_label"] == pytest.approx(weights.nnz / 120, abs=0.006)
