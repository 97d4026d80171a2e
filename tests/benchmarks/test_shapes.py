"""Corpora with the shapes of public data sets.

They are reproducible from a seed, canonical, partly learnable, and have the requested statistics.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.data.corpus import BLOCK, Shape, deal, generate, label_uses, make_lists, ranks
from benchmarks.data.shapes import TASKS, prepare, statistics
from xcray.data.dataset import Dataset
from xcray.data.synthetic import random_stream
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


def labels_of(dataset: Dataset) -> Any:
    return dataset.train.Y.to_scipy().toarray().astype(bool)


def test_a_seed_determines_the_corpus(tiny: Dataset, tmp_path: Path) -> None:
    assert generate(TINY, tmp_path / "again").content_hash == tiny.content_hash
    assert generate(replace(TINY, seed=1), tmp_path / "other").content_hash != tiny.content_hash


def test_rows_are_canonical(tiny: Dataset) -> None:
    assert tiny.train.X.shape == (5000, 4000)
    assert tiny.test is not None
    assert tiny.test.X.shape == (500, 4000)
    for part in tiny.splits.values():
        assert part.Y.n_cols == 500
        np.testing.assert_allclose(part.X.to_scipy().power(2).sum(axis=1), 1.0, rtol=1e-5)
        for matrix in (part.X, part.Y):
            row = np.repeat(np.arange(matrix.n_rows), np.diff(matrix.indptr))
            assert (np.diff(matrix.indices)[np.diff(row) == 0] > 0).all()
            assert np.diff(matrix.indptr).min() >= 1


def test_splits_inside_a_block_lose_no_row(tiny: Dataset) -> None:
    assert TINY.rows % BLOCK
    assert tiny.test is not None
    counts = np.diff(tiny.train.YT.indptr) + np.diff(tiny.test.YT.indptr)
    uses = label_uses(500, int(5500 * 3.0), 2, 110)
    assert 0.97 * uses.sum() <= counts.sum() <= uses.sum()  # less the labels dealt to a row twice
    assert np.abs(np.sort(counts)[::-1] - uses).max() <= 0.2 * uses.max()


def test_statistics_are_near_the_requested_ones(tiny: Dataset) -> None:
    train = tiny.train
    assert 30 <= train.X.nnz / train.n_rows <= 40  # repeated words are merged
    assert 2.85 <= train.Y.nnz / train.n_rows <= 3.0
    assert tiny.label_counts.max() <= 0.02 * 5500
    assert np.median(tiny.label_counts) < tiny.label_counts.mean() / 2
    df = np.sort(np.diff(train.XT.indptr))[::-1]
    assert 0.1 <= df[0] / train.n_rows <= 0.6  # no stop words, but some common words
    assert df[:400].sum() > 5 * df[-400:].sum()


def test_numbers_do_not_correlate_with_counts(tiny: Dataset) -> None:
    for counts in (np.diff(tiny.train.XT.indptr), tiny.label_counts):
        places = np.corrcoef(np.arange(len(counts)), counts)[0, 1]
        neighbours = np.corrcoef(counts[:-1], counts[1:])[0, 1]
        assert abs(places) < 0.15
        assert abs(neighbours) < 0.15


def test_labels_of_a_row_are_mostly_siblings() -> None:
    def share(kin: float) -> float:
        shape = replace(TINY, kin=kin)
        rng = random_stream(shape.seed, 0)
        topic_of = make_lists(shape, rng).topic_of
        dealt = deal(shape, topic_of, rng)
        topics = np.split(topic_of[dealt.labels], dealt.indptr[1:-1])
        return float(
            np.mean(
                [
                    Counter(row.tolist()).most_common(1)[0][1] / len(row)
                    for row in topics
                    if len(row) > 2
                ]
            )
        )

    assert share(1.0) > 0.75 > share(0.0)


def test_siblings_share_words() -> None:
    lists = make_lists(TINY, random_stream(0, 0))
    sets = [set(words.tolist()) for words in lists.labels]
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, TINY.labels, (20_000, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    common = np.array([len(sets[a] & sets[b]) for a, b in pairs])
    kin = lists.topic_of[pairs[:, 0]] == lists.topic_of[pairs[:, 1]]
    assert kin.sum() > 100
    assert common[kin].mean() > 2 * common[~kin].mean()


@pytest.mark.parametrize(("exponent", "shift"), [(1.0, 3.0), (1.05, 30.0), (0.5, 200.0)])
def test_ranks_follow_their_distribution(exponent: float, shift: float) -> None:
    n = 50
    edges = np.arange(n + 1) + shift
    integral = np.log(edges) if exponent == 1.0 else edges ** (1.0 - exponent) / (1.0 - exponent)
    expected = np.diff(integral) / (integral[-1] - integral[0])
    result = (
        np.bincount(ranks((np.arange(200_000) + 0.5) / 200_000, n, exponent, shift), minlength=n)
        / 200_000
    )
    np.testing.assert_allclose(result, expected, atol=2e-5)


def test_label_uses_add_up_between_their_bounds() -> None:
    uses = label_uses(10_000, 40_000, 2, 300)
    assert abs(uses.sum() - 40_000) < 400
    assert (uses[0], uses[-1]) == (300, 2)
    assert (np.diff(uses) <= 0).all()


def test_words_from_labels_make_rows_learnable(tmp_path: Path) -> None:
    """With more words from the labels, the nearest row more often shares a label."""

    def share_of_matches(from_labels: float) -> float:
        dataset = generate(
            replace(TINY, from_labels=from_labels, from_topics=0.0), tmp_path / str(from_labels)
        )
        assert dataset.test is not None
        nearest = (dataset.test.X.to_scipy() @ dataset.train.X.to_scipy().T).argmax(axis=1).A1
        own = dataset.test.Y.to_scipy().toarray().astype(bool)
        return float((labels_of(dataset)[nearest] & own).any(axis=1).mean())

    little, much = share_of_matches(0.05), share_of_matches(0.6)
    assert little < 0.5 * much


def test_a_set_is_generated_trained_and_cached(tmp_path: Path) -> None:
    row = prepare("lshtc1", tmp_path / "lshtc1", scale=0.02, threads=1)
    dataset, model = (
        Dataset.open(tmp_path / "lshtc1" / "dataset"),
        Model.open(tmp_path / "lshtc1" / "model"),
    )
    assert (
        (row["labels"], row["rows"], row["queries"])
        == (240, 1876, 187)
        == (model.n_labels, dataset.train.n_rows, dataset["test"].n_rows)
    )
    assert row["measures"]["P@1"] > 20 / 240
    assert row["measures"]["P@1"] < 0.9
    assert json.loads((tmp_path / "lshtc1" / "READY").read_text()) == row
    assert sorted(path.name for path in (tmp_path / "lshtc1").iterdir()) == [
        "READY",
        "dataset",
        "model",
    ]
    assert prepare("lshtc1", tmp_path / "lshtc1") == row


def test_statistics_count_postings_per_query(tmp_path: Path) -> None:
    prepare("lshtc1", tmp_path, scale=0.01, threads=1)
    dataset, model = Dataset.open(tmp_path / "dataset"), Model.open(tmp_path / "model")
    result = statistics(dataset, model)
    queries, weights = dataset["test"].X.to_scipy(), model.W.to_scipy()
    touched = (queries != 0).astype(np.int64) @ (weights != 0).astype(np.int64).T
    assert result["postings_per_query"] == pytest.approx(touched.sum() / queries.shape[0], abs=0.06)
    assert result["weights_per_label"] == pytest.approx(weights.nnz / 120, abs=0.006)


def test_every_shape_is_valid_at_every_scale() -> None:
    for task in TASKS.values():
        for scale in (1.0, 0.1, 0.0001):
            shape = task.shape.scaled(scale)
            assert min(shape.rows, shape.labels, shape.held_out) >= 1
            assert shape.features >= shape.listed
            assert shape.from_labels + shape.from_topics <= 1.0
