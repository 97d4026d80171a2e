"""Candidates and trees of a ranker, against naive versions and scikit-learn."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from xcray.arrays import CSR, Float64, csr, csr_from, frozen
from xcray.data.label_texts import LabelText, LabelTexts
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import Corrupt, ShapeMismatch
from xcray.index.scorer import SparseScorer
from xcray.index.search import SearchIndex
from xcray.kernels.search.ranked_candidates import (
    COVERED,
    FEATURES,
    FIRST_WORD,
    FREQUENCY,
    GAP,
    MATCHES,
    RANK,
    SCORE,
    WORDS,
    shared_products,
)
from xcray.kernels.search.trees import LEAF, Trees, sum_trees, tabulate_trees
from xcray.model.directory import LinearPart
from xcray.model.ranker import Ranker, index_labels
from xcray.predict import ranking
from xcray.predict.ranking import CandidateFinder, TextRanker
from xcray.storage.names import Names
from xcray.training.ranking.fit import fit_trees

ENTRIES = [
    LabelText("a", "White shark (animal)", ("great white shark",)),
    LabelText("b", "Shark"),
    LabelText("c", "shark", (), "a fish"),
    LabelText("zero", "Polar bear"),
]
TEXTS = ["a great white shark eats shark", "polar bear and polar", "white", ""]
PIPELINE = TextPipeline.fit(["great white shark eats polar bear and fish", *TEXTS[:3]])


@pytest.fixture(scope="module")
def finder() -> CandidateFinder:
    """Return the finder of a model of labels a, b, c and d, the last without texts or rows."""
    names = Names(pa.array(["a", "b", "c", "d"], pa.large_string()))
    counts = frozen([3, 2, 1, 0], np.int64)
    labels = index_labels(names, counts, LabelTexts.of(ENTRIES), PIPELINE)
    assert labels.label_names.to_pylist() == ["a", "b", "c", "d", "zero"]
    D = PIPELINE.n_features
    W = csr([0, D, D, D, D], np.arange(D), np.arange(D) + 1.0, D)
    index = SearchIndex.build(W, frozen([0, -1, -2, -3], np.float32))
    return CandidateFinder(LinearPart(index.W, index.b, index), labels)


def tokens(text: str) -> list[str]:
    """Return the words of a text."""
    return re.findall(r"\b\w\w+\b", text.lower())


def naive_names(text: str) -> dict[str, list[tuple[int, int]]]:
    """Return first word and length of all matches of each label, the longest from left to right."""
    names: dict[tuple[str, ...], list[str]] = {}
    for entry in ENTRIES:
        for name in (entry.name, *entry.other_names):
            for form in {name, name.partition(" (")[0]}:
                names.setdefault(tuple(tokens(form)), []).append(entry.id)
    words, start, out = tokens(text), 0, dict[str, list[tuple[int, int]]]()
    while start < len(words):
        ends = [e for e in range(start + 1, len(words) + 1) if tuple(words[start:e]) in names]
        for label in names[tuple(words[start : ends[-1]])] if ends else ():
            out.setdefault(label, []).append((start, ends[-1] - start))
        start = ends[-1] if ends else start + 1
    return out


@pytest.mark.parametrize(
    "text",
    [*TEXTS, "White SHARK, animal", "White shark's", "great white polar", "shark polar bear"],
)
def test_the_longest_name_is_found_at_each_position(finder: CandidateFinder, text: str) -> None:
    """As by a naive search: case and qualifiers do not matter, matches do not overlap."""
    X = PIPELINE.transform([text])
    index = SearchIndex.build(csr_from(np.ones((4, PIPELINE.n_features))), np.zeros(4, np.float32))
    candidates = finder.candidates(PIPELINE.read([text]), index.query(X, 4))
    found = {}
    for label, row in zip(candidates.labels.tolist(), candidates.features, strict=True):
        if row[MATCHES]:
            found[["a", "b", "c", "d", "zero"][label]] = row
    expected = naive_names(text)
    assert set(found) == set(expected)
    n_words = max(1, len(tokens(text)))
    for label, row in found.items():
        firsts, lengths = zip(*expected[label], strict=True)
        covered = sum(lengths) / n_words
        numbers = [len(lengths), firsts[0], max(lengths), pytest.approx(covered)]
        assert row[[MATCHES, FIRST_WORD, WORDS, COVERED]].tolist() == numbers


def test_candidates_are_those_of_the_search_and_of_names(finder: CandidateFinder) -> None:
    """Labels without rows have no score, also in the search; the others have that of their row."""
    X = PIPELINE.transform(TEXTS)
    index = SearchIndex.build(CSR(*finder.side[0]), finder.side[1])
    everything = index.query(X, 4)
    texts = PIPELINE.read(TEXTS)
    candidates = finder.candidates(texts, index.query(X, 1))
    rows = [slice(*pair) for pair in np.stack([candidates.indptr[:-1], candidates.indptr[1:]], 1)]
    assert [candidates.labels[row].tolist() for row in rows] == [[0, 1, 2], [0, 4], [0], [0]]
    features = candidates.features[rows[0]]
    assert features[:, RANK].tolist()[:1] == [1.0]
    assert np.isnan(features[1:, RANK]).all()
    scores = dict(zip(everything.labels[0].tolist(), everything.scores[0], strict=True))
    assert features[:, SCORE] == pytest.approx([scores[0], scores[1], scores[2]])
    assert features[:, GAP] == pytest.approx(features[:, SCORE] - scores[0])
    assert features[:, FREQUENCY] == pytest.approx(np.log([4.0, 3.0, 2.0]))
    assert features[:, MATCHES].tolist() == [1.0, 1.0, 1.0]
    assert np.isnan(candidates.features[rows[1]][1, [SCORE, RANK, GAP]]).all()
    text, x = PIPELINE.transform(["shark a fish"]).to_scipy(), X.to_scipy()[0]
    assert features[2, FEATURES.index("cosine of label text and row")] == pytest.approx(
        (text @ x.T).toarray()[0, 0], rel=1e-6
    )
    with pytest.raises(ShapeMismatch, match="1 texts and 4 results"):
        finder.candidates(PIPELINE.read(TEXTS[:1]), everything)
    all_labels = finder.candidates(texts, everything)
    assert all_labels.labels[:4].tolist() == everything.labels[0].tolist()
    assert np.isnan(all_labels.features[all_labels.labels[:4].tolist().index(3), SCORE])


def test_rows_are_normalised_as_by_the_search() -> None:
    """The scores of labels that only a name has found, too."""
    D = PIPELINE.n_features
    names = Names(pa.array(["a", "b"], pa.large_string()))
    labels = index_labels(names, frozen([1, 1], np.int64), LabelTexts.of(ENTRIES), PIPELINE)
    index = SearchIndex.build(csr_from(np.ones((2, D))), np.zeros(2, np.float32), row_norm="l2")
    finder = CandidateFinder(LinearPart(index.W, index.b, index), labels)
    texts = PIPELINE.read(TEXTS)
    X = texts.X
    longer = X._replace(data=frozen(3 * X.data, np.float32))
    ours, theirs = (
        finder.candidates(texts._replace(X=rows), index.query(rows, 1)) for rows in (longer, X)
    )
    assert ours.features == pytest.approx(theirs.features, rel=1e-6, nan_ok=True)


def test_products_of_rows_are_summed_in_the_order_of_columns() -> None:
    """Also of rows without a shared column, and where all of them are shared."""
    rng = np.random.default_rng(0)
    for n, size in ((0, 5), (5, 0), (3, 300), (300, 300)):
        columns, others = (
            np.sort(rng.choice(300, each, replace=False)).astype(np.int32) for each in (n, size)
        )
        a, b = (rng.normal(size=len(each)).astype(np.float32) for each in (columns, others))
        expected, shared = 0.0, np.intersect1d(columns, others)
        for i, j in zip(columns.searchsorted(shared), others.searchsorted(shared), strict=True):
            expected += float(a[i]) * float(b[j])
        assert shared_products.py_func(columns, a, others, b) == (expected, len(shared))


def test_labels_that_names_add_have_the_bits_of_the_search() -> None:
    """Long and short rows of weights, over several segments of features, and an empty row."""
    rng = np.random.default_rng(0)
    word_list = [f"w{i}" for i in range(70_000)]
    pipeline = TextPipeline.fit([" ".join(word_list), "zz"])
    D = pipeline.n_features
    lengths = [0, 3, 200, D]
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    indices = np.concatenate([np.sort(rng.choice(D, each, replace=False)) for each in lengths])
    W = csr(indptr, indices, rng.normal(size=indptr[-1]), D)
    index = SearchIndex.build(W, frozen(rng.normal(size=4), np.float32))
    ids, texts = ["a", "b", "c", "d"], [" ".join(rng.choice(word_list, 50)) for _ in range(20)]
    entries = LabelTexts.of([LabelText(each, "zz") for each in ids])
    names = Names(pa.array(ids, pa.large_string()))
    labels = index_labels(names, frozen([1, 1, 1, 1], np.int64), entries, pipeline)
    rows = pipeline.read([text + " zz" for text in texts])
    finder = CandidateFinder(LinearPart(index.W, index.b, index), labels)
    candidates = finder.candidates(rows, index.query(rows.X, 1))
    everything = index.query(rows.X, 4)
    for i, (begin, end) in enumerate(zip(candidates.indptr, candidates.indptr[1:], strict=False)):
        order = np.argsort(everything.labels[i])
        assert end - begin == 4
        found = candidates.features[begin:end, SCORE][np.argsort(candidates.labels[begin:end])]
        assert found.tolist() == everything.scores[i][order].tolist()


def test_trees_have_the_raw_predictions_of_scikit_learn(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """To the last bits, with missing values, also after writing and reading; ranks follow them."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    from xcray.training.ranking.fit import TREES

    monkeypatch.setitem(TREES, "max_iter", 5)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, len(FEATURES)))
    X[rng.random(X.shape) < 0.2] = np.nan
    y = np.nan_to_num(X[:, 0]) + np.isnan(X[:, 1]) > 0.5
    trees, baseline = fit_trees(X, y, 0)
    model = HistGradientBoostingClassifier(early_stopping=False, random_state=0, **TREES)
    expected = model.fit(X, y).decision_function(X)
    table = tabulate_trees(trees, len(FEATURES))
    assert sum_trees(X, table, baseline) == pytest.approx(expected, rel=1e-12)
    labels = index_labels(
        Names(pa.array(["a", "b"], pa.large_string())),
        frozen([1, 1], np.int64),
        LabelTexts.of(ENTRIES),
        PIPELINE,
    )
    ranker, shape = Ranker(labels, trees, baseline), (2, PIPELINE.n_features)
    ranker.save(tmp_path / "ranker")
    read = Ranker.load(tmp_path / "ranker", shape, verify=True)
    assert read.sha256 == ranker.sha256
    assert (sum_trees(X, read.table, read.baseline) == sum_trees(X, table, baseline)).all()
    rows = PIPELINE.transform(TEXTS)
    index = SearchIndex.build(csr_from(np.eye(2, PIPELINE.n_features)), np.zeros(2, np.float32))
    linear, scorer = LinearPart(index.W, index.b, index), SparseScorer(index)
    ranked = TextRanker(read, linear, scorer).search(PIPELINE.read(TEXTS), 2)
    check_that_batches_share_a_deadline(TextRanker(read, linear, scorer), monkeypatch)
    finder = CandidateFinder(linear, labels)
    candidates = finder.candidates(PIPELINE.read(TEXTS), index.query(rows, 2))
    raw = sum_trees(candidates.features, table, baseline)
    for i in range(len(TEXTS)):
        row = raw[candidates.indptr[i] : candidates.indptr[i + 1]]
        order = np.argsort(-row, kind="stable")[:2]
        assert ranked.scores[i].tolist() == row[order].tolist()
        assert (
            ranked.labels[i].tolist() == candidates.labels[candidates.indptr[i] :][order].tolist()
        )
    with pytest.raises(Corrupt, match="the ranker has 4 labels"):
        Ranker.load(tmp_path / "ranker", (9, PIPELINE.n_features), verify=False)


