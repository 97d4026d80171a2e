"""Manifest of a model directory: sealed text, required keys, sizes and checksums of files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.errors import Corrupt, InputError, NotFound, ParameterError
from xcray.kernels.row_norm import ROW_NORMS
from xcray.storage.atomic import NAME_PATTERN, is_file_entry, similar_directory

SCHEMA_VERSION = 2
MANIFEST = "manifest.json"
WEIGHTS = "weights.arrow"
LISTS = "index/lists.arrow"
BIAS = "bias.arrow"
# keys of every manifest besides sizes, with their types
REQUIRED_KEYS: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(("created", "dataset_hash", "link", "sha256", "solver"), (str,)),
    **dict.fromkeys(("measures", "params", "report"), (dict,)),
    "text": (dict, type(None)),
}
MAX_SIZE = 2**31 - 1  # labels and features are int32


class LabelRange(NamedTuple):
    """The labels [begin, end) of a model in shards, which are the model `name` of a service.

    The labels of that model are called by their numbers in the whole one. sha256: its content hash.
    """

    name: str
    begin: int
    end: int
    sha256: str


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a model directory. Raises NotFound or Corrupt.

    Its seal and schema version are checked.
    """
    try:
        raw = (Path(path) / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        similar = similar_directory(Path(path), MANIFEST)
        raise NotFound(
            f"there is no model at {Path(path).name}: it has no {MANIFEST}{similar}"
        ) from None
    return parse_manifest(raw)


def parse_manifest(raw: bytes) -> dict[str, Any]:
    """Return the manifest in these bytes, after checking seal and version.

    Raises Corrupt, and InputError for the manifest of a data set.
    """
    try:
        manifest = json.loads(raw)
        if "splits" in manifest and "seal" not in manifest:
            raise InputError(
                "this is a data set, not a model: train a model on it with `xcray train DIR`",
                code="NOT_A_MODEL",
            )
        version, seal = manifest["schema_version"], manifest.pop("seal")
        if version != SCHEMA_VERSION or not isinstance(version, int):
            raise Corrupt(
                f"{MANIFEST} has schema version {version}, "
                f"this xcray reads {SCHEMA_VERSION}: use the xcray that wrote it",
                file=MANIFEST,
            )
        sound = _matches_seal(raw, seal)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(
            f"{MANIFEST} is not a model's manifest: {type(error).__name__}", file=MANIFEST
        ) from None
    if not sound:
        raise Corrupt(
            f"{MANIFEST} was changed after it was written (its seal differs)", file=MANIFEST
        )
    manifest["seal"] = seal
    _check_manifest(manifest)
    return dict(manifest)


def seal_manifest(manifest: Mapping[str, Any]) -> str:
    """Return the text of a manifest: sorted keys and a checksum of the rest.

    Any changed byte is detected on reading. Raises ParameterError for values that are not JSON.
    """
    seal = hashlib.sha256(_text(manifest).encode()).hexdigest()
    return _text({**manifest, "seal": seal})


def _matches_seal(raw: bytes, seal: Any) -> bool:
    """Return whether the text without the line of its seal has the checksum `seal`.

    The rest is not written again for the comparison, which would take most of the time of a list
    of a thousand models.
    """
    place = f'\n  "schema_version": {SCHEMA_VERSION},'.encode()  # the key before, in sorted order
    before, found, after = raw.partition(place + f'\n  "seal": "{seal}",'.encode())
    return bool(found) and hashlib.sha256(before + place + after).hexdigest() == seal


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


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Check the sizes and types in the manifest before any file is opened by them."""
    try:
        (n_labels, n_features), nnz = manifest["shape"], manifest["nnz"]
        sizes = [n_labels, n_features, nnz]
        wrong = [name for name, kinds in REQUIRED_KEYS.items() if type(manifest[name]) not in kinds]
        is_linear = not (is_staged(manifest) or ranges_of(manifest))
        needed = {"labels.arrow", "features.arrow"}
        if is_linear:
            needed |= {WEIGHTS, BIAS, LISTS}
        files = needed <= set(manifest["files"])
        safe = all(is_file_entry(name, entry) for name, entry in manifest["files"].items())
        numbers = (
            all(type(size) is int and size >= 0 for size in sizes)
            and max(n_labels, n_features) <= MAX_SIZE
        )
        fits = not is_linear or (
            nnz <= n_labels * n_features
            and manifest["files"]["weights.arrow"]["bytes"] >= 8 * nnz
            and manifest["files"]["bias.arrow"]["bytes"] >= 4 * n_labels
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{MANIFEST} lacks required entries: {error!r}", file=MANIFEST) from None
    if wrong:
        raise Corrupt(f"{MANIFEST}: '{wrong[0]}' has an invalid type", file=MANIFEST)
    if not (files and safe and numbers and fits):
        raise Corrupt(
            f"{MANIFEST} claims {n_labels} labels, {n_features} features, {nnz} weights; "
            "its files can't hold these"
        )


def _first_stage(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the first stage, or {}."""
    stages = manifest.get("stages")
    first = stages[0] if isinstance(stages, list) and stages else None
    return first if isinstance(first, dict) else {}


def is_staged(manifest: Mapping[str, Any]) -> bool:
    """Return whether a model is a chain of stages; the stage of a linear model names its files."""
    first = _first_stage(manifest)
    return bool(first) and "weights" not in first and "shards" not in first


def ranges_of(manifest: Mapping[str, Any]) -> tuple[LabelRange, ...]:
    """Return the label ranges of a model in shards, in order; empty for others. Raises Corrupt."""
    try:
        ranges = tuple(LabelRange(**each) for each in _first_stage(manifest).get("shards", ()))
        borders = [0, *(each.end for each in ranges)]
        sound = all(
            [type(value) for value in each] == [str, int, int, str]
            and NAME_PATTERN.fullmatch(each.name)
            and begin == each.begin < each.end
            for begin, each in zip(borders, ranges, strict=False)
        )
    except TypeError as error:
        raise Corrupt(f"{MANIFEST}: invalid shards: {error}", file=MANIFEST) from None
    if not (sound and (not ranges or borders[-1] == manifest["shape"][0])):
        raise Corrupt(f"{MANIFEST}: its shards are not all labels in order", file=MANIFEST)
    return ranges


def require_weights(manifest: Mapping[str, Any]) -> None:
    """Raise ParameterError for a model in shards, whose weights services hold."""
    if ranges := ranges_of(manifest):
        raise ParameterError(
            f"the weights of this model are in {len(ranges)} shards, which services hold: "
            "ask the service that answers for it, or use the model before it was split",
            code="IN_SHARDS",
        )


def groups_of(manifest: Mapping[str, Any]) -> Any:
    """Return the entry of the label groups of a linear model, None without groups.

    It has the number of groups of each size, the factor of the mean of their scores, and the number
    of their weights.
    """
    return _first_stage(manifest).get("groups")


def row_norm_of(manifest: Mapping[str, Any]) -> str:
    """Return the normalisation of the rows of a model's requests. Raises Corrupt."""
    try:
        row_norm = manifest["stages"][0].get("row_norm", "none")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Corrupt(f"{MANIFEST} lacks the stages of the model", file=MANIFEST) from None
    if row_norm not in ROW_NORMS:
        raise Corrupt(f"{MANIFEST}: row_norm is not one of {', '.join(ROW_NORMS)}", file=MANIFEST)
    return str(row_norm)
