"""Changed data sets: the rows of a base without removed ones, relabelled, and with added ones."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.delta.feedback import delta_from_feedback, last_feedback
from xcray.data.delta.files import delta_from_files
from xcray.data.delta.rows import make_delta, read_lineage
from xcray.data.texts import read_ids, read_texts, texts_at
from xcray.data.weights import set_weights
from xcray.errors import Conflict, InputError, NotFound, ParameterError

DOCUMENTS = [
    {
        "id": f"d{i}",
        "text": f"{['red', 'blue', 'green'][i % 3]} word{i % 5}",
        "labels": ["abc"[i % 3]],
    }
    for i in range(12)
]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Build a small data set of numbers with held-out rows."""
    options = BuildOptions.from_dict(
        {"test_fraction": 0.2, "synthetic": {"rows": 60, "features": 20, "labels": 5}}
    )
    return build("synthetic", {}, tmp_path_factory.mktemp("delta") / "numbers", options)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Build a small data set of texts with ids."""
    folder = tmp_path_factory.mktemp("delta")
    options = BuildOptions.from_dict({"id_field": "id", "test_fraction": 0.0})
    return build("jsonl", {"train": write(folder / "d.jsonl", DOCUMENTS)}, folder / "d", options)


def test_rows_that_are_removed_and_added_again_are_the_last(numbers: Dataset, tmp_path: Path):
    """The rows are those of the base in another order, with the same held-out rows."""
    n = numbers.train.n_rows
    first = make_delta(numbers, tmp_path / "first", remove=range(n - 5, n))
    rest = make_delta(numbers, tmp_path / "rest", remove=range(n - 5))
    again = make_delta(first, tmp_path / "again", add=rest)
    assert again.content_hash == numbers.content_hash
    lineage = read_lineage(again)
    assert lineage is not None
    assert (lineage.base, lineage.base_rows, lineage.n_kept) == (first.content_hash, n - 5, n - 5)
    assert lineage.origin.tolist() == [*range(n - 5), *[-1] * 5]
    assert read_lineage(numbers) is None
    assert Dataset.open(again.path, verify=True).test.content_hash == numbers.test.content_hash


def test_relabelled_rows_have_their_new_labels(numbers: Dataset, tmp_path: Path):
    before = numbers.train.Y.row(7).tolist()
    data = make_delta(numbers, tmp_path / "d", remove=[3], relabel={7: ["2", "new"]})
    lineage = read_lineage(data)
    assert data.label_names[5] == "new"
    assert data.train.Y.row(6).tolist() == [2, 5]
    changed = sorted({*before} ^ {2, 5})
    assert lineage.relabelled.tolist() == [[6, label] for label in changed]
    others = [i for i in range(numbers.train.n_rows) if i not in (3, 7)]
    for i in others:
        assert data.train.Y.row(i - (i > 3)).tolist() == numbers.train.Y.row(i).tolist()
        assert data.train.X.row(i - (i > 3))[1].tobytes() == numbers.train.X.row(i)[1].tobytes()


def test_weights_of_added_rows_are_one(numbers: Dataset, tmp_path: Path):
    n = numbers.train.n_rows
    weighted = set_weights(numbers, np.linspace(0.5, 2.0, n), tmp_path / "w")
    data = make_delta(weighted, tmp_path / "d", add=numbers, remove=[0])
    np.testing.assert_array_equal(data.train.weights[: n - 1], weighted.train.weights[1:])
    np.testing.assert_array_equal(data.train.weights[n - 1 :], 1.0)


def test_given_fields_hold_against_those_of_the_base(tmp_path: Path):
    """Also if they are the defaults, which count as not given elsewhere."""
    rows = [{"body": each["text"], "tags": each["labels"]} for each in DOCUMENTS]
    how = BuildOptions.from_dict({"text_fields": "body", "label_field": "tags"})
    build("jsonl", {"train": write(tmp_path / "base.jsonl", rows)}, tmp_path / "base", how)
    data = delta_from_files(
        tmp_path / "base",
        tmp_path / "changed",
        add=write(tmp_path / "more.jsonl", DOCUMENTS[:3]),
        options={"text_fields": "text", "label_field": "labels"},
    )
    assert data.train.n_rows == 15


@pytest.mark.parametrize("options", [{"test_fraction": 0.5}, {"text": {"min_df": 2}}])
def test_options_of_features_and_held_out_rows_are_those_of_the_base(
    options: dict[str, Any], texts: Dataset, tmp_path: Path
):
    rows = write(tmp_path / "more.jsonl", DOCUMENTS[:3])
    with pytest.raises(ParameterError, match=f"{next(iter(options))} cannot be given"):
        delta_from_files(texts.path, tmp_path / "d", add=rows, options=options)
    (tmp_path / "ids").write_text("d0\n")
    with pytest.raises(ParameterError, match="for a file of rows to add"):
        delta_from_files(texts.path, tmp_path / "d", remove=tmp_path / "ids", options={"seed": 1})


def test_texts_are_changed_by_id_and_removed_from_all_files(texts: Dataset, tmp_path: Path):
    """A removed text and its id are in no file; added ones pass the pipeline of the base."""
    secret = write(
        tmp_path / "add.jsonl", [{"id": "n1", "text": "red mauve word1", "labels": ["a", "z"]}]
    )
    (tmp_path / "remove").write_text("d4\n\n")
    relabel = write(tmp_path / "relabel", [{"row": "d5", "labels": ["b"]}])
    data = delta_from_files(
        texts.path, tmp_path / "d", add=secret, remove=tmp_path / "remove", relabel=relabel
    )
    ids = [f"d{i}" for i in range(12) if i != 4] + ["n1"]
    assert read_ids(data) == ids
    assert [text for batch in read_texts(data, "train") for text in batch][-1] == "red mauve word1"
    assert data.manifest["source"]["delta"].items() >= {"words": 3, "unknown_words": 1}.items()
    assert data.label_names.to_pylist() == ["a", "b", "c", "z"]
    assert data.train.Y.row(11).tolist() == [0, 3]
    assert data.train.Y.row(4).tolist() == [1]
    np.testing.assert_array_equal(data.train.X.row(11)[1], texts.train.X.row(6)[1])
    assert data.text.fingerprint == texts.text.fingerprint


def test_a_batch_of_texts_is_read_once_for_its_rows(texts: Dataset, monkeypatch):
    """A batch is decompressed as a whole, and stays in memory."""
    read, whole = [], pa.ipc.open_file

    def counted(source: object) -> SimpleNamespace:
        reader = whole(source)
        return SimpleNamespace(
            num_record_batches=reader.num_record_batches,
            get_batch=lambda number: read.append(number) or reader.get_batch(number),
        )

    [expected] = read_texts(texts, "train")
    monkeypatch.setattr(pa.ipc, "open_file", counted)
    assert texts_at(texts, "train", range(5)) == expected[:5]
    assert read == [0]


def corrections(path: Path, *entries: tuple[str, object, list[str], list[str]]) -> Path:
    """Write feedback: id, instance, right and wrong labels; numbered from 5."""
    keys = ("id", "instance", "right", "wrong")
    rows = [{"seq": 5 + i, **dict(zip(keys, each, strict=True))} for i, each in enumerate(entries)]
    return write(path, rows)


def test_feedback_corrects_rows_by_id_and_adds_others(texts: Dataset, tmp_path: Path):
    """A row of the base keeps labels that were not judged; a second delta takes the rest."""
    path = corrections(
        tmp_path / "f",
        ("d4", {"text": "other"}, ["c", "z"], []),
        ("d5", {"text": "other"}, [], ["c"]),
        ("n1", {"text": "red mauve word1"}, ["z", "a"], ["b"]),
        ("n2", {"text": "left out"}, [], ["b"]),
        ("n3", {"fields": {"text": "blue"}}, ["b"], []),
    )
    data = delta_from_feedback(texts.path, tmp_path / "d", path, model="m")
    names = data.label_names.to_pylist()
    rows = [[names[k] for k in data.train.Y.row(row)] for row in (3, 4, 5, 12, 13)]
    assert rows == [["a"], ["b", "c", "z"], [], ["a", "z"], ["b"]]
    assert (data.train.n_rows, read_ids(data)[12:]) == (14, ["n1", "n3"])
    assert [text for batch in read_texts(data, "train") for text in batch][12] == "red mauve word1"
    np.testing.assert_array_equal(
        data.train.X.row(12)[1], texts.text.transform(["red mauve word1"]).row(0)[1]
    )
    assert read_lineage(data).base == texts.content_hash
    assert (last_feedback(data, "m"), last_feedback(data, "other")) == (9, 0)
    again = corrections(tmp_path / "g", ("n1", {"text": "red"}, ["b"], ["z"]))
    second = delta_from_feedback(data.path, tmp_path / "e", again, model="other")
    assert [names[k] for k in second.train.Y.row(12)] == ["a", "b"]
    assert (last_feedback(second, "m"), last_feedback(second, "other")) == (9, 5)
    none = corrections(tmp_path / "h", ("n9", {"text": "red"}, [], ["a"]))
    with pytest.raises(InputError, match="nothing would change"):
        delta_from_feedback(data.path, tmp_path / "n", none, model="m")


def test_feedback_of_rows_has_the_features_of_the_base(numbers: Dataset, tmp_path: Path):
    """Names like numbers are labels by name; ids of a base without ids are new rows."""
    dense = [0.0] * 19 + [2.0]
    path = corrections(
        tmp_path / "f",
        ("0", {"indices": [7, 3], "values": [1.0, 2.0]}, [numbers.label_names[1], "0x"], []),
        ("1", {"values": dense}, [numbers.label_names[0]], []),
    )
    data = delta_from_feedback(numbers.path, tmp_path / "d", path, model="m")
    n = numbers.train.n_rows
    assert [data.train.X.row(n + i)[0].tolist() for i in (0, 1)] == [[3, 7], [19]]
    assert data.train.X.row(n)[1].tolist() == [2.0, 1.0]
    assert [data.train.Y.row(n + i).tolist() for i in (0, 1)] == [[1, numbers.n_labels], [0]]
    assert data.label_names[numbers.n_labels] == "0x"
    for instance in ({"text": "a"}, {"indices": [20], "values": [1.0]}):
        path = corrections(tmp_path / "g", ("2", instance, ["x"], []))
        with pytest.raises(InputError, match="feedback 2"):
            delta_from_feedback(numbers.path, tmp_path / "n", path, model="m")


def test_invalid_changes_are_refused(numbers: Dataset, texts: Dataset, tmp_path: Path):
    out = tmp_path / "d"
    with pytest.raises(InputError, match="nothing would change"):
        make_delta(numbers, out)
    with pytest.raises(NotFound, match="row 99 is not a training row"):
        make_delta(numbers, out, remove=[99])
    with pytest.raises(InputError, match="named twice"):
        make_delta(numbers, out, remove=[1], relabel={1: ["0"]})
    with pytest.raises(ParameterError, match="other features"):
        make_delta(numbers, out, add=texts)
    with pytest.raises(Conflict):
        make_delta(numbers, texts.path, remove=[1])
    for content, error in (("d99", NotFound), ("4", NotFound)):
        (tmp_path / "remove").write_text(content)
        with pytest.raises(error, match="is not a training row"):
            delta_from_files(texts.path, out, remove=tmp_path / "remove")
    for labels in ("[]", '["a", " "]', '["\\ud800"]', '[{"a": 1}]', "[true]"):
        (tmp_path / "relabel").write_text(f'{{"row": "d1", "labels": {labels}}}')
        with pytest.raises(InputError, match="a row needs a label"):
            delta_from_files(texts.path, out, relabel=tmp_path / "relabel")
    (tmp_path / "rows").write_text("{}")
    with pytest.raises(ParameterError, match="format of rows is not known"):
        delta_from_files(texts.path, out, add=tmp_path / "rows")
    assert not out.exists()
