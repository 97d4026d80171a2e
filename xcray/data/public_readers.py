"""Readers of the files of public data sets: each writes files that `xcray.data.build` reads."""

from __future__ import annotations

import csv
import gzip
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from xcray.data.build import BuildOptions
from xcray.errors import Corrupt

OWN_SPLIT: Final = 0.2  # rows held out by a hash of their number, where no split is published
NEWS20_WORDS: Final = 53_975  # of the training part


class Sources(NamedTuple):
    """Files that `xcray.data.build` reads: format, paths by part, and options."""

    format: str
    paths: dict[str, Path]
    options: BuildOptions


# (downloaded files by name, folder for new files) -> files to build from
Reader: TypeAlias = Callable[[Mapping[str, Path], Path], Sources]


def read_repository(files: Mapping[str, Path], folder: Path) -> Sources:
    """Return the files of an archive of the repository: two parts, or one file and its splits.

    The first of the ten splits is taken.
    """
    (archive,) = files.values()
    if not zipfile.is_zipfile(archive):
        raise Corrupt(f"{archive.name} is not a zip archive: download it by hand, use --from")
    with zipfile.ZipFile(archive) as opened:
        members = {name.rpartition("/")[2].lower(): name for name in opened.namelist()}

        def extract(ending: str) -> Path | None:
            for name in members:
                if name.endswith(ending):
                    with opened.open(members[name]) as source, (folder / name).open("wb") as out:
                        shutil.copyfileobj(source, out)
                    return folder / name
            return None

        train, test, rows = map(extract, ("_train.txt", "_test.txt", "_tstsplit.txt"))
        if train and test:
            return Sources("xc", {"train": train, "test": test}, BuildOptions())
        whole = extract("_data.txt")
    if not whole or not rows:
        raise Corrupt(f"{archive.name} has neither two parts nor a file with splits")
    first = "".join(f"{line.split()[0]}\n" for line in rows.read_text().splitlines() if line)
    rows.write_text(first)
    return Sources("xc", {"train": whole}, BuildOptions(test_rows_file=str(rows)))


def _svmlight(folder: Path, parts: Mapping[str, Iterable[str]], **options: Any) -> Sources:
    """Write parts as svmlight files; options of `BuildOptions`."""
    paths = {part: folder / f"{part}.txt" for part in parts}
    for part, lines in parts.items():
        with paths[part].open("w") as out:
            out.writelines(f"{line}\n" for line in lines)
    return Sources("svmlight", paths, BuildOptions(**options))


def _dense_lines(labels: Iterable[int], X: np.ndarray, scale: np.ndarray) -> Iterator[str]:
    """Yield rows of X / scale as svmlight lines. X: (n, D); scale: (D,)."""
    for label, row in zip(labels, X, strict=True):
        columns = np.flatnonzero(row)
        values = (row[columns] / scale[columns]).tolist()
        pairs = zip((columns + 1).tolist(), values, strict=True)
        yield f"{label} " + " ".join(f"{column}:{value:.9g}" for column, value in pairs)


def _largest(X: np.ndarray) -> np.ndarray:
    """Return the largest absolute value of each column, 1 for empty ones: (D,)."""
    largest = np.abs(X).max(axis=0)
    return np.where(largest > 0, largest, 1.0)


def read_covtype(files: Mapping[str, Path], folder: Path) -> Sources:
    """Read the comma-separated rows; each column is divided by its largest absolute value."""
    rows = np.loadtxt(files["covtype.data.gz"], np.float32, delimiter=",")
    X, labels = rows[:, :-1], rows[:, -1].astype(int) - 1
    return _svmlight(
        folder, {"train": _dense_lines(labels.tolist(), X, _largest(X))}, test_fraction=OWN_SPLIT
    )


def read_kddcup99(files: Mapping[str, Path], folder: Path) -> Sources:
    """Read the connections: 38 numbers divided by their largest value, then 80 columns of 0 and 1.

    The columns of 0 and 1 are the values of protocol, service and flag, in alphabetical order.
    """
    with gzip.open(files["kddcup99_10_data"], "rt", newline="") as opened:
        rows = list(csv.reader(opened))
    words = np.array([row[1:4] for row in rows])
    numbers = np.array([[*row[:1], *row[4:-1]] for row in rows], np.float32)
    names, labels = np.unique([row[-1].removesuffix(".") for row in rows], return_inverse=True)
    columns = [words[:, [i]] == np.unique(words[:, i]) for i in range(3)]
    X = np.hstack([numbers / _largest(numbers), *columns]).astype(np.float32)
    lines = _dense_lines(labels.tolist(), X, np.ones(X.shape[1], np.float32))
    return _svmlight(
        folder,
        {"train": lines},
        test_fraction=OWN_SPLIT,
        label_names_file=str(_names(folder, names)),
    )


