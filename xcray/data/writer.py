"""Writing a data set: raw files in a hidden directory, published by one rename.

Rows are never all in memory. Chunks are appended to raw files, which are mapped at the end. Only a
transpose (as large as one matrix) is made in memory before it is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float32, Pattern, csr, pattern
from xcray.data.dataset import (
    FEATURES,
    LABELS,
    MANIFEST,
    PARTS,
    SCHEMA_VERSION,
    TEXT,
    UNSEEN,
    Dataset,
    default_names,
)
from xcray.data.text.pipeline import TextPipeline
from xcray.data.weights import weighted_hash, write_weights
from xcray.errors import Conflict, ShapeMismatch
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.storage.arrow import write_matrix, write_table
from xcray.storage.atomic import (
    check_name,
    create_staging_directory,
    discard_directory,
    file_digests,
    publish_directory,
    sha256_arrays,
    write_json,
)

SPILL_DTYPES = {
    "x_counts": np.int64,
    "x_indices": np.int32,
    "x_data": np.float32,
    "y_counts": np.int64,
    "y_indices": np.int32,
}


def name_of(text: str) -> str:
    """Return a valid name of a data set, made from the name of a file or directory."""
    name = (
        re.sub(r"\.{2,}", ".", re.sub(r"[^a-z0-9._-]", "-", text.lower()))
        .strip("._-")[:64]
        .rstrip(".")
    )
    return name or "data"


class _Spill:
    """The raw files of one split: row lengths, indices and values, appended chunk by chunk."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.n_rows = 0

    def add(self, X: CSR, Y: Pattern) -> None:
        """Append the rows of one chunk."""
        arrays = {
            "x_counts": np.diff(X.indptr),
            "x_indices": X.indices[X.indptr[0] : X.indptr[-1]],
            "x_data": X.data[X.indptr[0] : X.indptr[-1]],
            "y_counts": np.diff(Y.indptr),
            "y_indices": Y.indices[Y.indptr[0] : Y.indptr[-1]],
        }
        for name, array in arrays.items():
            with open(self.folder / name, "ab") as out:
                out.write(np.ascontiguousarray(array, SPILL_DTYPES[name]).data)
        self.n_rows += X.n_rows

    def map_matrices(self, n_features: int, n_labels: int) -> tuple[CSR, Pattern]:
        """Return X and Y of the whole split over its mapped raw files."""
        X = csr(self._pointers("x_counts"), self._map("x_indices"), self._map("x_data"), n_features)
        return X, pattern(self._pointers("y_counts"), self._map("y_indices"), n_labels)

    def _map(self, name: str) -> Any:
        """Map one raw file as an array; an empty file cannot be mapped."""
        path = self.folder / name
        size = path.stat().st_size if path.exists() else 0
        return (
            np.asarray(np.memmap(path, SPILL_DTYPES[name], mode="r"))
            if size
            else np.empty(0, SPILL_DTYPES[name])
        )

    def _pointers(self, name: str) -> Any:
        """Return row pointers computed from row lengths."""
        pointers = np.zeros(self.n_rows + 1, np.int64)
        np.cumsum(self._map(name), out=pointers[1:])
        return pointers


