"""Principal component analysis of dense or sparse rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from xcray.arrays import CSR, Float32, Float64, frozen
from xcray.errors import ParameterError, ShapeMismatch
from xcray.features.pipeline import CHUNK_CELLS, Rows, StoredPipeline, check_width, project

MAX_INPUTS = 8192  # the second moments of more inputs do not fit into memory easily


@dataclass(frozen=True)
class PCA(StoredPipeline):
    """Projection x -> (x - mean)' components.

    components: (n_inputs, n_outputs) float32, orthonormal columns, largest eigenvalue first;
    offset: (n_outputs,) float32, the projection of the mean; zeros for the uncentred variant.
    """

    kind: ClassVar[str] = "pca"
    components: Float32
    offset: Float32

    @property
    def n_inputs(self) -> int:
        """Return the number of columns of the input."""
        return int(self.components.shape[0])

    @property
    def n_outputs(self) -> int:
        """Return the number of components."""
        return int(self.components.shape[1])

    def transform(self, rows: Rows) -> Float32:
        """Return the projections (n, n_outputs) float32. Raises ShapeMismatch."""
        check_width(rows, self.n_inputs)
        out = project(rows, self.components)
        out -= self.offset
        return out

    def fields(self) -> tuple[dict[str, Any], dict[str, Float32]]:
        """Return no settings, and the arrays."""
        return {}, {"components": self.components, "offset": self.offset}

    @classmethod
    def from_fields(cls, settings: Mapping[str, Any], arrays: Mapping[str, Float32]) -> Self:
        """Return the pipeline with these arrays. Raises ShapeMismatch or KeyError."""
        components, offset = arrays["components"], arrays["offset"]
        if components.ndim != 2 or offset.shape != (components.shape[1],):
            raise ShapeMismatch("the offset of a PCA has one entry per component")
        return cls(components, offset)


def fit_pca(rows: Rows, n_outputs: int, *, centred: bool = True) -> PCA:
    """Fit by the eigenvectors of the (centred) second moments, summed in float64.

    The sign of each component makes its entry of the largest size positive. Memory: n_inputs^2
    doubles. Raises ParameterError for more components than inputs, or more than MAX_INPUTS inputs.
    """
    n, d = rows.shape
    if not 1 <= n_outputs <= d or d > MAX_INPUTS:
        raise ParameterError(
            f"PCA of {d} inputs (at most {MAX_INPUTS}) has 1 to {d} components, not {n_outputs}"
        )
    moments, mean = np.zeros((d, d)), np.zeros(d)
    X: Any = rows.to_scipy() if isinstance(rows, CSR) else rows
    size = max(1, CHUNK_CELLS // d)
    for lo in range(0, n, size):
        chunk = X[lo : lo + size]
        part = np.asarray(chunk.toarray() if isinstance(rows, CSR) else chunk, np.float64)
        moments += part.T @ part
        mean += part.sum(axis=0)
    mean = mean / max(n, 1) if centred else np.zeros(d)
    moments -= n * np.outer(mean, mean)
    vectors: Float64 = np.linalg.eigh(moments)[1][:, ::-1][:, :n_outputs]
    largest = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.where(vectors[largest, np.arange(n_outputs)] < 0.0, -1.0, 1.0)
    return PCA(frozen(vectors, np.float32), frozen(mean @ vectors, np.float32))
