"""Random Fourier features: cosines of random projections, which approximate a Gaussian kernel.

Source: Rahimi and Recht, "Random features for large-scale kernel machines", NIPS 2007.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from xcray.arrays import CSR, Float32, Float64, frozen
from xcray.errors import ParameterError, ShapeMismatch
from xcray.features.pipeline import Rows, StoredPipeline, check_width, project
from xcray.kernels.cosine import add_phase_and_cosine


@dataclass(frozen=True)
class RandomFourier(StoredPipeline):
    """Features cos(x' frequencies + phase).

    frequencies: (n_inputs, n_outputs) float32; phase: (n_outputs,) float32, in radians. The product
    of the features of x and x', averaged over the features and doubled, is
    exp(-|x - x'|^2 / (2 bandwidth^2)) in expectation. Error of the cosine: about 1e-6.
    """

    kind: ClassVar[str] = "random-fourier"
    frequencies: Float32
    phase: Float32

    @property
    def n_inputs(self) -> int:
        """Return the number of columns of the input."""
        return int(self.frequencies.shape[0])

    @property
    def n_outputs(self) -> int:
        """Return the number of features."""
        return int(self.frequencies.shape[1])

    def transform(self, rows: Rows) -> Float32:
        """Return the features (n, n_outputs) float32. Raises ShapeMismatch."""
        check_width(rows, self.n_inputs)
        out = project(rows, self.frequencies)
        add_phase_and_cosine(out, self.phase)
        return out

    def fields(self) -> tuple[dict[str, Any], dict[str, Float32]]:
        """Return no settings, and the arrays."""
        return {}, {"frequencies": self.frequencies, "phase": self.phase}

    @classmethod
    def from_fields(cls, settings: Mapping[str, Any], arrays: Mapping[str, Float32]) -> Self:
        """Return the pipeline with these arrays. Raises ShapeMismatch or KeyError."""
        frequencies, phase = arrays["frequencies"], arrays["phase"]
        if frequencies.ndim != 2 or phase.shape != (frequencies.shape[1],):
            raise ShapeMismatch("random Fourier features have one phase per feature")
        return cls(frequencies, phase)


def random_fourier(
    n_inputs: int, n_outputs: int, bandwidth: float, *, seed: int, block: int = 0
) -> RandomFourier:
    """Draw frequencies from N(0, 1) / bandwidth, and phases uniformly from [0, 2 pi).

    The numbers depend on (seed, block) only. Raises ParameterError for an invalid bandwidth.
    """
    check_bandwidth(bandwidth)
    stream = random_stream(seed, block)
    frequencies = stream.standard_normal((n_inputs, n_outputs)) / bandwidth
    phase = stream.uniform(0.0, 2.0 * np.pi, n_outputs)
    return RandomFourier(frozen(frequencies, np.float32), frozen(phase, np.float32))


def check_bandwidth(bandwidth: float) -> None:
    """Raise ParameterError unless the bandwidth is positive and finite."""
    if not (np.isfinite(bandwidth) and bandwidth > 0.0):
        raise ParameterError(f"bandwidth {bandwidth} is not positive: choose a larger one")


def random_stream(seed: int, block: int) -> np.random.Generator:
    """Return the counter-based stream (Philox) of a block of features."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, block))))


def median_distance(rows: Rows, *, seed: int, pairs: int = 2000) -> float:
    """Return the median of |x - x'| over random pairs of rows, the default bandwidth.

    rows: (n, d), n >= 2. Pairs of equal row numbers are left out.
    """
    stream = random_stream(seed, 0)
    first, second = stream.integers(0, rows.shape[0], (2, pairs))
    distinct = first != second
    X: Any = rows.to_scipy() if isinstance(rows, CSR) else rows
    A, B = X[first[distinct]], X[second[distinct]]
    difference = (A - B).toarray() if isinstance(rows, CSR) else A - B
    squares: Float64 = np.square(difference, dtype=np.float64).sum(axis=1)
    return float(np.sqrt(np.median(squares)))
