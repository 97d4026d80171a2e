"""Search with label groups against the full product: labels, order and bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.naive import search as naive
from xcray.arrays import CSR, csr, frozen
from xcray.errors import ShapeMismatch
from xcray.index.filters import LabelFilter
from xcray.index.label_groups import LabelGroups
from xcray.index.search import SearchIndex
from xcray.index.weight_scan import scan_postings, scan_weights
from xcray.kernels.search.bounded_scan import SearchOutput
from xcray.kernels.sparse import transpose

N_FEATURES = 40


def random_matrix(rng: Any, n_rows: int, per_row: int, *, coarse: bool) -> CSR:
    """Return (n_rows, N_FEATURES) with weights of either sign; coarse ones make equal scores."""
    columns = [np.sort(rng.choice(N_FEATURES, per_row, replace=False)) for _ in range(n_rows)]
    values = (
        rng.integers(-2, 3, n_rows * per_row) / 4 if coarse else rng.normal(size=n_rows * per_row)
    )
    indptr = per_row * np.arange(n_rows + 1)
    return csr(indptr, np.concatenate(columns), values, N_FEATURES)


def make_index(
    seed: int, n_labels: int, *, coarse: bool = False, dense: bool | None = None
) -> SearchIndex:
    """Return a search over labels in groups of two sizes; every fifth label has no weights."""
    rng = np.random.default_rng(seed)
    W = random_matrix(rng, n_labels, 4, coarse=coarse)
    lengths = np.where(np.arange(n_labels) % 5 == 0, 0, 4)
    kept = np.repeat(lengths > 0, 4)
    W = csr(np.concatenate([[0], np.cumsum(lengths)]), W.indices[kept], W.data[kept], N_FEATURES)
    sizes = (3, 7)
    group_W = random_matrix(rng, sum(sizes), 6, coarse=coarse)
    members = np.column_stack([rng.integers(0, 3, n_labels), 3 + rng.integers(0, 7, n_labels)])
    biases = rng.integers(-3, 2, n_labels + sum(sizes)) / 4
    groups = LabelGroups(
        sizes,
        transpose(group_W),
        frozen(biases[n_labels:], np.float32),
        frozen(members, np.int32),
        0.5 if coarse else 0.7,
    )
    index = SearchIndex.build(W, frozen(biases[:n_labels], np.float32), groups=groups, dense=dense)
    index.compile()  # otherwise NumPy answers
    return index


def full_product(index: SearchIndex, X: CSR) -> Any:
    """Return all scores (n, K): biases, groups from coarse to fine, then the sum over weights."""
    groups = index.groups
    assert groups is not None
    group_scores = groups.share * naive.all_scores(X, groups.W, groups.b)
    biases = np.broadcast_to(index.b.astype(np.float64), (X.n_rows, index.n_labels))
    for column in groups.members.T:
        biases = biases + group_scores[:, column]
    return naive.all_scores(X, index.W, np.zeros(index.n_labels)) + biases


def rows_of(seed: int, n: int = 30) -> CSR:
    """Return rows to search, the last one without features."""
    X = random_matrix(np.random.default_rng(seed), n, 5, coarse=True)
    return csr(np.append(X.indptr, X.indptr[-1]), X.indices, X.data, N_FEATURES)


@pytest.mark.parametrize(
    ("n_labels", "coarse", "dense"),
    [
        (60, False, False),
        (60, True, False),
        (60, False, True),
        (60, True, True),
        (30_000, True, False),
        (70_000, True, False),
    ],
)
def test_search_equals_full_product(n_labels: int, coarse: bool, dense: bool) -> None:
    index = make_index(n_labels, n_labels, coarse=coarse, dense=dense)
    X = rows_of(1, 30 if n_labels < 1000 else 3)
    if n_labels == 30_000:  # only lists of rows without negative values are cut
        X = csr(X.indptr, X.indices, np.abs(X.data), N_FEATURES)
    scores = full_product(index, X)
    for k, allowed in ((1, None), (5, None), (9, np.arange(0, n_labels, 3))):
        only = None if allowed is None else LabelFilter.of(n_labels, allowed)
        found = index.query(X, k, label_filter=only)
        expected = naive.best(scores, k, allowed)
        assert np.array_equal(found.labels, expected.labels)
        assert np.array_equal(found.scores, expected.scores)
        assert found.exact.all()
        other = naive.best_other(scores, found.labels, allowed)
        assert np.all(found.scores[:, -1] - other >= found.bound_gap)


def test_dense_rows_are_used_for_few_labels() -> None:
    index = make_index(4, 60)
    assert index.dense is not None
    result = index.query(rows_of(6, 3), 5)  # a row has five features, the last one none
    assert result.postings_read.tolist() == [300, 300, 300, 0]
    assert make_index(4, 300).dense is None


@pytest.mark.parametrize("n_labels", [20_000, pytest.param(70_000, marks=pytest.mark.drill)])
def test_lists_are_cut(n_labels: int) -> None:
    index = make_index(9, n_labels)
    assert index.groups is not None
    W = index.W
    # few large weights: the threshold is high, and most of every list is far below it
    W = csr(W.indptr, W.indices, W.data**5, N_FEATURES)
    index = SearchIndex.build(W, index.b, groups=replace(index.groups, weight=0.1))
    index.compile()
    X = rows_of(10, 3)
    X = csr(X.indptr, X.indices, np.abs(X.data), N_FEATURES)
    found, expected = index.query(X, 2), naive.best(full_product(index, X), 2)
    assert np.array_equal(found.labels, expected.labels)
    assert np.array_equal(found.scores, expected.scores)
    lengths = np.bincount(W.indices, minlength=N_FEATURES)
    in_lists = np.array([lengths[X.row(i)[0]].sum() for i in range(X.n_rows)])
    assert np.all(found.postings_read[:3] < in_lists[:3] / 2), (found.postings_read, in_lists)
    assert np.all(found.labels_scored[:3] < 100), found.labels_scored


@pytest.mark.drill
@pytest.mark.parametrize(
    ("n_labels", "n_rows", "coarse"),
    [(60, 50_000, True), (2_000, 40_000, False), (30_000, 7_000, True), (70_000, 3_000, True)],
)
def test_many_searches_equal_full_product(n_labels: int, n_rows: int, coarse: bool) -> None:
    index = make_index(n_labels, n_labels, coarse=coarse)
    for seed in range(n_rows // 500):
        X = rows_of(seed, 500)
        scores, k = full_product(index, X), 1 + seed % 10
        allowed = None if seed % 3 else np.arange(seed % 7, n_labels, 3)
        only = None if allowed is None else LabelFilter.of(n_labels, allowed)
        found = index.query(X, k, label_filter=only)
        expected = naive.best(scores, k, allowed)
        assert np.array_equal(found.labels, expected.labels)
        assert np.array_equal(found.scores, expected.scores)
        late = index.query(X, k, label_filter=only, deadline_ms=0.01)
        at = np.take_along_axis(scores, late.labels.astype(np.int64), axis=1)
        assert np.array_equal(late.scores, at)
        assert np.array_equal(late.labels[late.exact], expected.labels[late.exact])


def test_numpy_scans_equal_kernel() -> None:
    index, X = make_index(5, 50), rows_of(2)
    expected = index.query(X, 4)
    for scan in (scan_weights, scan_postings):
        out = SearchOutput(*(np.empty_like(each) for each in expected[:6]))
        scan(X, index.W, index.row_biases(X), None, out)
        assert np.array_equal(out.labels, expected.labels)
        assert np.array_equal(out.scores, expected.scores)


def test_score_and_rank_equal_search() -> None:
    index, X = make_index(6, 50, coarse=True), rows_of(3, 4)
    found = index.query(X, 50)
    for row in range(X.n_rows):
        for place, label in enumerate(found.labels[row].tolist()):
            assert index.score(X, label, row) == found.scores[row, place]
            assert index.rank(X, label, row) == place + 1


def test_deadline_gives_best_found_labels() -> None:
    index, X = make_index(7, 500), rows_of(4)
    scores = full_product(index, X)
    found = index.query(X, 3, deadline_ms=0.0)
    for row in range(X.n_rows):
        assert np.array_equal(scores[row, found.labels[row]], found.scores[row])
        if found.exact[row]:
            best = naive.best(scores[row : row + 1], 3)
            assert np.array_equal(found.labels[row], best.labels[0])


def test_weight_zero_gives_scores_without_groups() -> None:
    index, X = make_index(8, 60), rows_of(5)
    groups = index.groups
    assert groups is not None
    without = SearchIndex.build(index.W, index.b, dense=False).query(X, 5)
    found = index.with_groups(replace(groups, weight=0.0)).query(X, 5)
    assert np.array_equal(found.labels, without.labels)
    assert np.array_equal(found.scores, without.scores)


def test_groups_of_other_sizes_are_refused() -> None:
    index = make_index(9, 20)
    groups = index.groups
    assert groups is not None
    with pytest.raises(ShapeMismatch, match="groups are of 19 labels"):
        index.with_groups(groups.with_members(groups.members[1:]))
    with pytest.raises(ShapeMismatch, match="one group of each size"):
        groups.with_members(groups.members + 5)
    with pytest.raises(ShapeMismatch, match="weights of 10 groups and 10 biases"):
        replace(groups, sizes=(4, 7))
