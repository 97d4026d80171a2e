"""Scales of features whose values hide all others."""

from __future__ import annotations

import numpy as np
import pytest

from xcray.arrays import csr_from
from xcray.data.feature_scales import feature_scales, mean_squares


def test_mean_squares_are_those_of_the_columns() -> None:
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(30, 7)) * (rng.random((30, 7)) < 0.5)).astype(np.float32)
    expected = np.mean(X.astype(np.float64) ** 2, axis=0)
    np.testing.assert_allclose(mean_squares(csr_from(X)), expected, rtol=1e-12)


@pytest.mark.parametrize("large", [1, 2, 3])
def test_large_features_get_together_the_square_of_the_others(large: int) -> None:
    squares = np.full(8, 0.5)
    squares[:large] = 1e12
    scales = feature_scales(squares)
    assert (scales[large:] == 1.0).all()
    assert np.sum(squares[:large] / scales[:large] ** 2) == pytest.approx(np.sum(squares[large:]))


@pytest.mark.parametrize(
    "squares",
    [
        [],
        [0.0, 0.0],
        [1e12],
        [1e12, 0.0],
        [1.0, 2.0, 4.0],
        [1e-12, 1.0, 1.0, 1.0],  # the others are not compared with a tiny feature
        [1e12, 1e12, 1e12, 1.0],  # most features are large: none stands out
    ],
)
def test_other_features_are_not_scaled(squares: list[float]) -> None:
    assert (feature_scales(np.array(squares)) == 1.0).all()


def test_features_of_frequencies_as_in_text_are_not_scaled() -> None:
    squares = 1.0 / np.arange(1, 50_001)
    assert (feature_scales(squares) == 1.0).all()
