"""The model directory: one manifest, Arrow files beside it, a checksum for every byte. Published whole, never changed.

manifest.json     what it is; sealed by a checksum of its own text, and by the checksums of all other files
weights.arrow     K rows (labels) of feature indices and weights        bias.arrow      K intercepts
labels.arrow      K names                                               features.arrow  D names
index/            the same weights by feature, for the search           text/           pipeline, when text is the input
classes.arrow     the solver's report per label, when there is one      card.md         the model card
timeline.arrow    who solved which batch when, when the training kept it (not in the content hash)
calibration.arrow from scores to probabilities, when it was calibrated
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float32, frozen
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import Corrupt, NotFound, ParameterError
from xcray.index import packed
from xcray.index.packed import BUDGET
from xcray.index.search import SearchIndex
from xcray.kernels.canonical import FAULTS, first_fault
from xcray.model.calibration import CALIBRATION, Calibration
from xcray.model.card import card
from xcray.storage.arrow import read_csr, read_table, write_table
from xcray.storage.atomic import (
    discard_directory,
    file_digests,
    publish_directory,
    staging_directory,
    verify_files,
    write_bytes,
)

SCHEMA_VERSION = 2
FIRST_VERSION = 1  # models of which are read too: their index is made when they are opened
MANIFEST = "manifest.json"
CARD = "card.md"
WEIGHTS = "weights.arrow"
LISTS = "index/lists.arrow"
BIAS = "bias.arrow"
TIMELINE = "timeline.arrow"
TOLD: Final[dict[str, tuple[type, ...]]] = {  # what every manifest says beside its figures
    **dict.fromkeys(("created", "dataset_hash", "link", "sha256", "solver"), (str,)),
    **dict.fromkeys(("measures", "params", "report"), (dict,)),
    "text": (dict, type(None)),
}
LARGEST = 2**31 - 1  # labels and features are numbered by int32
MATRIX = {"indices": pa.large_list(pa.int32()), "values": pa.large_list(pa.float32())}


class Parts(NamedTuple):
    """What a model directory holds beside its manifest.

    W: (K, D) CSR by label; b: (K,) float32; search: exact top-k over both; names: K and D strings; classes: K rows.
    calibration: from scores to probabilities, when there is one.
    """

    W: CSR
    search: SearchIndex
    b: Float32
    label_names: pa.LargeStringArray
    feature_names: pa.LargeStringArray
    text: TextPipeline | None
    classes: pa.Table | None
    calibration: Calibration | None = None


class Staging:
    """A model directory on its way: the weights first, then what is made of them, last the manifest; published by one rename.

    No step holds the weights in memory: they are written to `weights` (by `files.write_matrix` or a `MatrixWriter`), mapped, and
    turned within `budget` bytes. A context manager: what was not published is removed.
    """

    def __init__(
        self,
        path: Path,
        budget: int = BUDGET,
        tick: Callable[[], None] = lambda: None,
        note: Path | None = None,
    ) -> None:
        """path: where the model will be. tick: called now and then by the long steps; what it raises ends them.

        note: a file that remembers the staging directory, so that the next one of the same run removes what a kill left.
        """
        self.target = Path(path)
        self._budget = budget
        self._tick = tick
        self._note = note
        self._made: SearchIndex | None = None

    def __enter__(self) -> Self:
        """Make the staging directory, beside the target."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        if self._note is not None and self._note.is_file():
            left = Path(self._note.read_text(encoding="utf-8"))
            if left.name.startswith(".") and left.name.endswith(
                ".part"
            ):  # as staging directories are called: nothing else goes
                discard_directory(left)
        self.path = staging_directory(self.target)
        if self._note is not None:
            self._note.write_text(str(self.path.absolute()), encoding="utf-8")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove what was not published."""
        discard_directory(self.path)
        if self._note is not None:
            self._note.unlink(missing_ok=True)

    @property
    def weights(self) -> Path:
        """Where the weights by label belong: (K, D), float32."""
        return self.path / WEIGHTS

    @property
    def indexed(self) -> bool:
        """Whether the arrays are all there."""
        return self._made is not None

    def index(self, b: Any) -> SearchIndex:
        """Write the biases b (K,) and the lists; the search over them, mapped. A second call gives what the first one did.

        Raises Corrupt when a weight or bias is not finite or out of place.
        """
        if self._made is None:
            W, b = read_csr(self.weights), frozen(b, np.float32)
            check_sound(W, b, WEIGHTS)
            self._tick()
            write_table(self.path / BIAS, pa.table({"bias": pa.array(b)}))
            (self.path / LISTS).parent.mkdir()
            packed.write(self.path / LISTS, W, b, self._budget, self._tick)
            lists, order = packed.read(self.path / LISTS, W.shape)
            self._made = SearchIndex(lists, W, b, order)
        return self._made

    def publish(
        self, parts: Parts, manifest: Mapping[str, Any], timeline: pa.Table | None = None
    ) -> None:
        """Write the rest and rename. Raises Conflict when the target exists.

        timeline: one row a batch of the training, kept beside the model; checksummed like every file, no part of its content.
        """
        write_table(self.path / "labels.arrow", pa.table({"name": parts.label_names}))
        write_table(self.path / "features.arrow", pa.table({"name": parts.feature_names}))
        if parts.classes is not None:
            write_table(self.path / "classes.arrow", parts.classes)
        if parts.text is not None:
            parts.text.save(self.path / "text")
        if timeline is not None:
            write_table(self.path / TIMELINE, timeline)
        if parts.calibration is not None:
            parts.calibration.save(self.path / CALIBRATION)
        write_bytes(self.path / CARD, card(manifest).encode())
        write_bytes(
            self.path / MANIFEST, sealed({**manifest, "files": file_digests(self.path)}).encode()
        )
        publish_directory(self.path, self.target)


def read_parts(path: Path, verify: bool = True) -> tuple[Parts, dict[str, Any]]:
    """Map a model directory: its parts and its manifest. Nothing is copied.

    verify: compare every file with its SHA-256 and check the structure and finiteness of all weights (one pass over the
    model). Without it the manifest's own seal, file sizes, types and shapes are still checked.
    Raises NotFound when there is no model, Corrupt naming the file when it is not what was written.
    """
    path = Path(path)
    manifest = read_manifest(path)
    _check_sizes(path, manifest["files"])
    if verify:
        verify_files(path, manifest["files"])
        for name in manifest["files"]:
            if name.endswith(".arrow"):
                read_table(path / name, whole=True)
    parts = _map_files(path, manifest, verify)
    if verify:
        parts.search.check(LISTS)
    return parts, manifest


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a model directory, its seal and schema version checked. Raises NotFound or Corrupt."""
    try:
        raw = (Path(path) / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"there is no model at {Path(path).name}: it has no {MANIFEST}") from None
    return manifest_of(raw)


