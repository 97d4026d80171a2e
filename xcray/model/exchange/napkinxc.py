"""Model directories of napkinXC 0.7: `args.bin`, and `weights.bin` with one vector per label.

Only one-vs-rest models ("br", "ovr") are linear over all labels; trees are refused. Index 1 of a
vector is the bias feature, and index j + 2 is feature j. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import frozen
from xcray.errors import InputError
from xcray.model.exchange.checks import checked_size, source_bytes
from xcray.model.exchange.weights import ForeignWeights, from_entries, number_names

KINDS: Final = ("br", "ovr")
BIAS, FIRST_FEATURE = 1, 2
CONSTANT_SCORE = 10.0  # of a label that all training rows have, or none
PAIR: Final = np.dtype([("index", "<i4"), ("value", "<f4")])


class NapkinSettings(NamedTuple):
    """The part of the arguments that predictions need."""

    version: str
    bias: float
    row_norm: str
    kind: str


class _Reader:
    """Reads the values of a binary file one after the other. Raises ValueError at its end."""

    def __init__(self, path: Path) -> None:
        self._bytes, self._at = path.read_bytes(), 0

    def values(self, form: str) -> tuple[Any, ...]:
        """Return the values of a `struct` format."""
        return struct.unpack("<" + form, self._take(struct.calcsize("<" + form)))

    def string(self) -> str:
        """Return a string after its length."""
        return self._take(self.values("Q")[0]).decode()

    def array(self, dtype: Any, n: int) -> np.ndarray:
        """Return n items."""
        return np.frombuffer(self._take(n * np.dtype(dtype).itemsize), dtype)

    def _take(self, n: int) -> bytes:
        taken = self._bytes[self._at : self._at + n]
        if len(taken) < n:
            raise ValueError("the file ends too early")
        self._at += n
        return taken


def read(path: Path) -> ForeignWeights:
    """Return the weights of a model directory; labels are named by their numbers.

    A last feature without a weight is left out: LIBLINEAR's vectors have one place too many.
    Raises InputError for trees, hashed features, ensembles, and files that are not complete.
    """
    try:
        source_bytes(path)
        settings = _read_settings(_Reader(path / "args.bin"))
        vectors = _read_vectors(_Reader(path / "weights.bin"))
    except (OSError, ValueError, struct.error) as error:
        raise InputError(f"{path.name} is not a model directory of napkinXC: {error}") from None
    labels = np.repeat(np.arange(len(vectors)), [len(indices) for indices, _, _ in vectors])
    indices, values = (np.concatenate([each[part] for each in vectors]) for part in (0, 1))
    b = np.array([constant for _, _, constant in vectors])
    is_bias, is_weight = indices == BIAS, (indices >= FIRST_FEATURE) & (values != 0)
    b[labels[is_bias]] += settings.bias * values[is_bias]
    columns = indices[is_weight] - FIRST_FEATURE
    n_features = max(int(columns.max(initial=-1)) + 1, 1)
    n_bytes = (path / "weights.bin").stat().st_size
    shape = (len(vectors), checked_size(n_features, "features", n_bytes))
    W = from_entries(labels[is_weight], columns, values[is_weight], shape)
    return ForeignWeights(W, frozen(b, np.float32), number_names(len(b)), settings.row_norm)


def _read_settings(file: _Reader) -> NapkinSettings:
    """Return the settings of a model. Raises ValueError, InputError."""
    version = file.string()
    bias, is_normed, n_hashes, _, _ = file.values("f?ifi")
    kind, n_ensemble = file.string(), file.values("i")[0]
    if kind not in KINDS:
        raise InputError(f"the model is {kind!r}; only one-vs-rest ({', '.join(KINDS)}) is linear")
    if n_hashes or n_ensemble > 1:
        raise InputError("models with hashed features and ensembles cannot be imported")
    return NapkinSettings(version, bias, "l2" if is_normed else "none", kind)


def _read_vectors(file: _Reader) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """Return (indices, values, constant score) per label. Raises ValueError."""
    n_labels = file.values("i")[0]
    if n_labels < 1:
        raise ValueError(f"it has {n_labels} labels")
    return [_read_vector(file) for _ in range(n_labels)]


def _read_vector(file: _Reader) -> tuple[np.ndarray, np.ndarray, float]:
    """Return a vector, positive for rows that have the label."""
    n_classes, first_class, _ = file.values("iii")
    sign = 1.0 if first_class else -1.0
    if n_classes < 2:
        return np.empty(0, np.int64), np.empty(0, np.float32), sign * CONSTANT_SCORE
    _, _, size, n_stored, is_sparse = file.values("QQQQ?")
    if is_sparse:
        pairs = file.array(PAIR, n_stored)
        indices, values = pairs["index"].astype(np.int64), pairs["value"]
    else:
        values = file.array("<f4", size)
        indices = np.arange(size)
    if file.values("?")[0]:
        raise ValueError("it has gradients of an unfinished training")
    return indices, sign * values, 0.0
