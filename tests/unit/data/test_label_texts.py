"""Label texts: reading vocabularies, and storing them in a data set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xcray.data.build import build
from xcray.data.dataset import Dataset
from xcray.data.label_texts import (
    LabelText,
    open_label_texts,
    read_label_texts,
    set_label_texts,
)
from xcray.data.texts import read_texts
from xcray.errors import DataError, InputError

CAT = LabelText("a:1", "Katze", ("Cat", "Stubentiger"), "ein Tier", ("a:2",))
TURTLE = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix a: <http://animals/> .
a:1 a skos:Concept ; skos:prefLabel "Katze"@de, "Cat"@en ; skos:altLabel "Stubentiger"@de ;
  skos:definition "ein Tier" ; skos:broader a:2 .
a:2 a skos:Concept ; skos:prefLabel "Tier"@de .
a:3 a skos:Concept ; skos:altLabel "without a name" .
"""


def write(path: Path, text: str) -> Path:
    """Write a file and return its path."""
    path.write_text(text, "utf-8")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    """Return a data set of texts with the labels a:1 and a:2, and a held-out row."""
    rows = [("0", "a cat\ud800 ü", "a:1"), ("1", "a dog", "a:2"), ("2", "the cat", "a:1")]
    lines = [json.dumps({"id": i, "text": text, "labels": [label]}) for i, text, label in rows]
    train, test = write(tmp_path / "train.jsonl", "\n".join(lines)), tmp_path / "test.jsonl"
    write(test, json.dumps({"text": "cats", "labels": ["a:1"]}))
    return build("jsonl", {"train": train, "test": test}, tmp_path / "data")


def test_every_format_gives_the_same_texts(tmp_path: Path) -> None:
    """JSON lines and SKOS have all texts, TSV ids and names; the preferred label is by language."""
    entry = {**CAT._asdict(), "name": "Cat", "other_names": ["Katze", "Stubentiger"]}
    lines = json.dumps({"id": "a:2", "name": "Tier"}) + "\n\n" + json.dumps(entry)
    texts = read_label_texts(write(tmp_path / "labels.jsonl", lines))
    assert [each.id for each in texts.entries()] == ["a:2", "a:1"]
    assert list(texts.entries())[1].other_names == ("Katze", "Stubentiger")
    assert texts.names == {"a:2": "Tier", "a:1": "Cat"}
    lines = "a:2\tTier\n\na:1\tKatze\na:2\tAnimal\na:2\tTier\n"
    animal, cat = read_label_texts(write(tmp_path / "l.tsv", lines)).entries()
    assert (animal.id, animal.name, animal.other_names) == ("a:2", "Tier", ("Animal",))
    assert (cat.id, cat.name, cat.other_names) == ("a:1", "Katze", ())
    concept, _ = read_label_texts(write(tmp_path / "labels.ttl", TURTLE)).entries()
    ids = {"id": "http://animals/1", "broader": ("http://animals/2",)}
    assert concept == CAT._replace(**ids)


@pytest.mark.parametrize(
    ("name", "text", "code", "line"),
    [
        ("a.jsonl", '{"id": "1", "name": "x"}\n{"id": "1", "name": "y"}', "LABEL_DUPLICATE", 2),
        ("a.jsonl", '{"id": "1"}', "FIELD_MISSING", 1),
        ("a.jsonl", '\n{"id": "1", "name": 5}', "FIELD_TYPE", 2),
        ("a.jsonl", '{"id": "1", "name": "x", "other_names": "y"}', "FIELD_TYPE", 1),
        ("a.jsonl", '{"id": "1", "name": "x", "broader": [5]}', "FIELD_TYPE", 1),
        ("a.jsonl", '{"id": "1", "name": "x", "altLabel": "y"}', "FIELD_TYPE", 1),
        ("a.jsonl", '{"id": "1", "name": "\\ud800"}', "ENCODING", 1),
        ("a.jsonl", '{"id": "1", "name": "a", "other_names": ["\\ud800"]}', "ENCODING", 1),
        ("a.jsonl", '{"id": "1", "name": "x"}\n{"id": ', "JSON_INVALID", 2),
        ("a.tsv", "1\tx\n2\n", "CSV_FIELDS", 2),
        ("a.tsv", "1\tx\n2\t \n", "LABEL_EMPTY", 2),
        ("a.tsv", "", "EMPTY_FILE", None),
        ("a.ttl", "@prefix skos: <http://x> .\n<a> b c d e", "FORMAT_MISMATCH", 2),
        ("a.rdf", "<x>\n<y>", "FORMAT_MISMATCH", 2),
    ],
)
def test_errors_name_the_line(
    tmp_path: Path, name: str, text: str, code: str, line: int | None
) -> None:
    """What cannot be read is refused with its code and line."""
    with pytest.raises(DataError) as caught:
        read_label_texts(write(tmp_path / name, text))
    assert (caught.value.code, caught.value.line) == (code, line)


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    """The message lists the formats."""
    with pytest.raises(InputError, match=r"\.jsonl, \.nt"):
        read_label_texts(write(tmp_path / "labels.xlsx", "x"))


def test_a_data_set_keeps_texts_of_labels_without_rows(data: Dataset) -> None:
    """Texts are replaced as a whole; the content hash stays, and checksums match."""
    assert open_label_texts(data) is None
    other = CAT._replace(id="a:9")
    for entries in ([CAT], [CAT._replace(name="Cat"), other]):
        read = set_label_texts(data, read_entries(data, entries))
    assert read.manifest["label_texts"] == {"labels": 1, "others": 1}
    assert read.content_hash == data.content_hash
    stored = open_label_texts(Dataset.open(data.path, verify=True))
    assert stored is not None
    assert list(stored.entries()) == [CAT._replace(name="Cat"), other]


def read_entries(data: Dataset, entries: list[LabelText]):  # type: ignore[no-untyped-def]
    """Return label texts through a file."""
    lines = "\n".join(json.dumps(each._asdict()) for each in entries)
    return read_label_texts(write(data.path.parent / "labels.jsonl", lines))


def test_a_vocabulary_of_other_labels_is_refused(data: Dataset) -> None:
    """Ids that never match are a mistake: the message has examples of both."""
    with pytest.raises(InputError, match="labels are called a:1, a:2; the vocabulary has x") as no:
        set_label_texts(data, read_entries(data, [CAT._replace(id="x")]))
    assert no.value.code == "NO_KNOWN_LABEL"


def test_a_data_set_keeps_the_texts_of_its_rows(data: Dataset) -> None:
    """In the order of the rows, without lone surrogates; their features are those of X."""
    assert data.text is not None
    for part, expected in (("train", ["a cat ü", "a dog", "the cat"]), ("test", ["cats"])):
        (texts,) = read_texts(data, part)
        assert texts == expected
        assert data.text.transform(texts).indices.tolist() == data[part].X.indices.tolist()
