"""A trained model: W, b, names of labels and features, text pipeline, and provenance."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, csr
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import NotFound, ParameterError, ShapeMismatch, excerpt, suggestion
from xcray.index.scorer import Scorer, SparseScorer
from xcray.index.search import SearchIndex
from xcray.index.staged import Stage, StagedScorer
from xcray.kernels.row_norm import ROW_NORMS
from xcray.kernels.sparse import transpose
from xcray.model.calibration import CALIBRATION, Calibration
from xcray.model.directory import (
    BIAS,
    LISTS,
    SCHEMA_VERSION,
    TIMELINE,
    WEIGHTS,
    LinearPart,
    ModelParts,
    Staging,
    read_parts,
)
from xcray.model.stages import n_weights, stages_hash
from xcray.storage.arrow import read_table, write_matrix
from xcray.storage.atomic import sha256_arrays
from xcray.storage.verified import VerifiedFiles

LINKS = ("identity", "softmax", "probability")
MAX_SEARCHED_LABELS = 100_000  # labels of a model that are searched for a similar name
LIBRARIES = ("numpy", "scipy", "numba", "pyarrow", "ray")


@dataclass(frozen=True, eq=False)
class Model:
    """A linear model, score = W x + b, or a chain of stages, with provenance.

    It is immutable and memory-mapped. linear: weights, biases and search of a linear model, or
    None; stages: of a chain, otherwise empty. label_names, feature_names: K and D strings; text:
    the pipeline that makes features from text, or None. labels: the solver's report, one row
    per label, or None; manifest: see `directory`; calibration: from scores to probabilities, or
    None.
    """

    path: Path
    linear: LinearPart | None
    stages: tuple[Stage, ...]
    label_names: pa.LargeStringArray
    feature_names: pa.LargeStringArray
    text: TextPipeline | None
    label_table: pa.Table | None
    manifest: dict[str, Any]
    calibration: Calibration | None = None

    @classmethod
    def open(cls, path: str | Path, verify: bool | VerifiedFiles = True) -> Model:
        """Map a model directory. Raises NotFound, Corrupt.

        verify: compare every file with its checksum and check the structure of all arrays (3 ms and
        0.3 ms of CPU per MB). VerifiedFiles remembers the checksums of files that do not change.
        False only for its report, or for a model that this process wrote: the search reads without
        bounds checks.
        """
        parts, manifest = read_parts(Path(path), verify)
        return cls(path=Path(path), manifest=manifest, **parts._asdict())

    @property
    def W(self) -> CSR:
        """Weights of a linear model: (K, D) CSR float32, one row per label.

        Raises ParameterError for a chain of stages, as `b` and `search`.
        """
        return self.require_linear().W

    @property
    def b(self) -> Float32:
        """Biases of a linear model: (K,) float32."""
        return self.require_linear().b

    @property
    def search(self) -> SearchIndex:
        """Exact top-k over the weights of a linear model."""
        return self.require_linear().search

    def scorer(self, threads: int = 1) -> Scorer:
        """Return the scorer. threads: cores per batch, where it can use several."""
        if self.linear is None:
            return StagedScorer(self.stages, self.n_features)
        return SparseScorer(self.linear.search, threads=threads)

    @property
    def n_labels(self) -> int:
        """K, the number of labels."""
        return int(self.manifest["shape"][0])

    @property
    def n_features(self) -> int:
        """D, the number of features of a row: the columns of W, or the inputs of the stages."""
        return int(self.manifest["shape"][1])

    @property
    def nnz(self) -> int:
        """Number of stored weights."""
        return int(self.manifest["nnz"])

    @property
    def labels(self) -> list[str]:
        """The names of all labels as Python strings."""
        return [str(name) for name in self.label_names.to_pylist()]

    @property
    def features(self) -> list[str]:
        """The names of all features as Python strings."""
        return [str(name) for name in self.feature_names.to_pylist()]

    @cached_property
    def postings(self) -> CSR:
        """The weights by feature, (D, K): the transpose of W, computed in memory on first use."""
        return transpose(self.W)

    @property
    def link(self) -> str:
        """Meaning of scores, one of LINKS.

        "identity": margins; "softmax": logarithms of probabilities that add up to one over
        all labels; "probability": these probabilities.
        """
        return str(self.manifest["link"])

    @property
    def row_norm(self) -> str:
        """Normalisation of the rows of every request: "none", or "l2" for unit length."""
        return "none" if self.linear is None else self.search.row_norm

    @property
    def sha256(self) -> str:
        """Content hash over weights, names, training settings and calibration.

        It does not depend on the time or place of training.
        """
        return str(self.manifest["sha256"])

    @property
    def measures(self) -> dict[str, float]:
        """Measures taken after training, as fractions; empty if there are none."""
        return dict(self.manifest["measures"])

    @property
    def provenance(self) -> list[dict[str, Any]]:
        """Edits of earlier models that made this one, oldest first; empty without edits."""
        return list(self.manifest.get("provenance", []))

    @property
    def calibration_report(self) -> dict[str, Any]:
        """How the calibration was fitted and measured; empty if there is none.

        See `xcray.training.edit.calibrate`.
        """
        return dict(self.manifest["stages"][0]["calibration"] or {})

    @property
    def timeline(self) -> pa.Table | None:
        """Worker and times per batch of the training, one row per batch, mapped.

        None if the training did not record it. See `xcray.training.report.timeline`.
        """
        return read_table(self.path / TIMELINE) if TIMELINE in self.manifest["files"] else None

    @property
    def n_bytes(self) -> int:
        """Bytes on disk, without the manifest."""
        return sum(int(entry["bytes"]) for entry in self.manifest["files"].values())

    def require_linear(self) -> LinearPart:
        """Return the weights. Raises ParameterError for a chain of stages."""
        if self.linear is None:
            raise ParameterError(
                f"{self.path.name} is a chain of {len(self.stages)} stages, without one matrix of "
                "weights by label: this needs a linear model",
                code="STAGED_MODEL",
            )
        return self.linear

    def label_name(self, label: int) -> str:
        """Return the name of label number `label`. Raises NotFound if there is no such number."""
        if not 0 <= label < self.n_labels:
            raise NotFound(
                f"there is no label number {label}: the model has labels 0 to {self.n_labels - 1}"
            )
        return str(self.label_names[int(label)].as_py())

    def label_id(self, label: int | str) -> int:
        """Return the number of a label given by number or by name. Raises NotFound."""
        if not isinstance(label, str):
            self.label_name(label)
            return int(label)
        number = int(pc.index(self.label_names, pa.scalar(label, pa.large_string())).as_py())
        if number < 0:
            raise NotFound(unknown_label(self, label))
        return number


def unknown_label(model: Model, name: str, kind: str = "label") -> str:
    """Return the message for a label name that a model does not have, with a similar name."""
    known = model.label_names.to_pylist() if model.n_labels <= MAX_SEARCHED_LABELS else ()
    examples = ", ".join(repr(excerpt(each, 40)) for each in model.label_names[:3].to_pylist())
    similar = suggestion(name, known) or f"; its labels have names like {examples}"
    return f"the model has no {kind} {excerpt(name)!r}{similar}"


@dataclass(frozen=True, eq=False)
class ModelContent:
    """What a model predicts with.

    W: (K, D) CSR, one row per label, in memory or mapped. It is never copied, and transposed
    within a memory budget. b: (K,) float32. stages: of a chain of stages, whose W and b are None.
    label_names, feature_names: K and D strings (Arrow or a sequence). text: the pipeline that makes
    features from text. link: one of LINKS.
    calibration: curves from scores to probabilities, and how they were fitted (JSON). row_norm: one
    of ROW_NORMS, applied to the rows of every request. The curves, a link other than "identity" and
    a row_norm other than "none" are part of the content hash, because they change predictions.
    """

    W: CSR | None
    b: Any
    label_names: Any
    feature_names: Any
    stages: Sequence[Stage] = ()
    text: TextPipeline | None = None
    link: str = "identity"
    calibration: tuple[Calibration, Mapping[str, Any]] | None = None
    row_norm: str = "none"


@dataclass(frozen=True, eq=False)
class TrainingRecord:
    """How a model came about. Only `solver`, `params` and `dataset_hash` are in the content hash.

    measures: fractions by name. report: more about the training such as timings (JSON).
    label_table: one row per label. timeline: one row per batch. provenance: edits of an earlier
    model that made this one, oldest first (JSON). missing: number of labels that a partial model
    lacks.
    """

    solver: str
    params: Mapping[str, Any]
    dataset_hash: str
    seed: int | None = None
    measures: Mapping[str, float] | None = None
    report: Mapping[str, Any] | None = None
    label_table: pa.Table | None = None
    timeline: pa.Table | None = None
    provenance: Sequence[Mapping[str, Any]] = ()
    missing: int = 0

    def settings(self) -> dict[str, Any]:
        """Return the solver and its parameters as JSON."""
        return {"solver": self.solver, "params": _to_json(self.params)}

    def manifest_entries(self) -> dict[str, Any]:
        """Return what a manifest says of the training."""
        return {
            "schema_version": SCHEMA_VERSION,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": dict(_versions()),
            **self.settings(),
            "dataset_hash": self.dataset_hash,
            "seed": _to_json(self.seed),
            "measures": _to_json(self.measures or {}),
            "report": _to_json(self.report or {}),
            **({"provenance": _to_json(list(self.provenance))} if self.provenance else {}),
            **({"partial": {"missing": int(self.missing)}} if self.missing else {}),
        }


def write_model(
    path: str | Path,
    content: ModelContent,
    training: TrainingRecord,
    *,
    staged: Staging | None = None,
) -> Model:
    """Publish a model directory at `path` by one rename, and open it.

    staged: an entered `Staging` of this path whose `index` was called. W and b are the arrays
    of that index and are not written again.
    Raises ShapeMismatch if sizes disagree, Corrupt if a weight is not finite, ParameterError if
    a value is not JSON or the link is unknown, Conflict if `path` exists.
    """
    text, calibration = content.text, content.calibration
    manifest = training.manifest_entries() | {
        "link": content.link,
        "text": {"fingerprint": text.fingerprint} if text is not None else None,
    }
    with contextlib.nullcontext(staged) if staged is not None else Staging(Path(path)) as staging:
        parts, entries = _build_parts(staging, content, training.label_table)
        settings = training.settings() | _hashed_link(content.link)
        settings |= _row_norm_entry(content.row_norm)
        digest = content_hash(parts, {**settings, "dataset_hash": training.dataset_hash})
        manifest |= {**entries, "sha256": digest}
        if calibration is not None:
            parts = parts._replace(calibration=calibration[0])
            manifest |= calibration_entries(manifest, *calibration)
        staging.publish(parts, manifest, training.timeline)
    return Model.open(path, verify=False)


def content_hash(parts: ModelParts, settings: Mapping[str, Any]) -> str:
    """Return SHA-256 over weights, bias, label names, text fingerprint and settings, in one pass.

    settings: solver, params, dataset_hash, and a link other than "identity". The hash of a
    calibrated model is the hash of this one and of the curves (`calibration_entries`).
    """
    names = parts.label_names
    scores: dict[str, Any] = {"stages": stages_hash(parts.stages)}
    if parts.linear is not None:
        W = parts.linear.W
        scores = {
            "indptr": W.indptr,
            "indices": W.indices,
            "data": W.data,
            "shape": np.array(W.shape, np.int64),
            "bias": parts.linear.b,
        }
    return sha256_arrays(
        {
            **scores,
            "label_bytes": _utf8_bytes(names),
            "label_lengths": pc.binary_length(names).to_numpy().astype(np.int64),
            "text": parts.text.fingerprint if parts.text is not None else "",
            "settings": json.dumps(dict(settings), sort_keys=True),
        }
    )


def calibration_entries(
    manifest: Mapping[str, Any], curves: Calibration, report: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the manifest entries that change when a model gets these curves.

    The entries are stages, measures and sha256; earlier curves are replaced. report: how the
    curves were fitted (JSON), with "measures" of them by name, which are added to the model's
    measures.
    """
    stage, *others = manifest["stages"]
    before = stage["calibration"] or {"model": manifest["sha256"], "measured": []}
    measures = {
        name: value
        for name, value in manifest["measures"].items()
        if name not in before["measured"]
    }
    new_measures = _to_json(report.get("measures", {}))
    entry = {name: value for name, value in _to_json(report).items() if name != "measures"}
    entry |= {"model": before["model"], "measured": sorted(new_measures), "file": CALIBRATION}
    sha256 = sha256_arrays({"model": before["model"], "calibration": curves.sha256})
    return {
        "stages": [{**stage, "calibration": entry}, *others],
        "measures": {**measures, **new_measures},
        "sha256": sha256,
    }