def manifest_of(raw: bytes) -> dict[str, Any]:
    """The manifest that these bytes are, its seal and schema version checked. Raises Corrupt."""
    try:
        manifest = json.loads(raw)
        version, seal = manifest["schema_version"], manifest.pop("seal")
        if version not in (FIRST_VERSION, SCHEMA_VERSION) or not isinstance(version, int):
            raise Corrupt(
                f"{MANIFEST} has schema version {version}, this xcray reads {SCHEMA_VERSION}: use the xcray that wrote it",
                file=MANIFEST,
            )
        sound = sealed(manifest).encode() == raw
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(
            f"{MANIFEST} is not a model's manifest: {type(error).__name__}", file=MANIFEST
        ) from None
    if not sound:
        raise Corrupt(f"{MANIFEST} is not what was written (its seal differs)", file=MANIFEST)
    manifest["seal"] = seal
    _check_claims(manifest)
    return dict(manifest)


def check_sound(matrix: CSR, b: Float32, name: str) -> None:
    """Raise Corrupt, naming the file and the row, unless a matrix is canonical and all numbers are finite."""
    code, row = first_fault(matrix)
    if code:
        raise Corrupt(
            f"{name}, row {row}: {FAULTS[code]}; train the model again or restore its file",
            file=name,
        )
    if not np.isfinite(b).all():
        raise Corrupt(
            f"bias.arrow: label {int(np.argmin(np.isfinite(b)))} has a bias that is not finite",
            file="bias.arrow",
        )


def sealed(manifest: Mapping[str, Any]) -> str:
    """The manifest's only valid text: sorted, with a checksum over the rest. Any other byte is seen on reading."""
    seal = hashlib.sha256(_text(manifest).encode()).hexdigest()
    return _text({**manifest, "seal": seal})


def _text(value: Mapping[str, Any]) -> str:
    """JSON in one fixed form. Raises ParameterError on what JSON can't hold."""
    try:
        return (
            json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
        )
    except TypeError as error:
        raise ParameterError(
            f"a model's parameters, measures and report must be JSON: {error}"
        ) from None