class DatasetWriter:
    """Writer of one data set directory.

    Use it as a context manager, so that an error leaves no files behind.
    path: target directory; raises Conflict at once if it exists.
    name: name of the data set; raises ParameterError if it is not valid. n_features, n_labels:
    D and K if they are known; otherwise the largest `n_cols` of the chunks decides.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        name: str,
        n_features: int | None = None,
        n_labels: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.name = check_name(name, "data set name")
        if self.path.exists():
            raise Conflict(
                f"{self.path.name} exists already; choose another name or remove it first"
            )
        self._fixed_widths = (n_features, n_labels)
        self._widths = [0, 0]
        self.staged = create_staging_directory(self.path)
        self._spills: dict[str, _Spill] = {}
        self._open = True

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def n_rows(self, split: str) -> int:
        """Return the number of rows that `split` has so far."""
        return self._spills[split].n_rows if split in self._spills else 0

    def set_widths(self, n_features: int, n_labels: int) -> None:
        """Set D and K once they are known. Raises ShapeMismatch if rows so far are wider."""
        if n_features < self._widths[0] or n_labels < self._widths[1]:
            raise ShapeMismatch(
                f"rows have {self._widths[0]} features and {self._widths[1]} labels, "
                f"more than {n_features} and {n_labels}"
            )
        self._fixed_widths = (n_features, n_labels)

    def add(self, split: str, X: CSR, Y: Pattern) -> None:
        """Append rows to "train" or "test".

        X: (n x d), Y: (n x k), as `arrays.csr` and `arrays.pattern` describe them. Raises
        ShapeMismatch if X and Y have different numbers of rows, or columns beyond
        n_features or n_labels.
        """
        if split not in PARTS:
            raise ShapeMismatch(f"a data set has the parts {' and '.join(PARTS)}, not {split!r}")
        if X.n_rows != Y.n_rows:
            raise ShapeMismatch(
                f"X has {X.n_rows} rows, Y has {Y.n_rows}; give both for the same rows"
            )
        for axis, (what, width) in enumerate((("features", X.n_cols), ("labels", Y.n_cols))):
            limit = self._fixed_widths[axis]
            if limit is not None and width > limit:
                raise ShapeMismatch(
                    f"a chunk has {width} {what}, the data set was opened with {limit}; "
                    f"open it with n_{what}={width}"
                )
            self._widths[axis] = max(self._widths[axis], width)
        if split not in self._spills:
            self._spills[split] = _Spill(self.staged / "spill" / split)
        self._spills[split].add(X, Y)

    def finish(
        self,
        *,
        source: dict[str, Any],
        label_names: Sequence[str] | pa.LargeStringArray | None = None,
        feature_names: Sequence[str] | pa.LargeStringArray | None = None,
        text: TextPipeline | None = None,
        weights: Float32 | None = None,
        unseen: Any = None,
    ) -> Dataset:
        """Write both orientations, tables and manifest, publish by one rename, and open the result.

        source: JSON-ready origin of the rows; its "skipped" entry, if any, counts skipped
        lines.
        weights: of the training rows, as `weights.check_weights` returns them. unseen: of the test
        rows, see `Split`; not part of the content hash, because no training reads it.
        Raises ShapeMismatch if names do not fit or there is no training row, Conflict if
        the path was created meanwhile.
        """
        if not self.n_rows("train"):
            raise ShapeMismatch(
                f"data set {self.name} has no training rows; add some before finishing it"
            )
        D = self._width(0, feature_names, "feature")
        K = self._width(1, label_names, "label")
        splits, counts = {}, np.zeros(K, np.int64)
        for part in (p for p in PARTS if p in self._spills):
            splits[part], rows_of_label = self._write_split(part, D, K)
            counts = rows_of_label if part == "train" else counts
        discard_directory(self.staged / "spill")
        tables = self._write_tables(
            _to_arrow_names(label_names, K),
            counts,
            None if feature_names is None else _to_arrow_names(feature_names, D),
            text,
        )
        if weights is not None:
            write_weights(self.staged, weights)
        if unseen is not None and np.any(unseen):
            write_table(self.staged / UNSEEN, pa.table({"labels": pa.array(unseen, pa.int64())}))
        content = {part: sizes["content_hash"] for part, sizes in splits.items()} | tables
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "n_features": D,
            "n_labels": K,
            **_hash_entries(sha256_arrays(content), weights),
            "splits": splits,
            "skipped": int(source.get("skipped", 0)),
            "source": source,
            "files": file_digests(self.staged),
        }
        write_json(self.staged / MANIFEST, manifest)
        publish_directory(self.staged, self.path)
        self._open = False
        return Dataset.open(self.path)

    def discard(self) -> None:
        """Remove the staged files; no effect after `finish`."""
        if self._open:
            discard_directory(self.staged)
        self._open = False

    def _width(self, axis: int, names: Any, what: str) -> int:
        """Return D or K.

        It is the fixed width if there is one, else the number of names, else the widest
        chunk. Raises ShapeMismatch unless the names fit.
        """
        width = self._fixed_widths[axis]
        if width is None:
            width = self._widths[axis] if names is None else len(names)
        if width < self._widths[axis] or (names is not None and len(names) != width):
            expected = max(width, self._widths[axis])
            raise ShapeMismatch(
                f"there are {len(names)} {what} names for {expected} {what}s; "
                "give one name for each"
            )
        return width

    def _write_tables(
        self, labels: Any, counts: Any, features: Any, text: TextPipeline | None
    ) -> dict[str, str]:
        """Write names, training counts and the text pipeline, and return their hashes."""
        write_table(
            self.staged / LABELS, pa.table({"name": labels, "train_rows": pa.array(counts)})
        )
        if features is not None:
            write_table(self.staged / FEATURES, pa.table({"name": features}))
        if text is not None:
            text.save(self.staged / TEXT)
        return {
            "labels": _names_hash(labels),
            "features": "" if features is None else _names_hash(features),
            "text": "" if text is None else text.fingerprint,
        }

    def _write_split(self, part: str, D: int, K: int) -> tuple[dict[str, Any], Any]:
        """Write the four matrices of one part.

        Returns its manifest entry and the number of rows per label.
        """
        folder = self.staged / part
        folder.mkdir(exist_ok=True)  # it can have the texts already
        X, Y = self._spills[part].map_matrices(D, K)
        write_matrix(folder / "x_rows.arrow", X)
        write_matrix(folder / "x_columns.arrow", transpose(X))
        write_matrix(folder / "y_rows.arrow", Y)
        YT = transpose_pattern(Y)
        write_matrix(folder / "y_columns.arrow", YT)
        entry = {
            "n_rows": X.n_rows,
            "x_nnz": X.nnz,
            "y_nnz": Y.nnz,
            "content_hash": content_hash(X, Y),
        }
        return entry, np.diff(YT.indptr)


def content_hash(X: CSR, Y: Pattern) -> str:
    """Return SHA-256 over the arrays and widths of X and Y: the identity of a split.

    Both start at indptr 0.
    """
    return sha256_arrays(
        {
            "shape": np.array([X.n_rows, X.n_cols, Y.n_cols], np.int64),
            "x_indptr": X.indptr,
            "x_indices": X.indices,
            "x_data": X.data,
            "y_indptr": Y.indptr,
            "y_indices": Y.indices,
        }
    )


def _hash_entries(content_hash: str, weights: Float32 | None) -> dict[str, str]:
    """Return the manifest's hashes.

    Weights are part of the content hash; the hash without them is stored as well.
    """
    if weights is None:
        return {"content_hash": content_hash}
    return {"unweighted_hash": content_hash, "content_hash": weighted_hash(content_hash, weights)}


def _to_arrow_names(
    names: Sequence[str] | pa.LargeStringArray | None, n: int
) -> pa.LargeStringArray:
    """Return names as an Arrow array; numbers if `names` is None."""
    if names is None:
        return default_names(n)
    return names if isinstance(names, pa.Array) else pa.array(names, pa.large_string())


def _names_hash(names: pa.LargeStringArray) -> str:
    """Return SHA-256 over names and their lengths."""
    words = [name.encode() for name in names.to_pylist()]
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    return sha256_arrays({"lengths": lengths, "bytes": np.frombuffer(b"".join(words), np.uint8)})