def _hashed_link(link: str) -> dict[str, str]:
    """Return the link's part of the content hash. Raises ParameterError for an unknown link.

    It is empty for "identity", so that models of earlier versions keep their hash.
    """
    if link not in LINKS:
        raise ParameterError(f"link is {excerpt(link)!r}: it must be one of {', '.join(LINKS)}")
    return {} if link == "identity" else {"link": link}


def _row_norm_entry(row_norm: str) -> dict[str, str]:
    """Return the entry of a stage and of the content hash. Raises ParameterError.

    It is empty for "none", so that models of earlier versions keep their hash.
    """
    if row_norm not in ROW_NORMS:
        raise ParameterError(
            f"row_norm is {excerpt(row_norm)!r}: it must be one of {', '.join(ROW_NORMS)}"
        )
    return {} if row_norm == "none" else {"row_norm": row_norm}


def _utf8_bytes(names: pa.LargeStringArray) -> NDArray[np.uint8]:
    """Return the bytes of all names, end to end; a view."""
    _, offsets, content = names.buffers()
    if not len(names) or content is None:
        return np.empty(0, np.uint8)
    ends = np.frombuffer(offsets, np.int64)[names.offset : names.offset + len(names) + 1]
    return np.frombuffer(content, np.uint8)[ends[0] : ends[-1]]


