"""Weights in a NumPy archive that `scipy.sparse.load_npz` reads, with bias and names of labels."""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from xcray.arrays import csr, frozen
from xcray.errors import InputError, ShapeMismatch
from xcray.model.exchange.weights import ForeignWeights, from_entries, number_names, row_numbers


def read(path: Path) -> ForeignWeights:
    """Return the weights in an archive of a CSR matrix (K, D).

    `bias` (K,), `labels` (K,) and `row_norm` are optional: 0, numbers, "none". Raises InputError.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            K, D = (int(size) for size in archive["shape"])
            stored = csr(archive["indptr"], archive["indices"], archive["data"], D)
            W = from_entries(row_numbers(stored), stored.indices, stored.data, (K, D))
            bias = archive["bias"] if "bias" in archive else np.zeros(K)
            labels = archive["labels"].tolist() if "labels" in archive else number_names(K)
            row_norm = str(archive["row_norm"]) if "row_norm" in archive else "none"
    except (OSError, KeyError, ValueError, ShapeMismatch, BadZipFile) as error:
        raise InputError(f"{path.name} is not an archive of a CSR matrix: {error}") from None
    if len(bias) != K or len(labels) != K:
        raise InputError(
            f"{path.name} has {len(bias)} biases and {len(labels)} labels for {K} rows"
        )
    return ForeignWeights(W, frozen(bias, np.float32), labels, row_norm)


def write(weights: ForeignWeights, path: Path) -> None:
    """Write an archive without pickle."""
    W = weights.W
    with path.open("wb") as out:
        np.savez_compressed(
            out,
            data=W.data,
            indices=W.indices,
            indptr=W.indptr,
            shape=np.array(W.shape),
            format=np.array(b"csr"),
            bias=weights.b,
            labels=np.array(weights.labels),
            row_norm=np.array(weights.row_norm),
        )