def read_mnist(files: Mapping[str, Path], folder: Path) -> Sources:
    """Read the images; a pixel is a feature from 0 to 1."""
    arrays = np.load(files["mnist.npz"])
    return _images(
        folder, {part: (arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")}
    )


def read_cifar10(files: Mapping[str, Path], folder: Path) -> Sources:
    """Read the binary batches: a byte for the class, then the planes of red, green and blue.

    The three channels of a pixel become neighbours, as `image=32x32x3` of stagewise expects.
    """
    batches: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    names: list[str] = []
    with tarfile.open(files["cifar-10-binary.tar.gz"]) as opened:
        for member in sorted(opened.getnames()):
            name = member.rpartition("/")[2]
            if not name.endswith((".bin", ".meta.txt")):
                continue
            handle = opened.extractfile(member)
            assert handle is not None
            if name.endswith(".meta.txt"):
                names = handle.read().decode().split()
                continue
            part = "test" if name.startswith("test") else "train"
            batches[part].append(np.frombuffer(handle.read(), np.uint8).reshape(-1, 1 + 3072))
    parts = {}
    for part, each in batches.items():
        rows = np.concatenate(each)
        parts[part] = (rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1), rows[:, 0])
    return _images(folder, parts, label_names_file=str(_names(folder, names)))


def _images(
    folder: Path, parts: Mapping[str, tuple[np.ndarray, np.ndarray]], **options: Any
) -> Sources:
    """Write pixels, divided by 255, and classes of parts as npz; options of `BuildOptions`."""
    paths = {part: folder / f"{part}.npz" for part in parts}
    for part, (pixels, classes) in parts.items():
        X = pixels.reshape(len(pixels), -1) / np.float32(255.0)
        np.savez(paths[part], X=X, y=classes)
    return Sources("npz", paths, BuildOptions(**options))


def read_news20(files: Mapping[str, Path], folder: Path) -> Sources:
    """Read counts of words; words that do not occur in training are left out."""
    parts: dict[str, Iterable[str]] = {}
    with tarfile.open(files["20news-bydate-matlab.tgz"]) as opened:
        members = {name.rpartition("/")[2]: name for name in opened.getnames()}

        def table(name: str) -> np.ndarray:
            handle = opened.extractfile(members[name])
            assert handle is not None
            return np.loadtxt(handle, np.int64, ndmin=1)

        for part in ("train", "test"):
            labels, counts = table(f"{part}.label"), table(f"{part}.data")
            counts = counts[counts[:, 1] <= NEWS20_WORDS]
            parts[part] = list(_count_lines(labels - 1, counts))
    return _svmlight(folder, parts)


def _count_lines(labels: np.ndarray, counts: np.ndarray) -> Iterator[str]:
    """Yield documents as svmlight lines. counts: rows of document, word and count."""
    words = {
        document: " ".join(f"{word}:{count}" for _, word, count in entries)
        for document, entries in groupby(counts.tolist(), key=lambda entry: entry[0])
    }
    for number, label in enumerate(labels.tolist(), 1):
        yield f"{label} {words.get(number, '')}"


def read_rcv1(files: Mapping[str, Path], folder: Path) -> Sources:
    """Read the documents of Lewis et al. with all their topics."""
    topics_of: dict[str, list[str]] = {}
    with gzip.open(files["rcv1v2.topics.qrels.gz"], "rt") as opened:
        for line in opened:
            topic, document, _ = line.split()
            topics_of.setdefault(document, []).append(topic)
    names = sorted({topic for topics in topics_of.values() for topic in topics})
    numbers = {name: str(k) for k, name in enumerate(names)}

    def lines(prefix: str) -> Iterator[str]:
        for name in sorted(name for name in files if name.startswith(prefix)):
            with gzip.open(files[name], "rt") as opened:
                for line in opened:
                    document, _, words = line.partition(" ")
                    yield f"{','.join(numbers[t] for t in topics_of[document])} {words.strip()}"

    parts = {part: lines(f"lyrl2004_vectors_{part}") for part in ("train", "test")}
    return _svmlight(folder, parts, label_names_file=str(_names(folder, names)))


def _names(folder: Path, names: Iterable[str]) -> Path:
    """Write names of labels, one per line; return the file."""
    path = folder / "labels.txt"
    path.write_text("".join(f"{name}\n" for name in names))
    return path
