"""Text to features: equal to scikit-learn's, round trips through disk, odd input."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from xcray.arrays import CSR
from xcray.data import terms
from xcray.data.text import TextParams, TextPipeline, empty_rows
from xcray.errors import Corrupt, DataError, NotFound, ParameterError
from xcray.files import write_json

TEXTS = [
    "Read rows of a CSV file; rows are dictionaries.",
    "Write the rows to a file",
    "naïve café, Ǆ and the file",
    "the the the rows",
    "",
]


def dense(X: CSR):
    """The rows as a dense array."""
    return X.to_scipy().toarray()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lowercase": False},
        {"ngram_max": 3},
        {"min_df": 2, "max_df": 0.6},
        {"sublinear_tf": True},
        {"token_pattern": r"(?:^|\s)(\w+)"},
    ],
)
def test_equals_scikit_learn(settings):
    theirs = dict(settings)
    theirs["ngram_range"] = (1, theirs.pop("ngram_max", 1))
    texts = [terms.normalise(text) for text in TEXTS]
    judge = TfidfVectorizer(**{"token_pattern": r"\b\w\w+\b", **theirs}, dtype=np.float64)
    expected = judge.fit_transform(texts).toarray()
    pipeline, X = TextPipeline.fit_transform(TEXTS, TextParams(**settings))
    assert pipeline.terms.to_pylist() == judge.get_feature_names_out().tolist()
    np.testing.assert_allclose(pipeline.idf, judge.idf_, rtol=1e-12)
    np.testing.assert_allclose(dense(X), expected, atol=1e-7)
    other = ["rows of unknown things", "xyzzy", "file FILE café"]
    np.testing.assert_allclose(dense(pipeline.transform(other)), judge.transform(other).toarray(), atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=6), st.booleans(), st.booleans())
def test_fit_then_transform_is_fit_transform(texts, identifiers, plurals):
    params = TextParams(split_identifiers=identifiers, fold_plurals=plurals, token_pattern=r"\w+")
    texts = [*texts, "a word"]
    pipeline, X = TextPipeline.fit_transform(iter(texts), params)
    again = TextPipeline.fit(iter(texts), params)
    assert pipeline.fingerprint == again.fingerprint
    for one, other in zip(X, again.transform(texts), strict=True):
        np.testing.assert_array_equal(one, other)
    for i in range(X.n_rows):
        columns, values = X.row(i)
        assert (np.diff(columns) > 0).all()
        assert len(values) == 0 or np.linalg.norm(values) == pytest.approx(1, abs=1e-5)


def test_max_features_keeps_the_most_frequent_then_by_name():
    pipeline = TextPipeline.fit(["bb bb aa", "aa cc dd"], TextParams(max_features=3))
    assert pipeline.terms.to_pylist() == ["aa", "bb", "cc"]


def test_identifiers_plurals_and_aliases():
    params = TextParams(split_identifiers=True, fold_plurals=True, aliases=(("dict", "dictionary"),))
    split = terms.tokenizer(params)
    assert split("DictReader rows") == ["dictionary", "reader", "row", "dictreader"]
    assert split("max_iter HTTPError2 xml CSV") == ["max", "iter", "http", "error", "xml", "csv", "max_iter", "httperror2"]
    plurals = ["box", "class", "dictionary", "cache", "status", "this", "axis"]
    assert split("boxes classes dictionaries caches status this axis") == plurals
    bigrams = terms.tokenizer(TextParams(split_identifiers=True, ngram_max=2))
    assert bigrams("read maxIter") == ["read", "max", "iter", "read max", "max iter", "maxiter"]


def test_unicode_is_normalised():
    split = terms.tokenizer(TextParams())
    assert split("cafe\u0301 ﬁle") == split("café file") == ["café", "file"]
    assert split("zero\u200bwidth soft\u00adhyphen lone\ud800surrogate") == ["zerowidth", "softhyphen", "lonesurrogate"]


def test_lone_surrogates_reach_the_disk_as_nothing(tmp_path):
    pipeline = TextPipeline.fit(["a\ud800b c"], TextParams(token_pattern=r"\S+"))
    pipeline.save(tmp_path / "text")
    assert TextPipeline.load(tmp_path / "text").terms.to_pylist() == ["ab", "c"]


def test_unknown_words_give_an_empty_row():
    X = TextPipeline.fit(TEXTS).transform(["xyzzy", "rows", ""])
    assert empty_rows(X) == 2
    assert X.data.dtype == np.float32
    assert TextPipeline.fit(TEXTS).transform([]).shape == (0, len(TextPipeline.fit(TEXTS).terms))


def test_round_trip_through_disk(tmp_path):
    pipeline = TextPipeline.fit(TEXTS, TextParams(sublinear_tf=True, aliases=(("csv", "table"),), ngram_max=2))
    pipeline.save(tmp_path / "text")
    loaded = TextPipeline.load(tmp_path / "text")
    assert (loaded.params, loaded.n_texts, loaded.fingerprint) == (pipeline.params, 5, pipeline.fingerprint)
    for one, other in zip(pipeline.transform(TEXTS), loaded.transform(TEXTS), strict=True):
        np.testing.assert_array_equal(one, other)
    assert sorted(path.name for path in (tmp_path / "text").iterdir()) == ["text.json", "vocabulary.arrow"]


def test_fingerprint_tells_pipelines_apart():
    base = TextPipeline.fit(TEXTS)
    others = [
        TextPipeline.fit(TEXTS, TextParams(sublinear_tf=True)),
        TextPipeline.fit(TEXTS[:4]),
        TextPipeline.fit([*TEXTS, "new"]),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 4


def spoiled(change):
    """A spoiler that rewrites text.json."""

    def apply(path):
        head = json.loads((path / "text.json").read_text())
        change(head)
        write_json(path / "text.json", head)

    return apply


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda path: shutil.rmtree(path), NotFound),
        (lambda path: (path / "vocabulary.arrow").write_bytes(b"junk"), Corrupt),
        (lambda path: (path / "text.json").write_text("{"), Corrupt),
        (spoiled(lambda head: head.update(schema_version=99)), Corrupt),
        (spoiled(lambda head: head.update(n_texts=6)), Corrupt),
        (spoiled(lambda head: head["params"].update(lowercase=False)), Corrupt),
        (spoiled(lambda head: head["params"].update(no_such=1)), Corrupt),
        (spoiled(lambda head: head.pop("params")), Corrupt),
    ],
)
def test_spoiled_files(tmp_path, spoil, error):
    TextPipeline.fit(TEXTS).save(tmp_path / "text")
    spoil(tmp_path / "text")
    with pytest.raises(error):
        TextPipeline.load(tmp_path / "text")


@pytest.mark.parametrize(
    "bad",
    [
        *({"ngram_max": 0}, {"ngram_max": 9}, {"min_df": 0}, {"min_df": 0.5}, {"max_df": 0.0}, {"max_df": 2}, {"max_features": 0}),
        *({"token_pattern": "("}, {"token_pattern": "(a)(b)"}, {"lowercase": 1}, {"aliases": [["a"]]}, {"aliases": 3}),
        {"stemmer": "x"},
    ],
)
def test_parameters_out_of_range(bad):
    with pytest.raises(ParameterError, match=next(iter(bad))):
        TextParams.from_dict(bad)


def test_what_is_not_text():
    pipeline = TextPipeline.fit(TEXTS)
    with pytest.raises(DataError, match="wrap it in"):
        pipeline.transform("one text")
    with pytest.raises(DataError, match="text 1 is a NoneType"):
        pipeline.transform(["a", None])
    with pytest.raises(DataError, match="text 0 is a int"):
        TextPipeline.fit([3])
    with pytest.raises(ParameterError, match="no term is left"):
        TextPipeline.fit(["", "?"])
