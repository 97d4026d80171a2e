"""Text to features: equal to scikit-learn's, round trips through disk, odd input."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from tests.naive import text as naive
from xcray.arrays import CSR, frozen
from xcray.data.text import tokenizer as terms
from xcray.data.text.analyzer import Analyzer
from xcray.data.text.pipeline import TextParams, TextPipeline, count_empty_rows
from xcray.data.text.vocabulary import build_vocabulary, string_bytes
from xcray.errors import Corrupt, DataError, NotFound, ParameterError
from xcray.kernels.vocabulary import Vocabulary, Words, fill, first_unreachable
from xcray.storage.arrow import read_table, write_table
from xcray.storage.atomic import sha256_arrays, write_json

TEXTS = [
    "Read rows of a CSV file; rows are dictionaries.",
    "Write the rows to a file",
    "naïve café, Ǆ and the file",
    "the the the rows",
    "",
]


def dense(X: CSR):
    """Return the rows as a dense array."""
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
    np.testing.assert_allclose(
        dense(pipeline.transform(other)), judge.transform(other).toarray(), atol=1e-7
    )


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
    params = TextParams(
        split_identifiers=True, fold_plurals=True, aliases=(("dict", "dictionary"),)
    )
    split = Analyzer(params).terms
    assert split("DictReader rows") == ["dictionary", "reader", "row", "dictreader"]
    assert split("max_iter HTTPError2 xml CSV") == [
        "max",
        "iter",
        "http",
        "error",
        "xml",
        "csv",
        "max_iter",
        "httperror2",
    ]
    plurals = ["box", "class", "dictionary", "cache", "status", "this", "axis"]
    assert split("boxes classes dictionaries caches status this axis") == plurals
    bigrams = Analyzer(TextParams(split_identifiers=True, ngram_max=2)).terms
    assert bigrams("read maxIter") == ["read", "max", "iter", "read max", "max iter", "maxiter"]


def test_unicode_is_normalised():
    split = Analyzer(TextParams()).terms
    assert split("cafe\u0301 ﬁle") == split("café file") == ["café", "file"]
    assert split("zero\u200bwidth soft\u00adhyphen lone\ud800surrogate") == [
        "zerowidth",
        "softhyphen",
        "lonesurrogate",
    ]


def test_lone_surrogates_reach_the_disk_as_nothing(tmp_path):
    pipeline = TextPipeline.fit(["a\ud800b c"], TextParams(token_pattern=r"\S+"))
    pipeline.save(tmp_path / "text")
    assert TextPipeline.load(tmp_path / "text").terms.to_pylist() == ["ab", "c"]


def test_unknown_words_give_an_empty_row():
    X = TextPipeline.fit(TEXTS).transform(["xyzzy", "rows", ""])
    assert count_empty_rows(X) == 2
    assert X.data.dtype == np.float32
    assert TextPipeline.fit(TEXTS).transform([]).shape == (0, len(TextPipeline.fit(TEXTS).terms))


def test_round_trip_through_disk(tmp_path):
    pipeline = TextPipeline.fit(
        TEXTS, TextParams(sublinear_tf=True, aliases=(("csv", "table"),), ngram_max=2)
    )
    pipeline.save(tmp_path / "text")
    loaded = TextPipeline.load(tmp_path / "text")
    assert (loaded.params, loaded.n_texts, loaded.fingerprint) == (
        pipeline.params,
        5,
        pipeline.fingerprint,
    )
    for one, other in zip(pipeline.transform(TEXTS), loaded.transform(TEXTS), strict=True):
        np.testing.assert_array_equal(one, other)
    assert sorted(path.name for path in (tmp_path / "text").iterdir()) == [
        "lookup.arrow",
        "text.json",
        "vocabulary.arrow",
    ]


def test_fingerprint_distinguishes_pipelines():
    base = TextPipeline.fit(TEXTS)
    others = [
        TextPipeline.fit(TEXTS, TextParams(sublinear_tf=True)),
        TextPipeline.fit(TEXTS[:4]),
        TextPipeline.fit([*TEXTS, "new"]),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 4


def spoiled(change):
    """Return a function that rewrites text.json."""

    def apply(path):
        head = json.loads((path / "text.json").read_text())
        change(head)
        write_json(path / "text.json", head)

    return apply


def rewritten(name, change):
    """Return a function that rewrites an Arrow file."""

    def apply(path):
        write_table(path / name, change(pa.table(read_table(path / name))))

    return apply


def moved(source, target, name):
    """Replace a file by that of another pipeline."""
    shutil.move(source / name, target / name)


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
        (spoiled(lambda head: head.pop("fingerprint")), Corrupt),
        (lambda path: (path / "lookup.arrow").write_bytes(b"junk"), Corrupt),
        (lambda path: (path / "lookup.arrow").unlink(), NotFound),
        (spoiled(lambda head: head.pop("seal")), Corrupt),
        (
            lambda path: (
                TextPipeline.fit(TEXTS[:2]).save(path / "other")
                or moved(path / "other", path, "lookup.arrow")
            ),
            Corrupt,
        ),
        (
            lambda path: (
                TextPipeline.fit(TEXTS[:2]).save(path / "other")
                or moved(path / "other", path, "vocabulary.arrow")
            ),
            Corrupt,
        ),
        (rewritten("vocabulary.arrow", lambda table: table.drop_columns("idf")), Corrupt),
        (
            rewritten(
                "vocabulary.arrow",
                lambda table: table.set_column(1, "df", pc.cast(table["df"], pa.int32())),
            ),
            Corrupt,
        ),
        (rewritten("vocabulary.arrow", lambda table: pa.concat_tables([table, table])), Corrupt),
        (rewritten("lookup.arrow", lambda table: table.replace_schema_metadata({})), Corrupt),
        (rewritten("lookup.arrow", lambda table: table.rename_columns(["place"])), Corrupt),
    ],
)
@pytest.mark.parametrize("verify", [True, False])
def test_spoiled_files(tmp_path, spoil, error, verify):
    TextPipeline.fit(TEXTS).save(tmp_path / "text")
    spoil(tmp_path / "text")
    with pytest.raises(error):
        TextPipeline.load(tmp_path / "text", verify)


@pytest.mark.parametrize(
    "change",
    [
        rewritten(
            "lookup.arrow",
            lambda table: pa.table(
                {"slot": table["slot"].to_numpy()[::-1]}, metadata=table.schema.metadata
            ),
        ),
        rewritten("lookup.arrow", lambda table: table.replace_schema_metadata({"seed": "1"})),
        rewritten(
            "vocabulary.arrow", lambda table: table.set_column(1, "df", pc.add(table["df"], 1))
        ),
        rewritten(
            "vocabulary.arrow", lambda table: table.set_column(2, "idf", pc.add(table["idf"], 0.1))
        ),
        rewritten(
            "vocabulary.arrow",
            lambda table: table.set_column(
                0, "term", pa.array(["x"] * len(table), pa.large_string())
            ),
        ),
    ],
)
def test_corrupt_content_is_detected_if_verified_and_harmless_if_not(tmp_path, change):
    TextPipeline.fit(TEXTS).save(tmp_path / "text")
    change(tmp_path / "text")
    with pytest.raises(Corrupt):
        TextPipeline.load(tmp_path / "text")
    X = TextPipeline.load(tmp_path / "text", verify=False).transform([*TEXTS, "x the"])
    assert len(X.indices) == X.indptr[-1]
    assert not len(X.indices) or 0 <= X.indices.min() <= X.indices.max() < X.n_cols


def test_slots_that_lead_nowhere_harm_nothing(tmp_path):
    """Without verification, a damaged table is detected when a term is looked up.

    The lookup compares the term and stays inside the stored words.
    """
    pipeline = TextPipeline.fit(TEXTS)
    words, slots, seed = pipeline.vocabulary
    high = slots & np.uint64(0xFFFFFFFF00000000)
    for number in (len(pipeline.terms) + 1, 2**31, 2**32 - 1):
        lost = Vocabulary(
            words, frozen(np.where(slots > 0, high | np.uint64(number), slots), np.uint64), seed
        )
        assert first_unreachable(lost) == 0
    full = Vocabulary(words, frozen(np.full(len(slots), 1, np.uint64), np.uint64), seed)
    assert first_unreachable(full) == 0  # and the lookup ends, although no slot is empty
    far = Words(frozen(np.full(len(words.offsets), 2**40), np.int64), words.letters)
    assert first_unreachable(Vocabulary(far, slots, seed)) == 0


def test_opening_copies_nothing(tmp_path):
    TextPipeline.fit(TEXTS).save(tmp_path / "text")
    loaded = TextPipeline.load(tmp_path / "text", verify=False)
    before = pa.total_allocated_bytes()
    again = TextPipeline.load(tmp_path / "text", verify=False)
    again.transform(TEXTS)
    assert pa.total_allocated_bytes() == before
    for array in (loaded.idf, loaded.df, loaded.vocabulary.slots, *loaded.vocabulary.words):
        assert not array.flags.writeable
        assert not array.flags.owndata


def test_fingerprint_stays_what_it_was():
    """Models and data sets store the fingerprint, so it must not change.

    It covers the terms, their lengths in characters, frequencies and parameters.
    """
    pipeline = TextPipeline.fit(TEXTS, TextParams(min_df=2))
    names = pipeline.terms.to_pylist()
    lengths = np.array([len(name) for name in names], np.int64)
    newer = ("language", "char_ngrams", "fields")
    params = {name: value for name, value in asdict(pipeline.params).items() if name not in newer}
    expected = {
        "params": json.dumps(params, sort_keys=True),
        "terms": "".join(names),
        "lengths": lengths,
        "df": pipeline.df,
        "n": "5",
    }
    assert pipeline.fingerprint == sha256_arrays(expected)


RULES = st.builds(
    TextParams,
    lowercase=st.booleans(),
    split_identifiers=st.booleans(),
    fold_plurals=st.booleans(),
    ngram_max=st.integers(1, 3),
    sublinear_tf=st.booleans(),
    aliases=st.sampled_from([(), (("ab", "zz top"), ("aa", "bcdefghijklmn"), ("es", ""))]),
    token_pattern=st.sampled_from(
        [r"\b\w\w+\b", r"(?u)\b\w\w+\b", r"\w+", r"\S*", r"(?:^|\s)(\w+)"]
    ),
)
LETTERS = "aaabcdefhinorstuxyABCDETX019__ss.- \n"
PLAIN_TEXT = st.lists(
    st.builds(
        str.__add__,
        st.text(LETTERS, max_size=9),
        st.sampled_from(["", "", "s", "es", "ies", "ches", "sses", "xes", "us"]),
    ),
    max_size=12,
).map(" ".join)
STRANGE = st.sampled_from(
    [
        "é",
        "İstanbul ΑΣ ΣΑΣ",
        "ﬁles",
        "\u200b",
        "日本語 テキスト",
        "\ud800x",
        "abc٣",
        "\udcff\udcfe",
        "aa\x00bb",
    ]
)
ANY_TEXT = st.one_of(
    PLAIN_TEXT,
    st.builds(lambda a, b, c: f"{a} {b}{c}", PLAIN_TEXT, STRANGE, PLAIN_TEXT),
    st.text(max_size=40),
)


@settings(max_examples=60, deadline=None)
@given(RULES, st.lists(ANY_TEXT, min_size=1, max_size=8), st.lists(ANY_TEXT, max_size=8))
def test_equals_the_naive_twin_to_the_bit(params, texts, others):
    pipeline, X = TextPipeline.fit_transform([*texts, "a word"], params)
    for one, other in zip(X, naive.transform(pipeline, [*texts, "a word"]), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(
        pipeline.transform(texts + others), naive.transform(pipeline, texts + others), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=80, deadline=None)
@given(RULES, ANY_TEXT)
def test_terms_are_those_of_the_naive_twin(params, text):
    assert sorted(Analyzer(params).terms(text)) == sorted(naive.terms(params, text))


@pytest.mark.parametrize("sublinear", [False, True])
def test_long_texts_and_many_texts(sublinear):
    """The inputs exceed the texts and bytes of one compiled call, and the logarithm table."""
    texts = [f"row{i % 97} file{i % 31} rows" for i in range(2600)] + [
        "rows " * 5000 + "file1",
        "",
        "rows",
    ]
    pipeline, X = TextPipeline.fit_transform(texts, TextParams(sublinear_tf=sublinear, ngram_max=2))
    for one, other, third in zip(
        X, pipeline.transform(texts), naive.transform(pipeline, texts), strict=True
    ):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, third)


def test_terms_that_collide_get_another_seed():
    """The first seed without long collision chains is used.

    Under seed 0, all these terms hash into the first 100 of 2801 slots.
    """
    words = string_bytes(pa.array([f"t{i}" for i in range(60_000)], pa.large_string()))
    place = [home(words.letters, start, stop, 0, 2801) for start, stop in pairwise(words.offsets)]
    crowd = [f"t{i}" for i in range(60_000) if place[i] < 100][:1400]
    terms = pa.array(crowd, pa.large_string())
    assert len(crowd) == 1400
    assert not fill(string_bytes(terms), 0, np.zeros(2801, np.uint64))
    table = build_vocabulary(terms)
    assert table.seed == 1
    assert first_unreachable(table) == -1


def home(letters, start, stop, seed, n):
    """Return the first slot of n for a word, computed with Python integers."""
    state, wide = 0xCBF29CE484222325 ^ seed * 0x100000001B3, 2**64
    for byte in letters[start:stop].tolist():
        state = (state ^ byte) * 0x100000001B3 % wide
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ state >> shift) * factor % wide
    return ((state ^ state >> 31) >> 32) * n >> 32


def test_any_strings_make_a_table():
    assert first_unreachable(build_vocabulary(pa.array([], pa.large_string()))) == -1
    assert (
        first_unreachable(build_vocabulary(pa.array(["b", "a", "", "ab", "é"], pa.large_string())))
        == -1
    )
    assert (
        first_unreachable(build_vocabulary(pa.array(["a", "b", "a"], pa.large_string()))) == 2
    )  # a repeated name gives its first position


def test_threads_share_a_pipeline():
    texts = [f"rows of file number{i} {'the ' * (i % 400)}" for i in range(400)]
    pipeline, X = TextPipeline.fit_transform(texts, TextParams(sublinear_tf=True))
    with ThreadPoolExecutor(4) as pool:
        for Y in pool.map(pipeline.transform, [texts] * 16):
            for one, other in zip(X, Y, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "bad",
    [
        *(
            {"ngram_max": 0},
            {"ngram_max": 9},
            {"min_df": 0},
            {"min_df": 0.5},
            {"max_df": 0.0},
            {"max_df": 2},
            {"max_features": 0},
        ),
        *(
            {"token_pattern": "("},
            {"token_pattern": "(a)(b)"},
            {"lowercase": 1},
            {"aliases": [["a"]]},
            {"aliases": 3},
            {"aliases": [3]},
            {"aliases": ["ab"]},
        ),
        {"aliases": [["a", "\ud800"]]},
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
    with pytest.raises(ParameterError, match="no text of 2 has a term"):
        TextPipeline.fit(["", "?"])
