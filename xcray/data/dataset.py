"""A data set on disk: a directory of memory-mapped Arrow files, with X and Y in both orientations.

manifest.json     schema version, name, sizes, content hashes, source, skipped rows,
                  SHA-256 of every file
labels.arrow      name and number of training rows per label
features.arrow    name per feature; absent if features have no names except their numbers
label_texts.arrow names and descriptions of labels, if `xcray data labels` has stored them
text/             the text pipeline, if the set was built from text
train/            x_rows.arrow  x_columns.arrow  y_rows.arrow  y_columns.arrow;
                  weights.arrow if its rows have weights; texts.arrow if they were texts
test/             the same four files, if there is a test part
metric-forest/    an index of the training rows, if `xcray data index` has built one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float32, Int64, Pattern, frozen
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import Corrupt, InputError, NotFound
from xcray.kernels.canonical import FAULTS, first_fault, pattern_fault
from xcray.kernels.sparse import pattern_range, row_range
from xcray.parameters import require_type
from xcray.storage.arrow import read_column, read_csr, read_names, read_pattern, read_table
from xcray.storage.atomic import is_file_entry, read_json, similar_directory, verify_files
from xcray.storage.git_lfs import lfs_hint
from xcray.storage.names import Names
from xcray.storage.verified import VERIFIED_FILE, VerifiedFiles
from xcray.system.user_directories import default_home

SCHEMA_VERSION = 1
# options of readers that other files of the same kind need
READING = ("text_fields", "value_fields", "label_field", "label_separator", "delimiter")
MANIFEST, LABELS, FEATURES, TEXT = "manifest.json", "labels.arrow", "features.arrow", "text"
WEIGHTS = "train/weights.arrow"
UNSEEN = "test/unseen.arrow"
LABEL_TEXTS = "label_texts.arrow"
FOREST = "metric-forest"  # has a manifest of its own
PARTS = ("train", "test")


@dataclass(frozen=True)
class Split:
    """One part of a data set; every array is a read-only view of a mapped file.

    X: (n_rows x D) float32; XT: (D x n_rows), its transpose; Y: (n_rows x K), the label sets;
    YT: (K x n_rows).
    content_hash: SHA-256 over the arrays of X and Y, independent of the file format. weights:
    (n_rows,) float32 above 0, factors of the training rows' losses, or None. unseen: (n_rows,)
    int64, true labels of each test row that do not occur in training and are not in Y, or None.
    """

    name: str
    X: CSR = field(repr=False)
    XT: CSR = field(repr=False)
    Y: Pattern = field(repr=False)
    YT: Pattern = field(repr=False)
    content_hash: str
    weights: Float32 | None = field(default=None, repr=False)
    unseen: Int64 | None = field(default=None, repr=False)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.X.n_rows

    @property
    def n_labelled(self) -> int:
        """Number of rows with true labels, also labels that do not occur in training."""
        true = np.diff(self.Y.indptr)
        return int(np.count_nonzero(true if self.unseen is None else true + self.unseen))

    def take(self, start: int, stop: int) -> tuple[CSR, Pattern]:
        """Return X and Y of rows start..stop-1 as views.

        Raises IndexError if the range is not inside the split.
        """
        if not 0 <= start <= stop <= self.n_rows:
            raise IndexError(
                f"rows {start}..{stop} are not inside {self.name}, which has {self.n_rows}"
            )
        return row_range(self.X, start, stop), pattern_range(self.Y, start, stop)

    def check(self) -> None:
        """Raise Corrupt unless kernels, which do not check bounds, can read the matrices."""
        for name, matrix in (("x_rows", self.X), ("x_columns", self.XT)):
            _require_sound(f"{self.name}/{name}.arrow", *first_fault(matrix))
        for name, ones in (("y_rows", self.Y), ("y_columns", self.YT)):
            _require_sound(f"{self.name}/{name}.arrow", *pattern_fault(ones))
        if self.weights is not None and not (
            np.isfinite(self.weights).all() and (self.weights > 0.0).all()
        ):
            raise Corrupt(f"{WEIGHTS}: a weight is not above 0", file=WEIGHTS)


@dataclass(frozen=True)
class Dataset:
    """A published, immutable data set; `Dataset.open` maps it.

    content_hash: SHA-256 over the splits' hashes, the names of labels and features, and the
    text pipeline.
    manifest: content of `manifest.json`; `manifest["source"]` describes the origin of the rows.
    label_names: (K,) names; `label_names[i]` is the i-th.
    """

    path: Path
    name: str
    n_features: int
    n_labels: int
    content_hash: str
    manifest: dict[str, Any] = field(repr=False)
    splits: Mapping[str, Split] = field(repr=False)
    label_names: Names = field(repr=False)

    @classmethod
    def open(cls, path: Path | str, verify: bool | VerifiedFiles = False) -> Dataset:
        """Map the data set at `path`.

        verify: first compare every file with its SHA-256, and check that kernels can read the
        matrices. VerifiedFiles remembers the files, and repeats neither while they do not change.
        Raises NotFound if there is no data set, Corrupt if files are missing, truncated or,
        with `verify`, changed.
        """
        require_type("path", path, (str, Path), "the path of a data set directory")
        path = Path(path)
        manifest = _read_manifest(path)
        files = manifest["files"]
        for name, expected in files.items():
            _check_file(path, name, expected)
        was_read = bool(verify)
        if isinstance(verify, VerifiedFiles):
            was_read = verify.verify(path, files)
        elif verify:
            verify_files(path, files)
        opened = cls(
            path=path,
            name=manifest["name"],
            n_features=manifest["n_features"],
            n_labels=manifest["n_labels"],
            content_hash=manifest["content_hash"],
            manifest=manifest,
            splits={
                part: _open_split(path, part, manifest)
                for part in PARTS
                if part in manifest["splits"]
            },
            label_names=Names(
                _check_length(read_names(path / LABELS), manifest["n_labels"], LABELS)
            ),
        )
        if was_read:
            for split in opened.splits.values():
                split.check()
        return opened

    def __getitem__(self, part: str) -> Split:
        """Return the split called `part`. Raises NotFound with the existing parts."""
        if part not in self.splits:
            raise NotFound(
                f"data set {self.name} has no part {part!r}; it has {', '.join(self.splits)}"
            )
        return self.splits[part]

    @property
    def train(self) -> Split:
        """The training part."""
        return self["train"]

    @property
    def test(self) -> Split | None:
        """The held-out part, or None."""
        return self.splits.get("test")

    def require_labels(self) -> None:
        """Raise InputError unless a training row has a label."""
        if not self.train.Y.nnz:
            raise InputError(
                "the training part has no row with a label; check the label column of the source",
                code="NO_POSITIVES",
            )

    @property
    def reading(self) -> dict[str, Any]:
        """How other files of the same kind are read: JSON, kept in models of the data.

        first_index of svmlight, 0 or 1; text_fields, value_fields, label_field, label_separator
        and delimiter, unless they are the defaults.
        """
        return reading_of(self.manifest)

    @property
    def text_fields(self) -> tuple[str, ...]:
        """Fields of the rows that form the text."""
        return tuple(self.reading.get("text_fields", ("text",)))

    @property
    def files(self) -> dict[str, Any]:
        """Sizes and checksums of the files in the directory, by name."""
        return dict(self.manifest["files"])

    @cached_property
    def label_counts(self) -> Any:
        """Number of training rows per label: (K,) int64."""
        return read_table(self.path / LABELS).column("train_rows").to_numpy()

    @cached_property
    def feature_names(self) -> Names:
        """Names of the features (D,): those stored, or "0", "1", ..."""
        if (self.path / FEATURES).exists():
            stored = read_names(self.path / FEATURES)
            return Names(_check_length(stored, self.n_features, FEATURES))
        return Names(default_names(self.n_features))

    @cached_property
    def text(self) -> TextPipeline | None:
        """The pipeline that made X from text, or None. Raises Corrupt if its files are invalid."""
        return TextPipeline.load(self.path / TEXT) if (self.path / TEXT).is_dir() else None


def open_verified(path: Path | str) -> Dataset:
    """Map the data set at `path` after comparing its files with their SHA-256.

    The checksums are remembered in `verified.json` of the home (XCRAY_HOME, else ~/.xcray), so
    files that do not change are hashed once. Raises as `Dataset.open`.
    """
    return Dataset.open(path, VerifiedFiles(default_home() / VERIFIED_FILE))


def reading_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return `Dataset.reading` of the manifest of a data set or model."""
    if "reading" in manifest:
        return dict(manifest["reading"])
    source = manifest.get("source") or {}
    options = source.get("options", {})
    reading = {name: options[name] for name in READING if name in options}
    if source.get("format") == "svmlight":
        reading["first_index"] = 0 if options.get("zero_based") else 1
    return reading


