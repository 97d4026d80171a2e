"""Writing a model directory: sizes, content hash, index, manifest."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, csr
from xcray.data.label_texts import LabelTexts
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import ParameterError, ShapeMismatch, excerpt
from xcray.index.label_groups import LabelGroups
from xcray.index.search import SearchIndex
from xcray.index.staged import Stage, StagedScorer
from xcray.kernels.row_norm import ROW_NORMS
from xcray.model.calibration import CALIBRATION, Calibration
from xcray.model.directory import LinearPart, ModelParts, Staging
from xcray.model.label_groups import groups_hash, write_groups
from xcray.model.manifest import BIAS, LISTS, SCHEMA_VERSION, WEIGHTS
from xcray.model.model import Model
from xcray.model.ranker import Ranker
from xcray.model.stages import n_weights, stages_hash
from xcray.storage.arrow import write_matrix
from xcray.storage.atomic import sha256_arrays
from xcray.storage.names import Names

LINKS = ("identity", "softmax", "probability")
LIBRARIES = ("numpy", "scipy", "numba", "pyarrow", "ray")


@dataclass(frozen=True, eq=False)
class ModelContent:
    """What a model predicts with.

    W: (K, D) CSR, one row per label, in memory or mapped. It is never copied, and transposed
    within a memory budget. b: (K,) float32. stages: of a chain of stages, whose W and b are None.
    label_names, feature_names: K and D strings (Names, Arrow or a sequence). text: the pipeline
    that makes features from text. link: one of LINKS.
    calibration: curves from scores to probabilities, and how they were fitted (JSON). row_norm: one
    of ROW_NORMS, applied to the rows of every request. The curves, a link other than "identity" and
    a row_norm other than "none" are part of the content hash, because they change predictions.
    groups: of similar labels, or None.
    label_texts: names and descriptions of labels; ranker: orders candidates, and how it was fitted
    (JSON). Both are part of the content hash.
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
    groups: LabelGroups | None = None
    label_texts: LabelTexts | None = None
    ranker: tuple[Ranker, Mapping[str, Any]] | None = None


@dataclass(frozen=True, eq=False)
class TrainingRecord:
    """How a model came about. Only `solver`, `params` and `dataset_hash` are in the content hash.

    measures: fractions by name. report: more about the training such as timings (JSON).
    label_table: one row per label. timeline: one row per batch. provenance: edits of an earlier
    model that made this one, oldest first (JSON). missing: number of labels that a partial model
    lacks. reading: see `Dataset.reading`.
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
    reading: Mapping[str, Any] = field(default_factory=dict)

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
            **({"reading": _to_json(self.reading)} if self.reading else {}),
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
    Raises ShapeMismatch if sizes disagree, ParameterError if a weight is not finite, a value is
    not JSON or the link is unknown, Conflict if `path` exists.
    """
    text, calibration = content.text, content.calibration
    manifest = training.manifest_entries() | {
        "link": content.link,
        "text": {"fingerprint": text.fingerprint} if text is not None else None,
    }
    with contextlib.nullcontext(staged) if staged is not None else Staging(Path(path)) as staging:
        parts, entries = _build_parts(staging, content, training.label_table)
        settings = training.settings() | _hashed_link(content.link)
        settings |= _row_norm_entry(content.row_norm) | _vocabulary_hashes(content)
        digest = content_hash(parts, {**settings, "dataset_hash": training.dataset_hash})
        manifest |= {**entries, "sha256": digest}
        parts = parts._replace(label_texts=content.label_texts)
        if content.ranker is not None:
            parts = parts._replace(ranker=content.ranker[0])
            manifest["ranker"] = _to_json(content.ranker[1])
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
        groups = parts.linear.search.groups
        scores |= {} if groups is None else {"groups": groups_hash(groups)}
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
    fitted = manifest.get("label_thresholds")
    bare = manifest["sha256"] if fitted is None else fitted["model"]
    before = stage["calibration"] or {"model": bare, "measured": []}
    measures = {
        name: value
        for name, value in manifest["measures"].items()
        if name not in before["measured"]
    }
    new_measures = _to_json(report.get("measures", {}))
    entry = {name: value for name, value in _to_json(report).items() if name != "measures"}
    entry |= {"model": before["model"], "measured": sorted(new_measures), "file": CALIBRATION}
    sha256 = sha256_arrays({"model": before["model"], "calibration": curves.sha256})
    entries = {
        "stages": [{**stage, "calibration": entry}, *others],
        "measures": {**measures, **new_measures},
    }
    if fitted is not None:
        return {**entries, **_hashed_thresholds(sha256, fitted)}
    return {**entries, "sha256": sha256}


def threshold_entries(
    manifest: Mapping[str, Any], thresholds: Float32, report: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the manifest entries that change when a model gets these thresholds per label.

    Earlier ones are replaced. report: how they were fitted (JSON). The content hash covers the
    model without thresholds, and the thresholds.
    """
    before = manifest.get("label_thresholds", {}).get("model", manifest["sha256"])
    entry = {**_to_json(report), "sha256": sha256_arrays({"thresholds": thresholds})}
    return _hashed_thresholds(before, entry)


def _hashed_thresholds(model: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of thresholds that were added to a model of this content hash."""
    sha256 = sha256_arrays({"model": model, "label_thresholds": entry["sha256"]})
    return {"label_thresholds": {**entry, "model": model}, "sha256": sha256}


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


def _vocabulary_hashes(content: ModelContent) -> dict[str, str]:
    """Return what label texts and a ranker add to the content hash; nothing without them."""
    hashes = {}
    if content.label_texts is not None:
        hashes["label_texts"] = content.label_texts.sha256
    if content.ranker is not None:
        hashes["ranker"] = content.ranker[0].sha256
    return hashes


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
        index = _index_weights(staging, content)
        linear = LinearPart(index.W, index.b, index)
        stage: dict[str, Any] = {
            "features": "input",
            "weights": WEIGHTS,
            "bias": BIAS,
            "calibration": None,
        }
        stage |= _row_norm_entry(content.row_norm)
        if index.groups is not None:
            stage |= {"groups": write_groups(staging.path, index.groups)}
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


def _index_weights(staging: Staging, content: ModelContent) -> SearchIndex:
    """Return the search over the weights, which are written unless they are staged."""
    W = content.W
    if not staging.is_indexed and W is not None:
        # a view of some rows is written as a separate matrix
        lo, hi = int(W.indptr[0]), int(W.indptr[-1])
        write_matrix(staging.weights, csr(W.indptr - lo, W.indices[lo:hi], W.data[lo:hi], W.n_cols))
    return staging.index(content.b, content.row_norm, content.groups)


def _to_arrow_names(names: Any) -> pa.LargeStringArray:
    """Return strings as one Arrow array."""
    if isinstance(names, Names):
        return names.array
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
