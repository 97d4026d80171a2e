"""Operations on arrays."""

from __future__ import annotations

import numpy as np
import pytest

from xcray.arrays import distinct


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize("shape", [(0,), (1,), (1000,), (20, 30)])
def test_distinct_numbers_are_those_of_a_set(shape: tuple[int, ...], dtype: type) -> None:
    values = np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)
    found = distinct(values)
    assert found.tolist() == sorted(set(values.ravel().tolist()))
    assert found.dtype == dtype