def check_that_batches_share_a_deadline(ranker: TextRanker, monkeypatch: Any) -> None:
    """Rank one text per batch: each search has what the ones before it leave."""
    limits: list[float] = []
    scorer = ranker._scorer
    monkeypatch.setattr(ranking, "BATCH_ROWS", 1)
    monkeypatch.setattr(ranker, "_scorer", SimpleNamespace(top_k=None))

    def top_k(X: CSR, k: int, *, deadline_ms: float, label_filter: None) -> Any:
        limits.append(deadline_ms)
        return scorer.top_k(X, k, label_filter=label_filter)

    monkeypatch.setattr(ranker._scorer, "top_k", top_k)
    ranker.search(PIPELINE.read(TEXTS), 2, deadline_ms=1e6)
    assert limits[0] == 1e6
    assert limits == sorted(set(limits), reverse=True)


def walk(trees: Trees, x: Float64, baseline: float) -> float:
    """Return the sum of the leaves that a row reaches from node to node."""
    total = baseline
    for start in trees.starts:
        node = start
        while trees.feature[node] != LEAF:
            value = x[trees.feature[node]]
            left = trees.missing_left[node] if np.isnan(value) else value <= trees.threshold[node]
            node = trees.left[node] if left else trees.right[node]
        total += trees.value[node]
    return total