def _build_parts(
    staging: Staging, content: ModelContent, label_table: pa.Table | None
) -> tuple[ModelParts, dict[str, Any]]:
    """Return the parts of a model after checking their sizes, and their manifest entries.

    Arrays are written unless staged.
    """
    labels = _to_arrow_names(content.label_names)
    features = _to_arrow_names(content.feature_names)
    K, D = _check_sizes(content, len(labels), len(features), label_table)
    entries: dict[str, Any] = {"shape": [K, D]}
    linear = None
    if content.W is None:
        entries["stages"] = [
            {**entry, "calibration": None} for entry in staging.add_stages(content.stages)
        ]
        entries["nnz"] = sum(n_weights(stage) for stage in content.stages)
    else:
        index = _index_weights(staging, content.W, content.b, content.row_norm)
        linear = LinearPart(index.W, index.b, index)
        stage: dict[str, Any] = {
            "features": "input",
            "weights": WEIGHTS,
            "bias": BIAS,
            "calibration": None,
        }
        stage |= _row_norm_entry(content.row_norm)
        entries |= {"stages": [stage], "index": {"lists": LISTS}, "nnz": index.W.nnz}
    stages = tuple(content.stages)
    return ModelParts(linear, stages, labels, features, content.text, label_table), entries


def _check_sizes(
    content: ModelContent, n_labels: int, n_features: int, label_table: pa.Table | None
) -> tuple[int, int]:
    """Return K and D. Raises ShapeMismatch unless all sizes agree."""
    W, text = content.W, content.text
    sizes: dict[str, tuple[int, int]] = {}
    if W is None:
        K, D = n_labels, n_features
        StagedScorer(content.stages, D)  # checks the shapes of the stages
        sizes["outputs of the stages"] = (len(content.stages[0].b), K)
    else:
        K, D = W.shape
        sizes = {"biases": (np.size(content.b), K), "label names": (n_labels, K)}
        sizes["feature names"] = (n_features, D)
    if text is not None:
        sizes["terms of the text pipeline"] = (len(text.terms), D)
    if label_table is not None:
        sizes["rows of the label table"] = (label_table.num_rows, K)
    for what, (size, expected) in sizes.items():
        if size != expected:
            raise ShapeMismatch(
                f"the model has {K} labels x {D} features, but there are {size} {what}; "
                f"give {expected}"
            )
    return K, D


