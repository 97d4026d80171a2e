"""Documents of several fields: stems by language, own terms, categories, numbers, characters."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from xcray.data.text import stems, vectorizer
from xcray.data.text.analyzer import Analyzer
from xcray.data.text.fields import Field, document, join_fields, readable, text_fields_of
from xcray.data.text.pipeline import TextPipeline
from xcray.data.text.tokenizer import TextParams
from xcray.errors import DataError, ParameterError, Refused, Unavailable

FIELDS = (
    Field("title", weight=2.0),
    Field("abstract", ngram_max=2),
    Field("lang", "language"),
    Field("publisher", "category", 1.0),
    Field("year", "number", 1.0),
)
ROWS = [
    ("Libraries of houses", "Reading rows, reading houses", "en", "Springer", "1990"),
    ("Bibliotheken und Häuser", "Die Häuser der Bibliothek", "de", " De Gruyter ", "2010"),
    ("Häuser", "Ein Haus", "de", "", ""),
    ("数据库", "naïve houses", "zh", "Springer", "x"),
]
PARAMS = TextParams(language="lang", char_ngrams=(3, 5), fields=FIELDS)


def documents() -> list[str]:
    """Return the rows as documents."""
    return [join_fields(row) for row in ROWS]


def test_terms_of_fields():
    terms = Analyzer(TextParams(language="lang", fields=FIELDS)).terms(documents()[1])
    assert [readable(term) for term in terms] == [
        "publisher:De Gruyter",
        *("bibliothek", "und", "haus"),
        *("title:bibliothek", "title:und", "title:haus"),
        *("die", "haus", "der", "bibliothek", "die haus", "haus der", "der bibliothek"),
    ]


@pytest.mark.parametrize("sublinear", [False, True])
def test_compiled_rows_are_those_of_the_fit(sublinear, tmp_path):
    """The fit splits texts in Python; all other rows are compiled. Both give the same bits."""
    params = TextParams(
        language="lang", char_ngrams=(3, 5), sublinear_tf=sublinear, fields=FIELDS, min_df=1
    )
    pipeline, X = TextPipeline.fit_transform(documents(), params)
    pipeline.save(tmp_path)
    again = TextPipeline.load(tmp_path)
    assert (again.params, again.numbers, again.stemmer) == (
        pipeline.params,
        pipeline.numbers,
        pipeline.stemmer,
    )
    for rows in (pipeline.transform(documents()), again.transform(documents())):
        for ours, theirs in zip(rows, X, strict=True):
            assert np.array_equal(ours, theirs)
    for i, each in enumerate(documents()):  # alone or among others
        assert np.array_equal(again.transform([each]).indices, X.row(i)[0])


def test_fields_with_ascii_texts_only():
    """ASCII texts without stems are split by the kernel, field by field."""
    fields = (Field("title", weight=3.0), Field("abstract"))
    params = TextParams(ngram_max=2, fold_plurals=True, fields=fields, aliases=(("dict", "a b"),))
    texts = [join_fields(pair) for pair in (("Rows, a dict", "the rows"), ("", "rows"), ("x1", ""))]
    pipeline, X = TextPipeline.fit_transform(texts, params)
    for ours, theirs in zip(pipeline.transform(texts), X, strict=True):
        assert np.array_equal(ours, theirs)
    row = dict(zip(*(values.tolist() for values in X.row(0)), strict=True))
    weight = {term: row[j] for j, term in enumerate(pipeline.names.to_pylist()) if j in row}
    assert set(weight) == {
        *("row", "a b", "the", "row a b", "the row"),
        *("title:row", "title:a b", "title:row a b"),
    }
    assert weight["title:a b"] == pytest.approx(3 * weight["a b"])


def test_known_stems_are_read_by_compiled_code(monkeypatch):
    """Texts of known words are not split in Python; other texts, once, with the same bits."""
    monkeypatch.setattr(vectorizer, "KNOWN_STEMS", stems.KnownStems())
    fields = (Field("title", weight=2.0), Field("abstract", ngram_max=2), Field("lang", "language"))
    params = TextParams(language="lang", char_ngrams=(3, 4), fields=fields)
    words = ("houses", "reading", "Reader_rows", "Häuser", "les\u00aden", "weißen", "ü", "İn\u0331")
    texts = [
        join_fields((f"{words[i % 8]} {words[i % 7]}", f"{words[i % 5]} of w{i % 3}", language))
        for i in range(50)
        for language in ("en", "de", "xx")
    ]
    pipeline, X = TextPipeline.fit_transform(texts, params)
    rows = [pipeline.transform(texts)]
    split = Counter()
    words_of = Analyzer.words

    def counted(self, part):
        split[part.text] += 1
        return words_of(self, part)

    monkeypatch.setattr(Analyzer, "words", counted)
    rows.append(pipeline.transform(texts))
    assert not split
    unknown = join_fields(("qqqq houses", "reading of w1", "en"))
    assert np.array_equal(
        pipeline.transform([texts[3], unknown]).row(1)[0],
        pipeline.transform([join_fields(("houses", "reading of w1", "en"))]).row(0)[0],
    )
    assert split == {"qqqq houses": 1}
    for each in rows:
        for ours, theirs in zip(each, X, strict=True):
            assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("batch_texts", [3, 1000])
def test_words_in_order(batch_texts, monkeypatch):
    """The words in which names are found are those of the terms; fields do not touch."""
    monkeypatch.setattr(vectorizer, "BATCH_TEXTS", batch_texts)
    pipeline = TextPipeline.fit(documents(), PARAMS)
    texts = [*documents(), "Houses read", ""]
    expected = []
    for each in texts:
        parts = [pipeline.analyzer.words(part)[0] for part in pipeline.analyzer.parts(each)]
        fields = ["".join(word + "\x1f" for word in words) for words in parts]
        expected.append("\x1f".join(fields).encode())
    for _ in range(2):  # with unknown stems, and with known ones
        X, found, starts = pipeline.read(texts)
        for ours, theirs in zip(X, pipeline.transform(texts), strict=True):
            assert np.array_equal(ours, theirs)
        assert [found[a:b].tobytes() for a, b in pairwise(starts)] == expected
    assert [each.tolist() for each in pipeline.read([])[1:]] == [[], [0]]


def test_a_number_is_scaled_by_its_mean_and_deviation():
    pipeline, X = TextPipeline.fit_transform(documents(), PARAMS)
    assert pipeline.numbers == ((2000.0, 10.0),)
    year = pipeline.names.to_pylist().index("year")
    values = [dict(zip(*map(list, X.row(i)), strict=True)).get(year, 0.0) for i in range(4)]
    assert values == [pytest.approx(-1 / 3), pytest.approx(1 / 3), 0.0, 0.0]
    far = pipeline.transform([join_fields(("a", "b", "en", "", "9999"))])
    assert far.data[list(far.indices).index(year)] == 1.0


def test_a_vector_has_the_length_of_its_weight():
    fields = (Field("text"), Field("emb", "vector", 0.5), Field("year", "number", 1.0))
    texts = [join_fields(row) for row in (("a word", "[3, 4]", "1"), ("word", "0 2", "3"))]
    pipeline, X = TextPipeline.fit_transform(texts, TextParams(fields=fields))
    assert pipeline.names.to_pylist() == ["emb:00000", "emb:00001", "word", "year"]
    assert X.row(0)[1] == pytest.approx([0.3, 0.4, 1.0, -1 / 3])
    assert (X.row(1)[0].tolist(), X.row(1)[1].tolist()[0]) == ([1, 2, 3], 0.5)
    assert np.array_equal(pipeline.transform(texts).data, X.data)
    assert pipeline.transform(["word"]).indices.tolist() == [2]
    for wrong in ("1 2 3", "1 x", "nan 1"):
        with pytest.raises(DataError, match=r"vector|numbers"):
            pipeline.transform([join_fields(("a", wrong, ""))])
    with pytest.raises(DataError, match="0 numbers"):
        TextPipeline.fit([join_fields(("a", "", ""))], TextParams(fields=fields))


def test_words_are_named_as_written():
    pipeline = TextPipeline.fit(documents(), PARAMS)
    named = pipeline.written(documents()[1])
    assert {"Bibliotheken".lower(), "häuser", "title:bibliotheken"} <= set(named.values())
    assert "bibliothek" not in named.values()


def test_a_text_without_fields_is_the_shared_one():
    analyzer = Analyzer(TextParams(fields=FIELDS, language="de"))
    assert analyzer.values("Häuser") == ["", "Häuser", "", "", ""]
    assert analyzer.values(document({"title": "a"}, ["title", "abstract"])) == ["a", *[""] * 4]
    with pytest.raises(ParameterError, match="there is no field 'titel'"):
        document({"titel": "a"}, ["title"])


def test_languages():
    assert [stems.algorithm(each) for each in ("de", "DE-at", "german", "zh", "")] == [
        *["german"] * 3,
        None,
        None,
    ]
    with pytest.raises(ParameterError, match="language is 'klingon'"):
        Analyzer(TextParams(language="klingon"))


def test_a_language_is_detected_text_by_text(tmp_path):
    """With fields and without; the rows are those of texts whose language is given."""
    texts = [
        "Readings about the houses of our cities, and of the people who lived in them",
        "Lesungen über die Häuser unserer Städte und die Menschen, die dort gelebt haben",
    ]
    pipeline, X = TextPipeline.fit_transform(texts, TextParams(language="auto"))
    given = [*zip(texts, ("en", "de"), strict=True)]
    fields = (Field("text"), Field("lang", "language"))
    documents = [join_fields(each) for each in given]
    expected, Y = TextPipeline.fit_transform(documents, TextParams(language="lang", fields=fields))
    assert pipeline.terms.equals(expected.terms)
    pipeline.save(tmp_path)
    again = TextPipeline.load(tmp_path)
    fielded = TextParams(language="auto", fields=(Field("title", weight=1.0), Field("abstract")))
    split = TextPipeline.fit([join_fields(text.split(" ", 1)) for text in texts], fielded)
    assert {"hous", "haus", "stadt"} <= set(split.names.to_pylist())
    for rows in (X, pipeline.transform(texts), again.transform(texts)):
        for ours, theirs in zip(rows, Y, strict=True):
            assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("function", "package"), [("stemmer_version", "PyStemmer"), ("detector_version", "py3langid")]
)
def test_another_version_is_refused(function, package, tmp_path, monkeypatch):
    TextPipeline.fit(["houses"], TextParams(language="auto")).save(tmp_path)
    monkeypatch.setattr(stems, function, lambda: "1.0")
    with pytest.raises(Refused, match=f"pip install '{package}=="):
        TextPipeline.load(tmp_path).transform(["house"])


def test_without_a_package_the_extra_is_named(monkeypatch):
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name="Stemmer")

    monkeypatch.setattr(stems, "import_module", missing)
    with pytest.raises(Unavailable, match=r"pip install 'xcray\[text\]'"):
        stems.Stems("german")


def test_weights_of_fields():
    assert text_fields_of(["title:2.5", "abstract"]) == (
        Field("title", weight=2.5),
        Field("abstract"),
    )
    assert text_fields_of({"a:1": {}, "b": {"ngram_max": 2}}) == (
        Field("a:1"),
        Field("b", ngram_max=2),
    )
    for wrong in ({"a": {"wight": 1}}, {"a": {"weight": math.inf}}, {"a": {"ngram_max": 9}}):
        with pytest.raises(ParameterError):
            text_fields_of(wrong)