def random_trees(rng: np.random.Generator) -> Trees:
    """Return three trees of 1, 7 and 16 leaves over two features with few thresholds."""
    nodes: list[list[float]] = []
    starts = []
    for n_leaves in (1, 7, 16):
        starts.append(len(nodes))
        waiting = [(n_leaves, -1, 0)]
        while waiting:
            leaves, parent, side = waiting.pop(int(rng.integers(len(waiting))))
            if parent >= 0:
                nodes[parent][side] = len(nodes)
            node = len(nodes)
            values = [rng.integers(2), rng.integers(4), 0, 0, rng.integers(2), rng.normal()]
            nodes.append([float(LEAF) if leaves == 1 else values[0], *values[1:]])
            if leaves > 1:
                left = int(rng.integers(1, leaves))
                waiting += [(left, node, 2), (leaves - left, node, 3)]
    columns = zip(*nodes, strict=True)
    types = (np.int32, np.float64, np.int32, np.int32, np.uint8, np.float64)
    arrays = [frozen(each, kind) for each, kind in zip(columns, types, strict=True)]
    return Trees(frozen(starts, np.int32), *arrays)


def test_the_table_of_trees_has_the_bits_of_walks() -> None:
    """At thresholds, between them, outside, and without a value."""
    rng = np.random.default_rng(1)
    values = [np.nan, -np.inf, *np.arange(-0.5, 4.0, 0.5), np.inf]
    X = np.array([(a, b) for a in values for b in values])
    for _ in range(20):
        trees = random_trees(rng)
        sums = sum_trees(X, tabulate_trees(trees, 2), 0.1)
        assert sums.tolist() == [walk(trees, x, 0.1) for x in X]


