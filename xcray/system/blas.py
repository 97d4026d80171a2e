"""The symmetric product of BLAS, called without the interpreter lock.

`scipy.linalg.blas` holds the lock, so that threads would wait for each other. This module calls the
same routine through the address that scipy publishes for compiled code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from xcray.errors import missing_extra


def add_second_moments(
    gram: np.ndarray[Any, np.dtype[np.floating]], rows: np.ndarray[Any, np.dtype[np.floating]]
) -> None:
    """Add rows' rows to the lower triangle of gram, in place.

    gram: (d, d), in Fortran order; rows: (n, d), in C order; both float32 or both float64. Raises
    ValueError for other arrays, and Unavailable if scipy is missing.
    """
    n, d = rows.shape
    fits = gram.shape == (d, d) and gram.flags.f_contiguous and gram.flags.writeable
    if not (fits and rows.flags.c_contiguous and gram.dtype == rows.dtype):
        raise ValueError("gram must be square, in Fortran order and of the type of the rows")
    if not rows.size:
        return
    number = {"f": ctypes.c_float, "d": ctypes.c_double}[gram.dtype.char]
    size, width, one = ctypes.c_int(n), ctypes.c_int(d), number(1.0)
    at = [array.ctypes.data_as(ctypes.c_void_p) for array in (rows, gram)]
    reference = ctypes.byref
    # In Fortran order the rows are a matrix (d, n), so that "not transposed" is rows'rows.
    _syrk(gram.dtype.char)(
        b"L", b"N", reference(width), reference(size), reference(one), at[0], reference(width),
        reference(one), at[1], reference(width),
    )  # fmt: skip


@cache
def _syrk(kind: str) -> Callable[..., None]:
    """Return ssyrk (kind "f") or dsyrk ("d") with arguments by address."""
    try:
        import scipy.linalg.cython_blas
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None
    from numba.extending import get_cython_function_address

    name = {"f": "ssyrk", "d": "dsyrk"}[kind]
    address = get_cython_function_address(scipy.linalg.cython_blas.__name__, name)
    text, other = ctypes.c_char_p, ctypes.c_void_p
    types = [text, text, *[other] * 8]
    routine: Callable[..., None] = ctypes.CFUNCTYPE(None, *types)(address)
    return routine
