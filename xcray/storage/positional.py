"""Reads and writes of whole arrays at positions of a file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_all(handle: int, array: NDArray[Any], position: int) -> None:
    """Write a contiguous array; in several calls if the system writes fewer bytes per call."""
    left = array.view(np.uint8).data
    while len(left):
        n = os.pwrite(handle, left, position)
        left, position = left[n:], position + n


def read_array(handle: int, dtype: Any, n: int, position: int) -> NDArray[Any]:
    """Return n values at a position (bytes). Raises OSError if the file ends before."""
    out = np.empty(n, dtype)
    left = out.view(np.uint8).data
    while len(left):
        size = os.preadv(handle, [left], position)
        if size == 0:
            raise OSError(f"the file ends at {position} bytes, before the end of an array")
        left, position = left[size:], position + size
    return out