@pytest.mark.parametrize(
    ("field", "node", "value"),
    [("feature", 1, 2), ("left", 1, 1), ("right", 1, 999), ("right", 1, 2), ("starts", 1, -1)],
)
def test_unsound_trees_are_refused(field: str, node: int, value: int) -> None:
    """A feature or child that does not exist, a cycle, a node with two parents, a wrong root."""
    trees = random_trees(np.random.default_rng(1))
    assert trees.left[1] == 2
    array = getattr(trees, field).copy()
    array[node] = value
    with pytest.raises(ValueError, match="node"):
        tabulate_trees(trees._replace(**{field: array}), 2)


def test_trees_of_many_leaves_are_refused() -> None:
    """A chain of 17 leaves."""
    n = np.arange(33)
    leaf = (n % 2 == 1) | (n == 32)
    zeros = np.zeros(33)
    trees = Trees(
        starts=frozen([0], np.int32),
        feature=frozen(np.where(leaf, LEAF, 0), np.int32),
        threshold=frozen(zeros, np.float64),
        left=frozen(np.where(leaf, 0, n + 1), np.int32),
        right=frozen(np.where(leaf, 0, n + 2), np.int32),
        missing_left=frozen(zeros, np.uint8),
        value=frozen(zeros, np.float64),
    )
    with pytest.raises(ValueError, match="more than 16 leaves"):
        tabulate_trees(trees, 1)
