"""The data set directory: round trips, atomic publication, and detection of damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from xcray.arrays import csr_from, pattern_from
from xcray.data.dataset import Dataset
from xcray.data.text.pipeline import TextPipeline
from xcray.data.writer import DatasetWriter
from xcray.errors import Conflict, Corrupt, NotFound, ParameterError, ShapeMismatch

A = sp.random(50, 30, 0.2, format="csr", dtype=np.float32, random_state=1)
B = sp.random(50, 9, 0.2, format="csr", dtype=np.float32, random_state=2)
X, Y = csr_from(A), pattern_from(B)


def write(path: Path, step: int = 20, test: int = 7, **names: Any) -> Dataset:
    with DatasetWriter(path, name="small") as writer:
        for start in range(0, 50, step):
            writer.add(
                "train", csr_from(A[start : start + step]), pattern_from(B[start : start + step])
            )
        if test:
            writer.add("test", csr_from(A[:test]), pattern_from(B[:test]))
        return writer.finish(source={"format": "made"}, **names)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    ds = write(tmp_path / "small")
    assert (ds.name, ds.n_features, ds.n_labels) == ("small", 30, 9)
    assert ds["train"] is ds.train
    for split, rows in ((ds.train, A), (ds["test"], A[:7])):
        assert split.n_rows == rows.shape[0]
        assert (split.X.to_scipy() != rows).nnz == 0
        assert (split.XT.to_scipy() != rows.T).nnz == 0
        assert (split.Y.to_scipy() != (B[: rows.shape[0]] != 0).astype(np.float32)).nnz == 0
        assert (split.YT.to_scipy().T != split.Y.to_scipy()).nnz == 0
    assert ds.label_counts.tolist() == np.asarray((B != 0).sum(axis=0)).ravel().tolist()
    assert ds.label_names.to_pylist() == [str(k) for k in range(9)]
    assert ds.feature_names.to_pylist() == [str(j) for j in range(30)]
    assert ds.text is None
    assert [p.name for p in tmp_path.iterdir()] == ["small"]


def test_a_row_range_is_a_view(tmp_path: Path) -> None:
    train = write(tmp_path / "small").train
    rows, labels = train.take(10, 13)
    assert (rows.to_scipy() != A[10:13]).nnz == 0
    assert labels.row(1).tolist() == B[11].indices.tolist()
    assert np.shares_memory(rows.data, train.X.data)
    with pytest.raises(IndexError):
        train.take(40, 51)


def test_arrays_are_mapped_and_read_only(tmp_path: Path) -> None:
    train = write(tmp_path / "small").train
    for matrix in (train.X, train.XT, train.Y, train.YT):
        for array in matrix[:-1]:
            assert not array.flags.writeable
            assert not array.flags.owndata


def test_the_hash_is_of_the_content(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a"), write(tmp_path / "b", step=7)
    assert one.content_hash == two.content_hash
    assert one.train.content_hash == two.train.content_hash
    named = write(tmp_path / "c", label_names=list("abcdefghi"))
    assert named.content_hash != one.content_hash
    assert named.train.content_hash == one.train.content_hash
    assert write(tmp_path / "d", test=0).content_hash != one.content_hash


def test_names_and_text_travel_with_the_set(tmp_path: Path) -> None:
    texts = ["red apples", "green apples", "red wine"]
    pipeline = TextPipeline.fit(texts)
    with DatasetWriter(tmp_path / "t", name="t") as writer:
        writer.add(
            "train", pipeline.transform(texts), pattern_from(np.array([[1, 0], [1, 0], [0, 1]]))
        )
        ds = writer.finish(
            source={}, label_names=["fruit", "drink"], feature_names=pipeline.terms, text=pipeline
        )
    assert ds.label_names.to_pylist() == ["fruit", "drink"]
    assert ds.feature_names.to_pylist() == ["apples", "green", "red", "wine"]
    assert ds.text is not None
    assert ds.text.transform(["red apples"]).data.tolist() == ds.train.X.row(0)[1].tolist()


def test_widths_may_exceed_what_occurs(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "wide", name="wide", n_features=100, n_labels=20) as writer:
        writer.add("train", X, Y)
        ds = writer.finish(source={})
    assert (ds.train.X.shape, ds.train.XT.shape, ds.train.YT.shape) == (
        (50, 100),
        (100, 50),
        (20, 50),
    )


def test_sizes_that_disagree(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "bad", name="bad", n_features=20) as writer:
        with pytest.raises(ShapeMismatch, match="30 features"):
            writer.add("train", X, Y)
        with pytest.raises(ShapeMismatch, match="no training rows"):
            writer.finish(source={})
    with (
        pytest.raises(ShapeMismatch, match="50 rows, Y has 3"),
        DatasetWriter(tmp_path / "bad", name="bad") as writer,
    ):
        writer.add("train", X, pattern_from(B[:3]))
    with pytest.raises(ShapeMismatch, match="2 label names for 9"):
        write(tmp_path / "bad", label_names=["a", "b"])
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_an_abandoned_set(tmp_path: Path) -> None:
    def failing() -> None:
        with DatasetWriter(tmp_path / "gone", name="gone") as writer:
            writer.add("train", X, Y)
            raise RuntimeError("the reader failed")

    with pytest.raises(RuntimeError):
        failing()
    assert list(tmp_path.iterdir()) == []


def test_a_published_set_is_never_replaced(tmp_path: Path) -> None:
    write(tmp_path / "small")
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "small").rglob("*"))
    with pytest.raises(Conflict):
        DatasetWriter(tmp_path / "small", name="small")
    late = DatasetWriter(tmp_path / "other", name="other")
    late.add("train", X, Y)
    write(tmp_path / "other")
    with pytest.raises(Conflict), late:
        late.finish(source={})
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "small").rglob("*")) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "small"]


@pytest.mark.parametrize("name", ["../up", "", "A", "a/b", ".hidden"])
def test_names_are_data(name: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError):
        DatasetWriter(tmp_path / "x", name=name)


def test_damage_is_named(tmp_path: Path) -> None:
    ds = write(tmp_path / "small")
    files = list(ds.manifest["files"])
    assert len(files) == 9
    for name in files:
        path = ds.path / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(Corrupt, match=name):
            Dataset.open(ds.path)
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(Corrupt, match=name):
            Dataset.open(ds.path, verify=True)
        path.unlink()
        with pytest.raises(Corrupt, match=name):
            Dataset.open(ds.path)
        path.write_bytes(whole)
    assert Dataset.open(ds.path, verify=True).content_hash == ds.content_hash


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"schema_version": 99}, "schema version 99"),
        ({"n_features": 31}, "shapes"),
        ({"files": {"../../etc/passwd": {"bytes": 1, "sha256": ""}}}, "outside"),
        ({"splits": None}, "lacks splits"),
    ],
)
def test_manifests_are_validated(change: dict[str, Any], error: str, tmp_path: Path) -> None:
    ds = write(tmp_path / "small")
    manifest = {name: value for name, value in (ds.manifest | change).items() if value is not None}
    (ds.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(Corrupt, match=error):
        Dataset.open(ds.path)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        Dataset.open(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound):
        Dataset.open(tmp_path / "empty")
    ds = write(tmp_path / "small", test=0)
    assert ds.test is None
    with pytest.raises(NotFound, match="train"):
        ds["test"]
