"""Contract of feature pipelines, and how fitted ones are stored: one JSON and one Arrow file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float32
from xcray.errors import Corrupt, ShapeMismatch
from xcray.storage.arrow import list_row, read_float_row, write_table
from xcray.storage.atomic import read_json, sha256_arrays, write_json

Rows: TypeAlias = CSR | Float32  # (n, width): sparse or a dense float32 array
SETTINGS_FILE: Final = "pipeline.json"
ARRAYS_FILE: Final = "pipeline.arrow"
# kind -> module:class; modules are imported on first use
KINDS: Final[Mapping[str, str]] = {
    "pca": "xcray.features.pca:PCA",
    "random-fourier": "xcray.features.fourier:RandomFourier",
    "random-logits": "xcray.features.random_maps:RandomLogits",
    "random-cubics": "xcray.features.random_maps:RandomCubics",
    "image-masks": "xcray.features.image_masks:ImageMasks",
    "columns": "xcray.features.columns:Columns",
    "chain": "xcray.features.chain:Chain",
}
# from this share of non-zero entries, sparse rows are made dense before a product
MIN_DENSE_SHARE: Final = 0.05
CHUNK_CELLS: Final = 1 << 20  # entries of rows that are made dense at a time: 4 MB


class FeaturePipeline(Protocol):
    """A fitted map from rows of inputs to rows of features.

    n_inputs: columns of its input; n_outputs: of its output; fingerprint: SHA-256 of everything
    that the output depends on.
    """

    @property
    def n_inputs(self) -> int:
        """Return the number of columns of the input."""

    @property
    def n_outputs(self) -> int:
        """Return the number of columns of the output."""

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the kind, the settings and the arrays, in hexadecimal."""

    def transform(self, rows: Rows) -> Rows:
        """Return the features (n, n_outputs) of rows (n, n_inputs).

        Raises ShapeMismatch for rows of another width.
        """

    def save(self, folder: Path) -> None:
        """Write the pipeline into an existing folder."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a pipeline. Raises NotFound, or Corrupt for invalid files."""


class StoredPipeline(ABC):
    """Base of pipelines that consist of settings (JSON) and arrays (float32).

    A subclass declares `kind` and implements `fields` and `from_fields`.
    """

    kind: ClassVar[str]

    @abstractmethod
    def fields(self) -> tuple[dict[str, Any], dict[str, Float32]]:
        """Return the settings, JSON-ready, and the arrays by name."""

    @classmethod
    @abstractmethod
    def from_fields(cls, settings: Mapping[str, Any], arrays: Mapping[str, Float32]) -> Self:
        """Return the pipeline with these fields.

        Raises KeyError, TypeError, ValueError or ShapeMismatch for invalid ones.
        """

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the kind, the settings and the arrays, in hexadecimal."""
        settings, arrays = self.fields()
        text = repr((self.kind, sorted(settings.items()))).encode()
        return sha256_arrays({"settings": np.frombuffer(text, np.uint8), **arrays})

    def save(self, folder: Path) -> None:
        """Write `pipeline.json` and `pipeline.arrow` into an existing folder."""
        settings, arrays = self.fields()
        columns = {name: pa.array(array.ravel()) for name, array in arrays.items()}
        write_table(folder / ARRAYS_FILE, list_row(columns))
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        document = {"kind": self.kind, "settings": settings, "shapes": shapes}
        write_json(folder / SETTINGS_FILE, document | {"fingerprint": self.fingerprint})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a pipeline of this kind.

        Raises NotFound for a missing file, and Corrupt for files that are not a valid pipeline or
        do not have the stored fingerprint.
        """
        document = read_document(folder)
        try:
            if document["kind"] != cls.kind:
                raise ValueError(f"kind is {document['kind']!r}, not {cls.kind!r}")
            arrays = read_float_row(folder / ARRAYS_FILE, document["shapes"], folder.name)
            pipeline = cls.from_fields(document["settings"], arrays)
            if pipeline.fingerprint != document["fingerprint"]:
                raise ValueError("the content does not have the stored fingerprint")
        except (KeyError, TypeError, ValueError, ShapeMismatch) as error:
            raise Corrupt(f"{folder.name} is not a valid feature pipeline: {error}") from None
        return pipeline


def read_document(folder: Path) -> dict[str, Any]:
    """Return the JSON document of a stored pipeline. Raises NotFound or Corrupt."""
    document = read_json(folder / SETTINGS_FILE)
    if not isinstance(document, dict):
        raise Corrupt(f"{SETTINGS_FILE} in {folder.name} is not a JSON object")
    return document


def load_pipeline(folder: Path) -> FeaturePipeline:
    """Read a pipeline of any kind. Raises NotFound, or Corrupt for invalid files."""
    kind = str(read_document(folder).get("kind"))
    if kind not in KINDS:
        raise Corrupt(f"{folder.name} has features of unknown kind {kind[:80]!r}")
    module, _, name = KINDS[kind].partition(":")
    pipeline: FeaturePipeline = getattr(import_module(module), name).load(folder)
    return pipeline


def check_width(rows: Rows, n_inputs: int) -> None:
    """Raise ShapeMismatch if the rows do not have `n_inputs` columns."""
    if len(rows.shape) != 2 or rows.shape[1] != n_inputs:
        raise ShapeMismatch(f"rows of shape {rows.shape} for features of {n_inputs} inputs")


def project(rows: Rows, matrix: Float32) -> Float32:
    """Return rows (n, d) times matrix (d, m): a new float32 array (n, m).

    Sparse rows with few zeros are made dense, a chunk at a time.
    """
    out = np.empty((rows.shape[0], matrix.shape[1]), np.float32)
    if not isinstance(rows, CSR):
        np.matmul(np.asarray(rows, np.float32), matrix, out=out)
        return out
    X = rows.to_scipy()
    if rows.nnz < MIN_DENSE_SHARE * rows.n_rows * rows.n_cols:
        out[:] = X @ matrix
        return out
    size = max(1, CHUNK_CELLS // max(rows.n_cols, 1))
    for lo in range(0, rows.n_rows, size):
        np.matmul(X[lo : lo + size].toarray(), matrix, out=out[lo : lo + size])
    return out