def _require_sound(file: str, code: int, row: int) -> None:
    """Raise Corrupt for a fault of a matrix."""
    if code:
        raise Corrupt(f"{file}, row {row}: {FAULTS[code]}; build the data set again", file=file)


def default_names(n: int) -> pa.LargeStringArray:
    """Return the names "0" to "n-1"."""
    return pa.array(range(n), pa.int64()).cast(pa.large_string())


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the checked manifest of a directory. Raises NotFound, and as `check_manifest`."""
    if path.is_file():
        raise NotFound(
            f"{path.name} is a file, not a data set: `xcray data build FORMAT {path.name} DIR` "
            "makes one"
        )
    if not path.is_dir():
        raise NotFound(
            f"there is no data set {path.name}"
            f"{similar_directory(path, MANIFEST) or '; build one with `xcray data build`'}"
        )
    if not (path / MANIFEST).exists():
        raise NotFound(f"{path.name} is not a data set: it has no {MANIFEST}")
    return check_manifest(read_json(path / MANIFEST), path.name)


def check_manifest(manifest: Any, name: str) -> dict[str, Any]:
    """Return the manifest of the data set `name`.

    Raises InputError for a model, and Corrupt for another schema version or missing keys.
    """
    if isinstance(manifest, dict) and "solver" in manifest:
        raise InputError(
            f"{name} is a model, not a data set: give the data set it was trained on",
            code="NOT_A_DATASET",
        )
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != SCHEMA_VERSION:
        raise Corrupt(
            f"{name} has schema version {version}, "
            f"this xcray reads {SCHEMA_VERSION}; build the data set again"
        )
    required = {"name", "n_features", "n_labels", "content_hash", "splits", "files"}
    if missing := required - manifest.keys():
        raise Corrupt(f"{name}: {MANIFEST} lacks {', '.join(sorted(missing))}")
    return dict(manifest)


def _check_file(path: Path, name: str, expected: Mapping[str, Any]) -> None:
    """Raise Corrupt unless a listed file is inside the directory and has its size.

    The check is cheap, so it runs on every opening.
    """
    if not is_file_entry(name, expected):
        raise Corrupt(f"{path.name}: {MANIFEST} lists a file outside the data set, or without size")
    if not (path / name).is_file():
        raise Corrupt(f"{path.name}: file {name} is missing", file=name)
    if (path / name).stat().st_size != expected["bytes"]:
        raise Corrupt(
            f"{path.name}: file {name} does not have the {expected['bytes']} bytes that "
            "were written",
            hint=lfs_hint(path / name),
            file=name,
        )


def _open_split(path: Path, part: str, manifest: dict[str, Any]) -> Split:
    """Map the four matrices of one part and compare their shapes with the manifest."""
    folder, sizes, files = path / part, manifest["splits"][part], manifest["files"]
    n, D, K = sizes["n_rows"], manifest["n_features"], manifest["n_labels"]
    weights, unseen = None, None
    if part == "train" and WEIGHTS in files:
        column = read_column(read_table(path / WEIGHTS), "weight", pa.float32(), WEIGHTS, n)
        weights = frozen(column.to_numpy(), np.float32)
    if part == "test" and UNSEEN in files:
        column = read_column(read_table(path / UNSEEN), "labels", pa.int64(), UNSEEN, n)
        unseen = frozen(column.to_numpy(), np.int64)
    split = Split(
        name=part,
        X=read_csr(folder / "x_rows.arrow"),
        XT=read_csr(folder / "x_columns.arrow"),
        Y=read_pattern(folder / "y_rows.arrow"),
        YT=read_pattern(folder / "y_columns.arrow"),
        content_hash=sizes["content_hash"],
        weights=weights,
        unseen=unseen,
    )
    if (split.X.shape, split.XT.shape, split.Y.shape, split.YT.shape) != (
        (n, D),
        (D, n),
        (n, K),
        (K, n),
    ):
        raise Corrupt(f"{path.name}: the matrices of {part} do not have the shapes in the manifest")
    return split


def _check_length(names: pa.LargeStringArray, n: int, file: str) -> pa.LargeStringArray:
    """Return `names`. Raises Corrupt unless there are `n`."""
    if len(names) != n:
        raise Corrupt(f"{file} has {len(names)} names, the manifest has {n}", file=file)
    return names
