"""Random logits: logistic functions of random projections.

Source: Agarwal et al., "Least squares revisited", section 3.1, which needs fewer of them than of
random Fourier features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from xcray.arrays import Float32, frozen
from xcray.errors import ShapeMismatch
from xcray.features.fourier import check_bandwidth, random_stream
from xcray.features.pipeline import Rows, StoredPipeline, check_width, project


@dataclass(frozen=True)
class RandomLogits(StoredPipeline):
    """Features 1 / (1 + exp(-(x' weights + offset))).

    weights: (n_inputs, n_outputs) float32; offset: (n_outputs,) float32.
    """

    kind: ClassVar[str] = "random-logits"
    weights: Float32
    offset: Float32

    @property
    def n_inputs(self) -> int:
        """Return the number of columns of the input."""
        return int(self.weights.shape[0])

    @property
    def n_outputs(self) -> int:
        """Return the number of features."""
        return int(self.weights.shape[1])

    def transform(self, rows: Rows) -> Float32:
        """Return the features (n, n_outputs) float32, in (0, 1). Raises ShapeMismatch."""
        check_width(rows, self.n_inputs)
        out = project(rows, self.weights)
        out += self.offset
        # 1 / (1 + exp(-z)) without overflow
        out *= np.float32(0.5)
        np.tanh(out, out=out)
        out += np.float32(1.0)
        out *= np.float32(0.5)
        return out

    def fields(self) -> tuple[dict[str, Any], dict[str, Float32]]:
        """Return no settings, and the arrays."""
        return {}, {"weights": self.weights, "offset": self.offset}

    @classmethod
    def from_fields(cls, settings: Mapping[str, Any], arrays: Mapping[str, Float32]) -> Self:
        """Return the pipeline with these arrays. Raises ShapeMismatch or KeyError."""
        weights, offset = arrays["weights"], arrays["offset"]
        if weights.ndim != 2 or offset.shape != (weights.shape[1],):
            raise ShapeMismatch("random logits have one offset per feature")
        return cls(weights, offset)


def random_logits(
    n_inputs: int, n_outputs: int, bandwidth: float, *, seed: int, block: int = 0
) -> RandomLogits:
    """Draw weights from N(0, 1) / bandwidth and offsets from N(0, 1).

    The numbers depend on (seed, block) only. Raises ParameterError for an invalid bandwidth.
    """
    check_bandwidth(bandwidth)
    stream = random_stream(seed, block)
    weights = stream.standard_normal((n_inputs, n_outputs)) / bandwidth
    offset = stream.standard_normal(n_outputs)
    return RandomLogits(frozen(weights, np.float32), frozen(offset, np.float32))
