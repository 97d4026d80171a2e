"""A trained model: W, b, the names of labels and features, the text pipeline, and where it all came from."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, csr
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import NotFound, ParameterError, ShapeMismatch, excerpt
from xcray.index.search import SearchIndex
from xcray.kernels.sparse import transpose
from xcray.model.calibration import CALIBRATION, Calibration
from xcray.model.directory import (
    BIAS,
    LISTS,
    SCHEMA_VERSION,
    TIMELINE,
    WEIGHTS,
    Parts,
    Staging,
    read_parts,
)
from xcray.storage.arrow import read_table, write_matrix
from xcray.storage.atomic import sha256_arrays

LINKS = ("identity", "softmax")
LIBRARIES = ("numpy", "scipy", "numba", "pyarrow", "ray")


@dataclass(frozen=True, eq=False)
class Model:
    """score = W x + b, with everything needed to ask it and to know where it came from. Immutable, memory-mapped.

    W: (K, D) CSR float32, one row per label; b: (K,) float32; search: exact top-k over both.
    label_names, feature_names: K and D strings; text: the pipeline that makes features of text, or None.
    classes: the solver's report, one row per label, or None; manifest: see `directory`; calibration: from scores to
    probabilities, or None.
    """

    path: Path
    W: CSR
    search: SearchIndex
    b: Float32
    label_names: pa.LargeStringArray
    feature_names: pa.LargeStringArray
    text: TextPipeline | None
    classes: pa.Table | None
    manifest: dict[str, Any]
    calibration: Calibration | None = None

    @classmethod
    def open(cls, path: str | Path, verify: bool = True) -> Model:
        """Map a model directory. verify=True compares every file with its checksum. Raises NotFound, Corrupt."""
        parts, manifest = read_parts(Path(path), verify)
        return cls(path=Path(path), manifest=manifest, **parts._asdict())

    @property
    def n_labels(self) -> int:
        """K, the number of labels."""
        return self.W.n_rows

    @property
    def n_features(self) -> int:
        """D, the number of features."""
        return int(self.W.n_cols)

    @property
    def nnz(self) -> int:
        """Number of stored weights."""
        return self.W.nnz

    @cached_property
    def postings(self) -> CSR:
        """The weights by feature, (D, K): W turned, in memory, when first asked for."""
        return transpose(self.W)

    @property
    def link(self) -> str:
        """What scores are, one of LINKS: margins, or logarithms of probabilities that add up to one over all labels (softmax)."""
        return str(self.manifest["link"])

    @property
    def sha256(self) -> str:
        """Content hash: the same for the same weights, names, training settings and calibration, whenever and wherever trained."""
        return str(self.manifest["sha256"])

    @property
    def measures(self) -> dict[str, float]:
        """Measures taken after training, as fractions; empty when none were."""
        return dict(self.manifest["measures"])

    @property
    def provenance(self) -> list[dict[str, Any]]:
        """What was done to earlier models to make this one, oldest first; empty for a model that was trained at once."""
        return list(self.manifest.get("provenance", []))

    @property
    def calibrated(self) -> dict[str, Any]:
        """How the calibration was fitted and what it is worth (see `xcray.training.calibration.apply`); empty when there is none."""
        return dict(self.manifest["stages"][0]["calibration"] or {})

    @property
    def timeline(self) -> pa.Table | None:
        """Who solved which batch when, one row a batch, mapped (see `xcray.training.report.timeline`); None when it was not kept."""
        return read_table(self.path / TIMELINE) if TIMELINE in self.manifest["files"] else None

    @property
    def n_bytes(self) -> int:
        """Bytes on disk, the manifest aside."""
        return sum(int(entry["bytes"]) for entry in self.manifest["files"].values())

    def label_name(self, label: int) -> str:
        """The name of label number `label`. Raises NotFound when there is no such number."""
        if not 0 <= label < self.n_labels:
            raise NotFound(
                f"there is no label number {label}: the model has labels 0 to {self.n_labels - 1}"
            )
        return str(self.label_names[int(label)].as_py())

    def label_id(self, label: int | str) -> int:
        """The number of a label given by number or by name. Raises NotFound when there is no such label."""
        if not isinstance(label, str):
            self.label_name(label)
            return int(label)
        found = int(pc.index(self.label_names, pa.scalar(label, pa.large_string())).as_py())
        if found < 0:
            raise NotFound(
                f"the model has no label {excerpt(label)!r}; the names are in model.label_names"
            )
        return found


def write_model(
    path: str | Path,
    *,
    W: CSR,
    b: Any,
    label_names: Any,
    feature_names: Any,
    solver: str,
    params: Mapping[str, Any],
    dataset_hash: str,
    seed: int | None = None,
    text: TextPipeline | None = None,
    measures: Mapping[str, float] | None = None,
    report: Mapping[str, Any] | None = None,
    classes: pa.Table | None = None,
    timeline: pa.Table | None = None,
    provenance: Sequence[Mapping[str, Any]] = (),
    missing: int = 0,
    staged: Staging | None = None,
    link: str = "identity",
    calibration: tuple[Calibration, Mapping[str, Any]] | None = None,
) -> Model:
    """Publish a model directory at `path` by one rename, and open it.

    W: (K, D) CSR, one row per label, in memory or mapped: it is never copied, and turned within a budget of memory. b: (K,)
    float32; label_names, feature_names: K and D strings (Arrow or a sequence). solver, params, seed, dataset_hash: where it came
    from; measures: fractions by name; report: what the training wants to keep (timings and the like, JSON); classes: one row per
    label; timeline: one row per batch; provenance: what was done to an earlier model to make this one, oldest first (JSON);
    missing: labels of a partial model that were not trained; link: one of LINKS; calibration: from scores to probabilities, and how
    it was fitted (JSON). Its curves and a link other than "identity" enter the content hash, because they change answers; timings,
    measures and provenance do not. staged: an entered `Staging` of this path that has been asked for its `index`; W and b are
    what that gave, and are not written again. Raises ShapeMismatch when sizes disagree, Corrupt when a weight is not finite,
    ParameterError when something is not JSON or the link unknown, Conflict when `path` exists.
    """
    settings = {"solver": solver, "params": _plain(params)}
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
        **settings,
        "dataset_hash": dataset_hash,
        "seed": _plain(seed),
        "measures": _plain(measures or {}),
        "report": _plain(report or {}),
        "link": link,
        "stages": [{"features": "input", "weights": WEIGHTS, "bias": BIAS, "calibration": None}],
        "index": {"lists": LISTS},
        "text": {"fingerprint": text.fingerprint} if text is not None else None,
        **({"provenance": _plain(list(provenance))} if provenance else {}),
        **({"partial": {"missing": int(missing)}} if missing else {}),
    }
    with contextlib.nullcontext(staged) if staged is not None else Staging(Path(path)) as staging:
        parts = _parts(staging, W, b, label_names, feature_names, text, classes)
        content = content_hash(parts, {**settings, **_hashed(link), "dataset_hash": dataset_hash})
        manifest |= {"shape": list(parts.W.shape), "nnz": parts.W.nnz, "sha256": content}
        if calibration is not None:
            parts = parts._replace(calibration=calibration[0])
            manifest |= calibrated(manifest, *calibration)
        staging.publish(parts, manifest, timeline)
    return Model.open(path, verify=False)


def content_hash(parts: Parts, settings: Mapping[str, Any]) -> str:
    """SHA-256 over weights, bias, label names, text fingerprint and settings (solver, params, dataset_hash, a link); in one pass.

    Of a calibrated model, the hash of this and of the curves (`calibrated`).
    """
    names = parts.label_names
    return sha256_arrays(
        {
            "indptr": parts.W.indptr,
            "indices": parts.W.indices,
            "data": parts.W.data,
            "shape": np.array(parts.W.shape, np.int64),
            "bias": parts.b,
            "label_bytes": _utf8(names),
            "label_lengths": pc.binary_length(names).to_numpy().astype(np.int64),
            "text": parts.text.fingerprint if parts.text is not None else "",
            "settings": json.dumps(dict(settings), sort_keys=True),
        }
    )


def calibrated(
    manifest: Mapping[str, Any], curves: Calibration, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """What a manifest says otherwise once its model has these curves, whatever curves it had: stages, measures and sha256.

    facts: how the curves were fitted (JSON), with "measures" of them by name, which join the model's.
    """
    stage, *others = manifest["stages"]
    before = stage["calibration"] or {"model": manifest["sha256"], "measured": []}
    measures = {
        name: value
        for name, value in manifest["measures"].items()
        if name not in before["measured"]
    }
    own = _plain(facts.get("measures", {}))
    told = {name: value for name, value in _plain(facts).items() if name != "measures"}
    told |= {"model": before["model"], "measured": sorted(own), "file": CALIBRATION}
    sha256 = sha256_arrays({"model": before["model"], "calibration": curves.sha256})
    return {
        "stages": [{**stage, "calibration": told}, *others],
        "measures": {**measures, **own},
        "sha256": sha256,
    }


def _hashed(link: str) -> dict[str, str]:
    """What the content hash has of a link: nothing of "identity", so that models of before keep theirs. Raises ParameterError."""
    if link not in LINKS:
        raise ParameterError(f"link is {excerpt(link)!r}: it must be one of {', '.join(LINKS)}")
    return {} if link == "identity" else {"link": link}


def _utf8(names: pa.LargeStringArray) -> NDArray[np.uint8]:
    """The bytes of all names, end to end; a view."""
    _, offsets, content = names.buffers()
    if not len(names) or content is None:
        return np.empty(0, np.uint8)
    ends = np.frombuffer(offsets, np.int64)[names.offset : names.offset + len(names) + 1]
    return np.frombuffer(content, np.uint8)[ends[0] : ends[-1]]


def _parts(
    staging: Staging,
    W: CSR,
    b: Any,
    label_names: Any,
    feature_names: Any,
    text: TextPipeline | None,
    classes: pa.Table | None,
) -> Parts:
    """The parts of a model, checked against each other; arrays that are not staged yet are written."""
    labels, features = _names(label_names), _names(feature_names)
    sizes = {
        "biases": (np.size(b), W.n_rows),
        "label names": (len(labels), W.n_rows),
        "feature names": (len(features), W.n_cols),
    }
    if text is not None:
        sizes["terms of the text pipeline"] = (len(text.terms), W.n_cols)
    if classes is not None:
        sizes["rows of the class report"] = (classes.num_rows, W.n_rows)
    for what, (found, expected) in sizes.items():
        if found != expected:
            raise ShapeMismatch(
                f"W is {W.n_rows} labels x {W.n_cols} features, but there are {found} {what}; give {expected}"
            )
    if not staging.indexed:
        lo, hi = (
            int(W.indptr[0]),
            int(W.indptr[-1]),
        )  # a view of some rows becomes a matrix of its own
        write_matrix(staging.weights, csr(W.indptr - lo, W.indices[lo:hi], W.data[lo:hi], W.n_cols))
    index = staging.index(b)
    return Parts(index.W, index, index.b, labels, features, text, classes)


def _names(names: Any) -> pa.LargeStringArray:
    """Strings as one Arrow array."""
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


def _versions() -> dict[str, str]:
    """Versions of xcray, Python and the libraries that make the numbers."""
    out = {"python": platform.python_version()}
    for name in ("xcray", *LIBRARIES):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"xcray": "unknown", **out}


def _plain(value: Any) -> Any:
    """`value` with numpy numbers as Python's, tuples as lists and numbers that JSON can't hold as None."""
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(entry) for entry in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value
