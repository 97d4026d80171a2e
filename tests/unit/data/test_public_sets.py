"""Public data sets: files in the form of their publishers, checksums, errors offline."""

from __future__ import annotations

import gzip
import io
import tarfile
import urllib.error
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xcray.data import public_sets
from xcray.data.public_sets import SETS, fetch_dataset
from xcray.errors import Conflict, Corrupt, NotFound, Unavailable
from xcray.storage.atomic import sha256_file

KDD_ROWS = (
    "0,tcp,http,SF,{},0,0.5,normal.",
    "2,udp,dns,SF,{},0,0.25,smurf.",
    "4,tcp,http,REJ,{},0,0,normal.",
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that gives a set other sizes, and files without checksum."""

    def resize(name: str, n_features: int, n_labels: int) -> None:
        files = tuple(file._replace(sha256=None) for file in SETS[name].files)
        values = {"files": files, "n_features": n_features, "n_labels": n_labels}
        monkeypatch.setitem(SETS, name, SETS[name]._replace(**values))

    return resize


def write_zip(path: Path, members: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)


def test_the_first_split_of_an_archive_is_taken(tmp_path: Path) -> None:
    rows = "3 2 2\n0 0:1\n1 1:1\n0,1 0:2 1:2\n"
    members = {"Bibtex/Bibtex_data.txt": rows, "Bibtex/bibtex_trSplit.txt": "1 2\n3 3\n"}
    write_zip(tmp_path / "a.zip", {**members, "Bibtex/bibtex_tstSplit.txt": "2 1\n"})
    dataset = fetch_dataset("bibtex", tmp_path / "bibtex", tmp_path / "a.zip")
    assert (dataset.train.n_rows, dataset["test"].n_rows) == (2, 1)
    assert dataset["test"].X.to_scipy().toarray().tolist() == [[0.0, 1.0]]
    origin = dataset.manifest["source"]["origin"]
    assert origin["sha256"] == {"Bibtex.zip": sha256_file(tmp_path / "a.zip")}
    assert "cite" in origin["licence"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "bibtex"]


def test_an_archive_with_two_parts(tmp_path: Path) -> None:
    members = {"Eurlex/eurlex_train.txt": "1 2 2\n0 0:1\n"}
    write_zip(tmp_path / "Eurlex.zip", {**members, "Eurlex/eurlex_test.txt": "1 2 2\n1 1:1\n"})
    dataset = fetch_dataset("eurlex", tmp_path / "eurlex", tmp_path)
    assert dataset["test"].Y.to_scipy().toarray().tolist() == [[0, 1]]


def test_documents_get_their_topics(tmp_path: Path, small: Any) -> None:
    small("rcv1", 4, 2)
    for name, text in {
        "lyrl2004_vectors_train.dat.gz": "7  1:0.5 4:1\n9 2:1\n",
        **{f"lyrl2004_vectors_test_pt{i}.dat.gz": f"{20 + i} {i + 1}:1\n" for i in range(4)},
        "rcv1v2.topics.qrels.gz": "E1 7 1\nC2 7 1\nC2 9 1\n"
        + "".join(f"E1 {20 + i} 1\n" for i in range(4)),
    }.items():
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    dataset = fetch_dataset("rcv1", tmp_path / "rcv1", tmp_path)
    assert list(dataset.label_names) == ["C2", "E1"]
    assert dataset.train.Y.to_scipy().toarray().tolist() == [[1, 1], [1, 0]]
    assert dataset.train.X.to_scipy().toarray().tolist() == [[0.5, 0, 0, 1], [0, 1, 0, 0]]
    assert (dataset["test"].X.to_scipy().toarray() == np.eye(4)).all()


def test_numbers_are_scaled_and_words_become_columns(
    tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small("kddcup99_10pct", 11, 2)
    lines = "\n".join(row.format(8 * i) for i, row in enumerate(KDD_ROWS))
    (tmp_path / "kddcup99_10_data").write_bytes(gzip.compress(lines.encode()))
    monkeypatch.setattr("xcray.data.public_readers.OWN_SPLIT", 0.0)
    dataset = fetch_dataset("kddcup99_10pct", tmp_path / "kdd", tmp_path)
    assert list(dataset.label_names) == ["normal", "smurf"]
    assert dataset.train.X.to_scipy().toarray().tolist() == [
        [0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0],
        [0.5, 0.5, 0, 0.5, 0, 1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 0, 0, 1, 1, 0, 0],
    ]


def test_columns_of_numbers(tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small("covtype", 2, 7)
    (tmp_path / "covtype.data.gz").write_bytes(gzip.compress(b"2,-4,1\n1,2,7\n"))
    monkeypatch.setattr("xcray.data.public_readers.OWN_SPLIT", 0.0)
    dataset = fetch_dataset("covtype", tmp_path / "covtype", tmp_path)
    assert dataset.train.X.to_scipy().toarray().tolist() == [[1.0, -1.0], [0.5, 0.5]]
    assert dataset.train.Y.indices.tolist() == [0, 6]


def test_pixels_and_counts(tmp_path: Path, small: Any) -> None:
    small("mnist", 784, 10)
    images = np.zeros((2, 28, 28), np.uint8)
    images[1, 27, 27] = 255
    arrays = {"x_train": images, "y_train": np.array([3, 9], np.uint8)}
    np.savez(tmp_path / "mnist.npz", **arrays, x_test=images[:1], y_test=np.array([1], np.uint8))
    dataset = fetch_dataset("mnist", tmp_path / "mnist", tmp_path)
    assert (dataset.train.X.indices.tolist(), dataset.train.X.data.tolist()) == ([783], [1.0])
    assert dataset.train.Y.indices.tolist() == [3, 9]
    small("news20_bydate", 53_975, 2)
    parts = {"train.data": "1 2 3\n2 1 1\n", "train.label": "1\n2\n"}
    parts |= {"test.data": "1 1 1\n1 60000 5\n", "test.label": "2\n"}
    with tarfile.open(tmp_path / "20news-bydate-matlab.tgz", "w:gz") as archive:
        for name, text in parts.items():
            member = tarfile.TarInfo(f"20news-bydate/matlab/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    dataset = fetch_dataset("news20_bydate", tmp_path / "news", tmp_path)
    assert dataset.train.X.data.tolist() == [3.0, 1.0]
    assert dataset["test"].X.indices.tolist() == [0]


def test_channels_of_a_pixel_become_neighbours(tmp_path: Path, small: Any) -> None:
    small("cifar10", 3072, 2)
    pixels = np.zeros((3, 32, 32), np.uint8)
    pixels[:, 0, 1] = 255, 51, 0  # an orange pixel at the top, second from the left
    rows = {name: bytes([name[0] == "d"]) + pixels.tobytes() for name in ("data_1", "test_batch")}
    members = {f"{name}.bin": text for name, text in rows.items()}
    members |= {"batches.meta.txt": b"airplane\nship\n\n", "readme.html": b"<html>"}
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, text in members.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    dataset = fetch_dataset("cifar10", tmp_path / "cifar", tmp_path)
    assert list(dataset.label_names) == ["airplane", "ship"]
    assert [part.Y.indices.tolist() for part in (dataset.train, dataset["test"])] == [[1], [0]]
    assert dataset.train.X.indices.tolist() == [3, 4]
    assert dataset.train.X.data.tolist() == pytest.approx([1.0, 0.2])


def test_offline_the_error_names_address_checksum_and_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(public_sets.urllib.request, "urlopen", fail)
    [file] = SETS["mnist"].files
    with pytest.raises(Unavailable) as error:
        fetch_dataset("mnist", tmp_path / "mnist")
    for part in (file.url, file.sha256, "no route to host", "fetch mnist --from FOLDER"):
        assert str(part) in error.value.message
    assert list(tmp_path.iterdir()) == []


def test_other_bytes_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").write_bytes(b"other")
    with pytest.raises(Corrupt, match="has SHA-256"):
        fetch_dataset("mnist", tmp_path / "new", tmp_path)
    (tmp_path / "Eurlex.zip").write_bytes(b"<html>")
    with pytest.raises(Corrupt, match="not a zip archive"):
        fetch_dataset("eurlex", tmp_path / "new", tmp_path)
    with pytest.raises(NotFound, match=r"covtype.data.gz: download it from https"):
        fetch_dataset("covtype", tmp_path / "new", tmp_path)
    with pytest.raises(NotFound, match="did you mean 'bibtex'"):
        fetch_dataset("bibtxe", tmp_path / "new", tmp_path)
    with pytest.raises(Conflict):
        fetch_dataset("mnist", tmp_path, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Eurlex.zip", "mnist.npz"]
