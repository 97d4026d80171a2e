"""Candidates and trees of a ranker, against naive versions and scikit-learn."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from xcray.arrays import csr, frozen
from xcray.data.label_texts import LabelText, LabelTexts
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import Corrupt, ShapeMismatch
from xcray.index.search import SearchIndex
from xcray.kernels.search.ranking import FEATURES, FREQUENCY, GAP, MATCHES, RANK, SCORE
from xcray.kernels.search.trees import sum_trees
from xcray.model.directory import LinearPart
from xcray.model.ranker import Ranker, index_labels
from xcray.predict.ranking import CandidateFinder, _rank
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
    return CandidateFinder(PIPELINE, LinearPart(index.W, index.b, index), labels)


def found(finder: CandidateFinder, text: str) -> list[tuple[str, int, int]]:
    """Return the names in a text with first word and length."""
    matches = finder.match([text])
    prefixes = finder._prefixes[0]
    names = [
        bytes(prefixes[1][prefixes[0][j] : prefixes[0][j + 1]]).decode().replace("\x1f", " ")
        for j in matches.names
    ]
    return list(zip(names, matches.first.tolist(), matches.length.tolist(), strict=True))


def test_the_longest_name_is_found_at_each_position(finder: CandidateFinder) -> None:
    """Case and qualifiers do not matter, matches do not overlap, a beginning does not match."""
    assert found(finder, TEXTS[0]) == [("great white shark", 0, 3), ("shark", 4, 1)]
    assert found(finder, TEXTS[1]) == [("polar bear", 0, 2)]
    assert found(finder, "White SHARK, animal") == [("white shark animal", 0, 3)]
    assert found(finder, "White shark's") == [("white shark", 0, 2)]
    assert found(finder, "great white polar") == []


def test_candidates_are_those_of_the_search_and_of_names(finder: CandidateFinder) -> None:
    """Labels without rows have no score, also in the search; the others have that of their row."""
    X = PIPELINE.transform(TEXTS)
    side = finder._side
    index = SearchIndex.build(side.W, side.b)
    everything = index.query(X, 4)
    candidates = finder.candidates(TEXTS, X, index.query(X, 1))
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
    with pytest.raises(ShapeMismatch, match="1 texts, 4 rows"):
        finder.candidates(TEXTS[:1], X, everything)
    all_labels = finder.candidates(TEXTS, X, everything)
    assert all_labels.labels[:4].tolist() == everything.labels[0].tolist()
    assert np.isnan(all_labels.features[all_labels.labels[:4].tolist().index(3), SCORE])


def test_trees_have_the_raw_predictions_of_scikit_learn(tmp_path, finder, monkeypatch) -> None:  # type: ignore[no-untyped-def]
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
    assert sum_trees(X, trees, baseline) == pytest.approx(expected, rel=1e-12)
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
    assert (sum_trees(X, read.trees, read.baseline) == sum_trees(X, trees, baseline)).all()
    rows = PIPELINE.transform(TEXTS)
    search = SearchIndex.build(finder._side.W, finder._side.b).query(rows, 4)
    candidates = finder.candidates(TEXTS, rows, search)
    ranked = _rank(read, candidates, search, 3)
    raw = sum_trees(candidates.features, trees, baseline)[: candidates.indptr[1]]
    assert ranked.scores[0].tolist() == sorted(raw, reverse=True)[:3]
    with pytest.raises(Corrupt, match="the ranker has 4 labels"):
        Ranker.load(tmp_path / "ranker", (9, PIPELINE.n_features), verify=False)
