"""The formats of other programs by name, and the conversion of files from and to models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from xcray.errors import Conflict, NotFound, ParameterError, suggestion
from xcray.model.exchange import dismec, liblinear, npz
from xcray.model.exchange.checks import check_weights, source_bytes
from xcray.model.exchange.weights import ForeignWeights, save_weights, split_bias, weights_of
from xcray.model.model import Model
from xcray.storage.atomic import create_staging_directory, discard_directory
from xcray.storage.git_lfs import refuse_lfs_pointers


class Format(NamedTuple):
    """A format: its functions, and what a source is.

    read: called with the source and a folder for temporary files, which exists while the weights
    are used.
    """

    read: Callable[[Path, Path], ForeignWeights]
    write: Callable[[ForeignWeights, Path], None]
    source: str


def _whole(read: Callable[[Path], ForeignWeights]) -> Callable[[Path, Path], ForeignWeights]:
    """Return a reader that needs no temporary files."""
    return lambda path, folder: read(path)


FORMATS: Final[Mapping[str, Format]] = {
    "liblinear": Format(
        _whole(liblinear.read), liblinear.write, "model file, or folder of them (DiSMEC)"
    ),
    "dismec": Format(_whole(dismec.read), dismec.write, "JSON file of a DiSMEC++ model"),
    "npz": Format(npz.read, npz.write, "archive of a scipy CSR matrix, with bias and labels"),
}


def import_model(
    name: str,
    source: str | Path,
    out: str | Path,
    *,
    bias: bool = False,
    like: str | Path | None = None,
    labels: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
) -> Model:
    """Convert a model of another program, and publish it at `out`.

    name: one of FORMATS. bias: the last feature is the constant 1, so that its weights are the
    biases. like, labels, features: names, see `weights.save_weights`. Raises ParameterError,
    NotFound, InputError, ShapeMismatch, Conflict.
    """
    file_format, path = _find(name), Path(source)
    if not path.exists():
        raise NotFound(f"there is no {file_format.source} at {path}")
    refuse_lfs_pointers(path)
    n_bytes = source_bytes(path)
    folder = create_staging_directory(Path(out))
    try:
        weights = file_format.read(path, folder)
        check_weights(weights, n_bytes)
        if bias:
            weights = split_bias(weights)
        origin = {"format": name}
        return save_weights(out, weights, origin, like=like, labels=labels, features=features)
    finally:
        discard_directory(folder)


def export_model(model: Model, name: str, target: str | Path) -> None:
    """Write the weights of a model for another program. Raises ParameterError, Conflict."""
    file_format, path = _find(name), Path(target)
    if path.exists():
        raise Conflict(f"{path} exists already; choose another path, or remove it first")
    file_format.write(weights_of(model), path)


def _find(name: str) -> Format:
    """Return a format. Raises ParameterError."""
    if name not in FORMATS:
        hint = suggestion(name, FORMATS)
        raise ParameterError(f"unknown format {name!r}{hint}; there are: {', '.join(FORMATS)}")
    return FORMATS[name]