def _check_claims(manifest: dict[str, Any]) -> None:
    """The manifest's figures, before anything is opened by them."""
    try:
        (n_labels, n_features), nnz = manifest["shape"], manifest["nnz"]
        sizes = [n_labels, n_features, nnz]
        wrong = [name for name, kinds in TOLD.items() if type(manifest[name]) not in kinds]
        needed = {WEIGHTS, BIAS, "labels.arrow", "features.arrow"} | (
            {LISTS} if manifest["schema_version"] > FIRST_VERSION else set()
        )
        files = needed <= set(manifest["files"])
        safe = all(_is_listed(name, entry) for name, entry in manifest["files"].items())
        numbers = (
            all(type(size) is int and size >= 0 for size in sizes)
            and max(n_labels, n_features) <= LARGEST
        )
        room = (
            manifest["files"]["weights.arrow"]["bytes"] >= 8 * nnz
            and manifest["files"]["bias.arrow"]["bytes"] >= 4 * n_labels
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{MANIFEST} lacks what a model needs: {error!r}", file=MANIFEST) from None
    if wrong:
        raise Corrupt(f"{MANIFEST}: '{wrong[0]}' is not what a model says there", file=MANIFEST)
    if not (files and safe and numbers and room and nnz <= n_labels * n_features):
        raise Corrupt(
            f"{MANIFEST} claims {n_labels} labels, {n_features} features, {nnz} weights; its files can't hold these"
        )


def _is_listed(name: str, entry: Any) -> bool:
    """Whether the manifest names a file below the directory, with its size and checksum."""
    parts = PurePosixPath(name).parts
    safe = (
        not PurePosixPath(name).is_absolute()
        and ".." not in parts
        and "\0" not in name
        and max(map(len, parts), default=256) < 256
    )
    return safe and type(entry["bytes"]) is int and type(entry["sha256"]) is str


def _check_sizes(path: Path, digests: Mapping[str, Mapping[str, Any]]) -> None:
    """Files exist with their sizes: cheap, and enough to see a copy that was cut short."""
    for name, expected in digests.items():
        try:
            found = (path / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            raise Corrupt(f"{path.name}: file {name} is missing", file=name) from None
        if found != expected["bytes"]:
            raise Corrupt(
                f"{path.name}: file {name} has {found} bytes, {expected['bytes']} were written",
                file=name,
            )


def _map_files(path: Path, manifest: Mapping[str, Any], verify: bool) -> Parts:
    """Views of all files, their types and shapes compared with the manifest."""
    n_labels, n_features = manifest["shape"]
    W = _matrix(path, WEIGHTS, (n_labels, n_features), manifest["nnz"])
    b = _column(path, BIAS, "bias", pa.float32(), n_labels)
    if verify:
        check_sound(W, b, WEIGHTS)
    return Parts(
        W=W,
        search=_search(path, manifest, W, b),
        b=b,
        label_names=_column(path, "labels.arrow", "name", pa.large_string(), n_labels),
        feature_names=_column(path, "features.arrow", "name", pa.large_string(), n_features),
        text=TextPipeline.load(path / "text", verify) if manifest["text"] else None,
        classes=read_table(path / "classes.arrow")
        if "classes.arrow" in manifest["files"]
        else None,
        calibration=Calibration.load(path / CALIBRATION, n_labels)
        if CALIBRATION in manifest["files"]
        else None,
    )


def _search(path: Path, manifest: Mapping[str, Any], W: CSR, b: Float32) -> SearchIndex:
    """The search over mapped lists, or, where these are missing or of another layout, over lists made now."""
    if LISTS not in manifest["files"] or not packed.is_current(path / LISTS):
        return SearchIndex.build(W, b)
    lists, order = packed.read(path / LISTS, W.shape)
    return SearchIndex(lists, W, b, order)


def _matrix(path: Path, name: str, shape: tuple[int, int], nnz: int) -> CSR:
    """A mapped matrix of the claimed types, shape and number of entries."""
    schema = read_table(path / name).schema
    if {field.name: field.type for field in schema} != MATRIX:
        raise Corrupt(
            f"{name} holds {schema.names} of other types than int32 indices and float32 values",
            file=name,
        )
    matrix = read_csr(path / name)
    if matrix.shape != shape or matrix.nnz != nnz or len(matrix.indices) != nnz:
        raise Corrupt(
            f"{name} is {matrix.shape} with {matrix.nnz} weights, the manifest says {shape} with {nnz}",
            file=name,
        )
    return matrix


def _column(path: Path, name: str, column: str, kind: pa.DataType, length: int) -> Any:
    """The only column of a table as a mapped array: float32 for numpy, strings for Arrow."""
    table = read_table(path / name)
    if (
        table.schema != pa.schema({column: kind})
        or table.num_rows != length
        or table.column(column).null_count
    ):
        raise Corrupt(f"{name} is not {length} values of {column!r} ({kind})", file=name)
    chunks = table.column(column)
    if chunks.num_chunks > 1:
        raise Corrupt(
            f"{name} holds {column!r} in {chunks.num_chunks} pieces where one was written",
            file=name,
        )
    values = (
        chunks.chunk(0) if length else pa.array([], kind)
    )  # the mapped pages themselves; combine_chunks would copy them
    return frozen(values.to_numpy(), np.float32) if kind == pa.float32() else values
