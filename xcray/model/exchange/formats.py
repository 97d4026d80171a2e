"""Models of other programs: read from their files, and weights written for other programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from xcray.errors import Conflict, NotFound, ParameterError, suggestion
from xcray.model.exchange import liblinear, npz
from xcray.model.exchange.checks import check_weights, source_bytes
from xcray.model.exchange.weights import ForeignWeights, save_weights, weights_of
from xcray.model.model import Model
from xcray.storage.atomic import create_staging_directory, discard_directory
from xcray.storage.git_lfs import refuse_lfs_pointers


class Format(NamedTuple):
    """A format: its reader, and what a source is.

    read: called with the source and a folder for temporary files, which exists while the weights
    are used.
    """

    read: Callable[[Path, Path], ForeignWeights]
    source: str


FORMATS: Final[Mapping[str, Format]] = {
    "liblinear": Format(
        lambda path, _: liblinear.read(path), "model file, or folder of them (DiSMEC)"
    ),
    "npz": Format(npz.read, "archive of a scipy CSR matrix, with bias and labels"),
}


def import_model(
    name: str,
    source: str | Path,
    out: str | Path,
    *,
    like: str | Path | None = None,
    labels: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
) -> Model:
    """Convert a model of another program, and publish it at `out`.

    name: one of FORMATS. like, labels, features: names, see `weights.save_weights`. Raises
    ParameterError, NotFound, InputError, ShapeMismatch, Conflict.
    """
    if name not in FORMATS:
        hint = suggestion(name, FORMATS)
        raise ParameterError(f"unknown format {name!r}{hint}; there are: {', '.join(FORMATS)}")
    file_format, path = FORMATS[name], Path(source)
    if not path.exists():
        raise NotFound(f"there is no {file_format.source} at {path}")
    refuse_lfs_pointers(path)
    n_bytes = source_bytes(path)
    folder = create_staging_directory(Path(out))
    try:
        weights = file_format.read(path, folder)
        check_weights(weights, n_bytes)
        origin = {"format": name}
        return save_weights(out, weights, origin, like=like, labels=labels, features=features)
    finally:
        discard_directory(folder)


def export_model(model: Model, target: str | Path) -> None:
    """Write the weights of a model as an npz archive. Raises ParameterError, Conflict."""
    path = Path(target)
    if path.exists():
        raise Conflict(f"{path} exists already; choose another path, or remove it first")
    npz.write(weights_of(model), path)
