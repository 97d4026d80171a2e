"""The model directory: a manifest, Arrow files, and a checksum of every byte.

It is published by one rename and never changed afterwards. The content hash leaves out duals.arrow
and timeline.arrow.

    manifest.json     description and checksums of all other files, sealed by its own checksum
    weights.arrow     K rows (labels) of feature indices and weights; not if services have them
    bias.arrow, labels.arrow, features.arrow    K intercepts, K and D names
    index/            the same weights by feature, for the search
    groups/           weights of label groups and their labels, if there are groups
    text/             text pipeline, if the input is text
    label_texts.arrow names and descriptions of labels, if the data set has them
    ranker/           orders candidates of search and names, if one was fitted
    label_table.arrow the solver's report per label, if there is one
    duals.arrow, timeline.arrow    dual variables by row; times per batch, if they were kept
    calibration.arrow from scores to probabilities, if the model is calibrated
    card.md           the model card
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float32, frozen
from xcray.data.dataset import LABEL_TEXTS
from xcray.data.label_texts import LabelTexts
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import Corrupt, NotFound
from xcray.index import packed
from xcray.index.label_groups import LabelGroups
from xcray.index.packed import BUFFER_BYTES
from xcray.index.search import SearchIndex
from xcray.index.staged import Stage
from xcray.kernels.canonical import FAULTS, first_fault
from xcray.model.calibration import CALIBRATION, Calibration
from xcray.model.card import render_card_file
from xcray.model.label_groups import read_groups
from xcray.model.manifest import (
    BIAS,
    LISTS,
    MANIFEST,
    WEIGHTS,
    groups_of,
    is_staged,
    ranges_of,
    read_manifest,
    row_norm_of,
    seal_manifest,
)
from xcray.model.ranker import RANKER, Ranker
from xcray.model.stages import not_finite, read_stages, write_stages
from xcray.storage.arrow import CSR_TYPES, read_column, read_csr, read_table, write_table
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    file_digests,
    publish_directory,
    verify_files,
    write_bytes,
)
from xcray.storage.git_lfs import lfs_hint
from xcray.storage.verified import VerifiedFiles

CARD = "card.md"
TIMELINE = "timeline.arrow"
DUALS = "duals.arrow"
STAGES = "stages"
THRESHOLDS = "label_thresholds.arrow"
NOT_FINITE = FAULTS.index("a value is not finite")


class LinearPart(NamedTuple):
    """The only stage of a linear model.

    W: (K, D) CSR by label; b: (K,) float32; search: exact top-k over both.
    """

    W: CSR
    b: Float32
    search: SearchIndex


class ModelParts(NamedTuple):
    """Content of a model directory except its manifest.

    linear: of a linear model, or None; stages: of a chain of stages, otherwise empty; names: K
    labels and D inputs; labels: K rows. calibration: from scores to probabilities, or None.
    label_texts, ranker, label_thresholds: see `Model`; None without them.
    """

    linear: LinearPart | None
    stages: tuple[Stage, ...]
    label_names: pa.LargeStringArray
    feature_names: pa.LargeStringArray
    text: TextPipeline | None
    label_table: pa.Table | None
    calibration: Calibration | None = None
    label_texts: LabelTexts | None = None
    ranker: Ranker | None = None
    label_thresholds: Float32 | None = None


class Staging:
    """A model directory under construction, published by one rename.

    Weights are written first, then the files derived from them, and the manifest last. No step
    holds all weights in memory: they are written to `weights` (by `write_matrix` or a
    `MatrixWriter`), mapped, and transposed within `budget` bytes. Use it as a context manager,
    which removes unpublished files.
    """

    def __init__(
        self,
        path: Path,
        budget: int = BUFFER_BYTES,
        on_step: Callable[[], None] = lambda: None,
        marker: Path | None = None,
    ) -> None:
        """Initialise. path: target directory.

        budget: bytes of memory for the transpose. on_step: callback of the long steps; an
        exception from it ends them. marker: file that records the staging directory, so
        that the next `Staging` of the same run removes the leftovers of a killed process.
        """
        self.target = Path(path)
        self._budget = budget
        self._on_step = on_step
        self._marker = marker
        self._index: SearchIndex | None = None

    def __enter__(self) -> Self:
        """Create the staging directory next to the target."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        if self._marker is not None and self._marker.is_file():
            leftover = Path(self._marker.read_text(encoding="utf-8"))
            # delete nothing else than staging directories, which have such names
            if leftover.name.startswith(".") and leftover.name.endswith(".part"):
                discard_directory(leftover)
        self.path = create_staging_directory(self.target)
        if self._marker is not None:
            self._marker.write_text(str(self.path.absolute()), encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what was not published."""
        discard_directory(self.path)
        if self._marker is not None:
            self._marker.unlink(missing_ok=True)

    @property
    def weights(self) -> Path:
        """Path of the weights by label: (K, D), float32."""
        return self.path / WEIGHTS

    @property
    def is_indexed(self) -> bool:
        """Whether all arrays are written."""
        return self._index is not None

    def index(
        self, b: Any, row_norm: str = "none", groups: LabelGroups | None = None
    ) -> SearchIndex:
        """Write the biases b (K,) and the packed lists, and return the search over them, mapped.

        row_norm, groups: as for `SearchIndex`; groups are written later. A second call returns the
        same index. Raises ParameterError if a weight or bias is not finite, Corrupt if a row is not
        canonical.
        """
        if self._index is None:
            W, b = read_csr(self.weights), frozen(b, np.float32)
            _check_results(W, b)
            self._on_step()
            write_table(self.path / BIAS, pa.table({"bias": pa.array(b)}))
            (self.path / LISTS).parent.mkdir()
            packed.write_lists(self.path / LISTS, W, b, self._budget, self._on_step)
            lists, order = packed.read_lists(self.path / LISTS, W)
            self._index = SearchIndex(lists, W, b, order, row_norm=row_norm, groups=groups)
        return self._index

    def add_stages(self, stages: Sequence[Stage]) -> list[dict[str, Any]]:
        """Write the stages of a chain; return their manifest entries."""
        (self.path / STAGES).mkdir()
        return write_stages(self.path / STAGES, stages)

    def publish(
        self, parts: ModelParts, manifest: Mapping[str, Any], timeline: pa.Table | None = None
    ) -> None:
        """Write the remaining files and rename the directory. Raises Conflict if the target exists.

        timeline: one row per batch of the training, which is not part of the content hash.
        """
        write_table(self.path / "labels.arrow", pa.table({"name": parts.label_names}))
        write_table(self.path / "features.arrow", pa.table({"name": parts.feature_names}))
        if parts.label_table is not None:
            write_table(self.path / "label_table.arrow", parts.label_table)
        if parts.text is not None:
            parts.text.save(self.path / "text")
        if timeline is not None:
            write_table(self.path / TIMELINE, timeline)
        if parts.label_texts is not None:
            parts.label_texts.save(self.path / LABEL_TEXTS)
        if parts.ranker is not None:
            parts.ranker.save(self.path / RANKER)
        if parts.calibration is not None:
            parts.calibration.save(self.path / CALIBRATION)
        write_bytes(self.path / CARD, render_card_file(manifest).encode())
        write_bytes(
            self.path / MANIFEST,
            seal_manifest({**manifest, "files": file_digests(self.path)}).encode(),
        )
        publish_directory(self.path, self.target)


def read_parts(
    path: Path, verify: bool | VerifiedFiles = True
) -> tuple[ModelParts, dict[str, Any]]:
    """Map a model directory, without copying. Returns its parts and its manifest.

    verify: compare every file with its SHA-256 and check the structure and finiteness of all
    weights (one pass over the model); with VerifiedFiles, files that did not change since their
    last verification are not hashed again. Without it, the seal of the manifest, file sizes, types
    and shapes are still checked: enough to read its report, and for a model that this process
    wrote, but search kernels read without bounds checks.
    Raises NotFound if there is no model, Corrupt with the name of a changed file.
    """
    path = Path(path)
    manifest = read_manifest(path)
    _check_sizes(path, manifest["files"])
    if not verify:
        return _map_files(path, manifest, verify=False), manifest
    check_files = verify.verify if isinstance(verify, VerifiedFiles) else verify_files
    with ThreadPoolExecutor(1) as threads:
        # files are hashed while their content is checked
        checksums = threads.submit(check_files, path, manifest["files"])
        try:
            return _map_checked(path, manifest), manifest
        finally:
            checksums.result()  # its error, which names the changed file, comes first


def _map_checked(path: Path, manifest: Mapping[str, Any]) -> ModelParts:
    """Map all files, and check the structure and finiteness of what they hold."""
    for name in manifest["files"]:
        if name.endswith(".arrow"):
            read_table(path / name, validate_data=True)
    parts = _map_files(path, manifest, verify=True)
    if parts.linear is not None:
        parts.linear.search.check(LISTS)
    return parts


def _check_results(W: CSR, b: Float32) -> None:
    """Raise ParameterError if results of a training are not finite, Corrupt if not canonical."""
    code, row = first_fault(W)
    if code == NOT_FINITE or not np.isfinite(b).all():
        label = row if code else int(np.argmin(np.isfinite(b)))
        raise not_finite(f"a weight of label {label}")
    if code:
        raise _not_canonical(WEIGHTS, code, row)


def check_numbers(matrix: CSR, b: Float32, name: str) -> None:
    """Raise Corrupt unless a matrix is canonical and all numbers are finite.

    The error gives the file and the row.
    """
    code, row = first_fault(matrix)
    if code:
        raise _not_canonical(name, code, row)
    if not np.isfinite(b).all():
        raise Corrupt(
            f"bias.arrow: label {int(np.argmin(np.isfinite(b)))} has a bias that is not finite",
            file="bias.arrow",
        )


def _not_canonical(name: str, code: int, row: int) -> Corrupt:
    """Return the error for a row of a matrix with a fault, see `FAULTS`."""
    return Corrupt(
        f"{name}, row {row}: {FAULTS[code]}; train the model again or restore its file", file=name
    )


def _check_sizes(path: Path, digests: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that all files exist with their sizes, which detects a truncated copy cheaply."""
    for name, expected in digests.items():
        try:
            size = (path / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            raise Corrupt(f"{path.name}: file {name} is missing", file=name) from None
        if size != expected["bytes"]:
            raise Corrupt(
                f"{path.name}: file {name} has {size} bytes, {expected['bytes']} were written",
                hint=lfs_hint(path / name),
                file=name,
            )


def _map_files(path: Path, manifest: Mapping[str, Any], verify: bool) -> ModelParts:
    """Map all files, and compare their types and shapes with the manifest."""
    n_labels, n_features = manifest["shape"]
    linear: LinearPart | None = None
    stages: tuple[Stage, ...] = ()
    if is_staged(manifest):
        try:
            stages = read_stages(path / STAGES, manifest["stages"], n_features, n_labels)
        except NotFound as error:
            raise Corrupt(f"{path.name}: {error.message}") from None
    elif not ranges_of(manifest):
        linear = _map_linear(path, manifest, verify)
    ranker, n_answers, files = None, n_labels, manifest["files"]
    if manifest.get("ranker"):
        ranker = Ranker.load(path / RANKER, (n_labels, n_features), verify)
        n_answers = len(ranker.labels.label_names)
    return ModelParts(
        linear=linear,
        stages=stages,
        label_names=_map_column(path, "labels.arrow", "name", pa.large_string(), n_labels),
        feature_names=_map_column(path, "features.arrow", "name", pa.large_string(), n_features),
        text=TextPipeline.load(path / "text", verify) if manifest["text"] else None,
        label_table=read_table(path / "label_table.arrow")
        if "label_table.arrow" in files
        else None,
        calibration=Calibration.load(path / CALIBRATION, n_labels)
        if CALIBRATION in files
        else None,
        label_texts=LabelTexts.load(path / LABEL_TEXTS) if LABEL_TEXTS in files else None,
        ranker=ranker,
        label_thresholds=_map_column(path, THRESHOLDS, "threshold", pa.float32(), n_answers)
        if THRESHOLDS in files
        else None,
    )


def _map_linear(path: Path, manifest: Mapping[str, Any], verify: bool) -> LinearPart:
    """Map the weights of a linear model, and compare their types and shapes with the manifest."""
    n_labels, n_features = manifest["shape"]
    W = _map_matrix(path, WEIGHTS, (n_labels, n_features), manifest["nnz"])
    b = _map_column(path, BIAS, "bias", pa.float32(), n_labels)
    if verify:
        check_numbers(W, b, WEIGHTS)
    return LinearPart(W, b, _load_search(path, manifest, W, b))


def _load_search(path: Path, manifest: Mapping[str, Any], W: CSR, b: Float32) -> SearchIndex:
    """Return the search over the mapped lists, or over new ones if they have another layout."""
    row_norm, entry, groups = row_norm_of(manifest), groups_of(manifest), None
    if entry is not None:
        try:
            groups = read_groups(path, entry, *W.shape)
        except NotFound as error:
            raise Corrupt(f"{path.name}: {error.message}") from None
    if not packed.is_current(path / LISTS):
        return SearchIndex.build(W, b, row_norm=row_norm, groups=groups)
    lists, order = packed.read_lists(path / LISTS, W)
    return SearchIndex(lists, W, b, order, row_norm=row_norm, groups=groups)


def _map_matrix(path: Path, name: str, shape: tuple[int, int], nnz: int) -> CSR:
    """Map a matrix of the given shape and number of entries. Raises Corrupt for other types."""
    schema = read_table(path / name).schema
    if {field.name: field.type for field in schema} != CSR_TYPES:
        raise Corrupt(
            f"{name} holds {schema.names} of other types than int32 indices and float32 values",
            file=name,
        )
    matrix = read_csr(path / name)
    if matrix.shape != shape or matrix.nnz != nnz or len(matrix.indices) != nnz:
        raise Corrupt(
            f"{name} is {matrix.shape} with {matrix.nnz} weights, "
            f"the manifest says {shape} with {nnz}",
            file=name,
        )
    return matrix


def _map_column(path: Path, name: str, column: str, kind: pa.DataType, length: int) -> Any:
    """Map a column of a table: float32 as a numpy array, strings as an Arrow array."""
    values = read_column(read_table(path / name), column, kind, name, length)
    return frozen(values.to_numpy(), np.float32) if kind == pa.float32() else values
