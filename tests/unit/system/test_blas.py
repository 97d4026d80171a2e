"""Second moments by BLAS without the interpreter lock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xcray.system.blas import add_second_moments


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(7, 5), (1, 1), (300, 40), (0, 3)])
def test_moments_are_added_to_the_lower_triangle(dtype: Any, shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).normal(size=shape).astype(dtype)
    gram = np.zeros((shape[1], shape[1]), dtype, order="F")
    for _ in range(2):
        add_second_moments(gram, rows)
    assert gram == pytest.approx(2 * np.tril(rows.T @ rows), rel=1e-5, abs=1e-4)
    assert not np.triu(gram, 1).any()


def test_other_arrays_are_refused() -> None:
    rows, gram = np.ones((4, 3), np.float32), np.zeros((3, 3), np.float32, order="F")
    for wrong in (gram.astype(np.float64), np.zeros((2, 2), np.float32, order="F"), gram[:, :2]):
        with pytest.raises(ValueError, match="Fortran order"):
            add_second_moments(wrong, rows)
    with pytest.raises(ValueError, match="Fortran order"):
        add_second_moments(gram, np.asfortranarray(np.ones((4, 3), np.float32)))