def _index_weights(staging: Staging, W: CSR, b: Any, row_norm: str) -> SearchIndex:
    """Return the search over the weights, which are written unless they are staged."""
    if not staging.is_indexed:
        # a view of some rows is written as a separate matrix
        lo, hi = int(W.indptr[0]), int(W.indptr[-1])
        write_matrix(staging.weights, csr(W.indptr - lo, W.indices[lo:hi], W.data[lo:hi], W.n_cols))
    return staging.index(b, row_norm)


def _to_arrow_names(names: Any) -> pa.LargeStringArray:
    """Return strings as one Arrow array."""
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    out = (
        names.cast(pa.large_string())
        if isinstance(names, pa.Array)
        else pa.array(list(names), pa.large_string())
    )
    if out.null_count:
        raise ShapeMismatch(
            f"{out.null_count} names are missing; give every label and feature a name"
        )
    return out


@cache
def _versions() -> dict[str, str]:
    """Return the versions of xcray, Python and the libraries that compute the numbers."""
    out = {"python": platform.python_version()}
    for name in ("xcray", *LIBRARIES):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"xcray": "unknown", **out}


def _to_json(value: Any) -> Any:
    """Return `value` as JSON-ready objects.

    Numpy numbers become Python numbers, tuples become lists, and numbers that JSON cannot hold
    become None.
    """
    if isinstance(value, Mapping):
        return {str(name): _to_json(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_to_json(entry) for entry in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value
