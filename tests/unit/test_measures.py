"""Measures: computed by hand, compared with naive code and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from tests.naive import metrics as naive
from xcray import measures
from xcray.arrays import Pattern, TopK, pattern, pattern_from
from xcray.data.unseen import with_unseen
from xcray.errors import ParameterError, ShapeMismatch


def truth(rows, n_labels) -> Pattern:
    """Return the Pattern of label sets."""
    return pattern(
        np.cumsum([0] + [len(row) for row in rows]),
        [label for row in rows for label in sorted(row)],
        n_labels,
    )


def ranking(rows) -> TopK:
    """Return a TopK with falling scores."""
    labels = np.array(rows, np.int32)
    return TopK(labels, np.tile(-np.arange(labels.shape[1], dtype=np.float64), (len(labels), 1)))


@st.composite
def cases(draw):
    """Draw (ranked, true, K): complete or cut rankings, and sets of labels, some of them empty."""
    n, K = draw(st.integers(1, 7)), draw(st.integers(1, 8))
    width = draw(st.integers(1, K))
    ranked = [draw(st.permutations(range(K)))[:width] for _ in range(n)]
    true = [draw(st.sets(st.integers(0, K - 1))) for _ in range(n)]
    return ranked, true, K


def test_by_hand():
    Y, top = truth([{0, 2}, {1}, set()], 4), ranking([[2, 1, 0], [0, 3, 1], [0, 1, 2]])
    assert measures.precision_at_k(top, Y, 1) == pytest.approx(1 / 2)
    assert measures.precision_at_k(top, Y, 3) == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert measures.recall_at_k(top, Y, 2) == pytest.approx((1 / 2 + 0) / 2)
    assert measures.ndcg_at_k(top, Y, 3) == pytest.approx(
        ((1 + 1 / 2) / (1 + 1 / math.log2(3)) + 1 / 2) / 2
    )
    assert measures.label_coverage(top, Y, 1) == pytest.approx(1 / 3)
    assert measures.accuracy(top, Y) == pytest.approx(1 / 2)


def test_labels_that_training_lacks_are_misses():
    Y, top = truth([{0, 2}, {1}, set(), set()], 4), ranking([[2, 1], [1, 0], [0, 1], [0, 1]])
    whole, counts = with_unseen(Y, [1, 1, 1, 1], np.array([0, 1, 2, 0]))
    assert [whole.row(i).tolist() for i in range(4)] == [[0, 2], [1, 4], [4, 5], []]
    assert counts.tolist() == [1, 1, 1, 1, 0, 0]
    found = measures.evaluate(top, whole, ks=(1, 2))
    assert (found["P@1"], found["recall@2"]) == pytest.approx((2 / 3, 1 / 3))
    assert found["F1@1"] == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)
    assert found["nDCG@1"] == pytest.approx(2 / 3)
    assert with_unseen(Y, [1] * 4, None)[0] is Y


def test_propensity_by_hand():
    weights = measures.inverse_propensities([1, 10], 100)
    expected = [1 + (math.log(100) - 1) * 2.5**0.55 * (n + 1.5) ** -0.55 for n in (1, 10)]
    np.testing.assert_allclose(weights, expected, rtol=1e-14)
    Y, top = truth([{0, 1}, {1}], 2), ranking([[1], [1]])
    assert measures.psp_at_k(top, Y, 1, [3.0, 2.0]) == pytest.approx((2 + 2) / (3 + 2))
    assert measures.psp_at_k(ranking([[0], [1]]), Y, 1, [3.0, 2.0]) == 1.0
    second = ranking([[1, 0], [0, 1]])
    ideal, log3 = 1 + 1 / math.log2(3), math.log2(3)
    actual, best = (2 + 3 / log3) / ideal + 2 / log3, (3 + 2 / log3) / ideal + 2
    assert measures.psndcg_at_k(second, Y, 2, [3.0, 2.0]) == pytest.approx(actual / best)


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(1, 6), st.lists(st.integers(0, 50), min_size=8, max_size=8))
def test_equals_the_naive_twin(case, k, counts):
    ranked, true, K = case
    top, Y = ranking(ranked), truth(true, K)
    weights = measures.inverse_propensities(counts[:K], 60)
    np.testing.assert_allclose(
        weights, [naive.inverse_propensity(n, 60) for n in counts[:K]], rtol=1e-12
    )
    pairs = [
        (measures.precision_at_k(top, Y, k), naive.precision(ranked, true, k)),
        (measures.recall_at_k(top, Y, k), naive.recall(ranked, true, k)),
        (measures.ndcg_at_k(top, Y, k), naive.ndcg(ranked, true, k)),
        (measures.psp_at_k(top, Y, k, weights), naive.psp(ranked, true, k, weights)),
        (measures.psndcg_at_k(top, Y, k, weights), naive.psndcg(ranked, true, k, weights)),
        (measures.label_coverage(top, Y, k), naive.coverage(ranked, true, k)),
    ]
    for actual, expected in pairs:
        assert actual == pytest.approx(expected, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 6))
def test_equals_scikit_learn(seed, K, k):
    rng = np.random.default_rng(seed)
    dense, scores = (
        rng.random((9, K)) < 0.4,
        rng.permuted(np.tile(np.arange(K, dtype=float), (9, 1)), axis=1),
    )
    Y, order = pattern_from(dense), np.argsort(-scores, axis=1)
    top = TopK(order.astype(np.int32), np.take_along_axis(scores, order, axis=1))
    own = dense.any(axis=1)
    if own.any():
        expected = sk.ndcg_score(dense[own], scores[own], k=k)
        assert measures.ndcg_at_k(top, Y, k) == pytest.approx(expected)
    guess = rng.random((9, K)) < 0.4
    actual = measures.f1(pattern_from(guess), Y)
    assert actual["micro-F1"] == pytest.approx(
        sk.f1_score(dense, guess, average="micro", zero_division=0)
    )
    assert actual["macro-F1"] == pytest.approx(
        sk.f1_score(dense, guess, average="macro", zero_division=0)
    )
    single = rng.integers(0, K, 9)
    assert measures.accuracy(top, truth([{label} for label in single], K)) == pytest.approx(
        sk.accuracy_score(single, order[:, 0])
    )


def test_evaluate_names_what_it_can_measure():
    Y, top = truth([{0}, {1}], 3), ranking([[0, 1, 2], [0, 1, 2]])
    plain = measures.evaluate(top, Y, ks=(1, 3, 5))
    assert set(plain) == {
        f"{m}@{k}" for m in ("P", "nDCG", "recall", "F1", "coverage") for k in (1, 3)
    } | {"accuracy", "macro-F1@1"}
    assert (plain["P@1"], plain["recall@3"], plain["accuracy"]) == (0.5, 1.0, 0.5)
    assert plain["macro-F1@1"] == pytest.approx(2 / 9)  # label 0: one hit, one miss
    full = measures.evaluate(top, Y, ks=(1,), label_counts=[5, 1, 1], n_train=7)
    assert full["PSP@1"] == measures.psp_at_k(
        top, Y, 1, measures.inverse_propensities([5, 1, 1], 7)
    )
    assert "PSnDCG@1" in full


@settings(max_examples=100, deadline=None)
@given(
    cases(),
    st.integers(1, 6),
    st.lists(st.integers(0, 9), min_size=8, max_size=8),
    st.integers(1, 10),
    st.sampled_from(["labels", "positives"]),
)
def test_frequency_groups_equal_the_naive_twin(case, k, counts, n, equal):
    ranked, true, K = case
    top, Y, counts = ranking(ranked), truth(true, K), counts[:K]
    groups = measures.frequency_groups(counts, n, equal)
    assert groups.tolist() == naive.groups(counts, n, equal)
    rows = measures.by_frequency(top, Y, counts, ks=(k,), n_groups=n, equal=equal)
    assert len(rows) == n
    for group, row in enumerate(rows):
        own = [count for count, of in zip(counts, groups, strict=True) if of == group]
        assert (row["labels"], row["least"], row["most"]) == (
            len(own),
            min(own, default=None),
            max(own, default=None),
        )
        assert row["true"] == sum(groups[label] == group for t in true for label in t)
        expected = naive.by_group(ranked, true, k, groups, group) if k <= K else {}
        assert {name: value for name, value in row.items() if "@" in name} == pytest.approx(
            expected
        )
    if all(counts) and k <= K:
        assert sum(row[f"P@{k}"] for row in rows) == pytest.approx(
            measures.precision_at_k(top, Y, k)
        )


@settings(max_examples=30, deadline=None)
@given(cases(), st.integers(1, 6))
def test_rows_without_labels_change_no_measure(case, k):
    ranked, true, K = case
    counts = np.arange(1, K + 1)
    whole, labelled = (
        (ranking([r for r, _ in rows]), truth([t for _, t in rows], K))
        for pairs in [list(zip(ranked, true, strict=True))]
        for rows in (pairs, [pair for pair in pairs if pair[1]] or pairs)
    )
    options = {"ks": (k,), "label_counts": counts, "n_train": 9}
    assert measures.evaluate(*whole, **options) == measures.evaluate(*labelled, **options)
    groups = {"label_counts": counts, "ks": (k,), "n_groups": 2}
    assert measures.by_frequency(*whole, **groups) == measures.by_frequency(*labelled, **groups)


def test_frequency_groups_by_hand():
    assert measures.frequency_groups([5, 0, 1, 1, 2], 2, "labels").tolist() == [1, -1, 0, 0, 1]
    assert measures.frequency_groups([7, 1, 1, 1], 2, "positives").tolist() == [1, 0, 0, 0]
    # Groups 2 to 5 and 7 to 9 are empty.
    assert measures.frequency_groups([8, 1, 1, 0], 10, "positives").tolist() == [
        6,
        0,
        1,
        -1,
    ]
    Y, top = truth([{0, 2}, {1}], 3), ranking([[2, 1], [1, 0]])
    rare, common = measures.by_frequency(top, Y, [9, 5, 1], ks=(2,), n_groups=2)
    assert rare == {
        "labels": 2,
        "least": 1,
        "most": 5,
        "true": 2,
        "P@2": 0.5,
        "recall@2": 1.0,
        "precision@2": 2 / 3,
    }
    assert common == {
        "labels": 1,
        "least": 9,
        "most": 9,
        "true": 1,
        "P@2": 0.0,
        "recall@2": 0.0,
        "precision@2": 0.0,
    }


def test_sets_from_rankings_and_views():
    top = TopK(np.array([[2, 0], [1, -1]], np.int32), np.array([[0.5, -0.1], [0.2, 0.1]]))
    assert measures.predicted_sets(top, 3).row(0).tolist() == [0, 2]
    assert measures.predicted_sets(top, 3).row(1).tolist() == [1]  # -1 is padding
    assert measures.predicted_sets(top, 3, min_score=0.0).row(0).tolist() == [2]
    assert measures.predicted_sets(top, 3, k=1).indices.tolist() == [2, 1]
    whole = truth([{0}, {0, 2}, {1}], 3)
    view = Pattern(whole.indptr[1:], whole.indices, 3)  # rows 1 and 2, as in a split
    assert measures.precision_at_k(top, view, 1) == 1.0
    assert measures.f1(measures.predicted_sets(top, 3), view) == {"micro-F1": 1.0, "macro-F1": 1.0}
    assert measures.psp_at_k(top, view, 2, np.ones(3)) == 1.0


def test_padding_never_hits_and_nothing_is_zero():
    assert (
        measures.precision_at_k(
            TopK(np.array([[0], [-1]], np.int32), np.zeros((2, 1))), truth([{2}, {0}], 3), 1
        )
        == 0.0
    )
    empty = measures.evaluate(
        ranking([[0, 1]]), truth([set()], 2), ks=(1,), label_counts=[1, 1], n_train=2
    )
    assert set(empty.values()) == {0.0}


def test_clear_errors():
    Y = truth([{0}], 2)
    with pytest.raises(ShapeMismatch, match="2 rows and true labels for 1"):
        measures.precision_at_k(ranking([[0], [1]]), Y, 1)
    with pytest.raises(ShapeMismatch, match="label 5"):
        measures.precision_at_k(ranking([[5]]), Y, 1)
    with pytest.raises(ShapeMismatch, match="weights for 3"):
        measures.psp_at_k(ranking([[0]]), Y, 1, np.ones(3))
    with pytest.raises(ShapeMismatch, match="1 x 3"):
        measures.f1(truth([{0}], 3), Y)
    with pytest.raises(ParameterError, match="at least 1"):
        measures.evaluate(ranking([[0]]), Y, ks=(0,))
    with pytest.raises(ShapeMismatch, match="counts for 3"):
        measures.by_frequency(ranking([[0]]), Y, [1, 1, 1])
    with pytest.raises(ParameterError, match="labels or positives"):
        measures.frequency_groups([1], 10, "size")
    with pytest.raises(ParameterError, match="n_train is 0"):
        measures.inverse_propensities([0], 0)
