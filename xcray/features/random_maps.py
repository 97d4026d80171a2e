"""Random logits and random polynomials: other functions of random projections than the cosine.

Source: Agarwal et al., "Least squares revisited", ICML 2014, appendix A.2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from xcray.arrays import Float32, frozen
from xcray.features.fourier import RandomFourier, check_bandwidth, random_stream
from xcray.features.pipeline import Rows, check_width, project


@dataclass(frozen=True)
class RandomLogits(RandomFourier):
    """Features 1 / (1 + exp(-u)), u = x' frequencies + phase."""

    kind: ClassVar[str] = "random-logits"

    def transform(self, rows: Rows) -> Float32:
        """Return the features (n, n_outputs) float32. Raises ShapeMismatch."""
        u = self._projections(rows)
        # the tangent cannot overflow
        out: Float32 = np.float32(0.5) * (np.float32(1.0) + np.tanh(np.float32(0.5) * u))
        return out

    def _projections(self, rows: Rows) -> Float32:
        """Return u (n, n_outputs)."""
        check_width(rows, self.n_inputs)
        return project(rows, self.frequencies) + self.phase


@dataclass(frozen=True)
class RandomCubics(RandomLogits):
    """Features (u / 2)^3, u = x' frequencies + phase: random polynomials of degree 3."""

    kind: ClassVar[str] = "random-cubics"

    def transform(self, rows: Rows) -> Float32:
        """Return the features (n, n_outputs) float32. Raises ShapeMismatch."""
        u = np.float32(0.5) * self._projections(rows)
        out: Float32 = u * u * u
        return out


def random_map(
    kind: type[RandomLogits],
    sample: Float32,
    n_outputs: int,
    bandwidth: float,
    *,
    seed: int,
    block: int,
) -> RandomLogits:
    """Draw frequencies from N(0, 1) / bandwidth, and phases so that u is 0 at a random row.

    sample: (n, d) rows of the input. The numbers depend on these rows and on (seed, block) only.
    Raises ParameterError for an invalid bandwidth.
    """
    check_bandwidth(bandwidth)
    stream = random_stream(seed, block)
    frequencies = stream.standard_normal((sample.shape[1], n_outputs)) / bandwidth
    centres = sample[stream.integers(0, len(sample), n_outputs)].astype(np.float64)
    phase = -np.einsum("md,dm->m", centres, frequencies)
    return kind(frozen(frequencies, np.float32), frozen(phase, np.float32))
