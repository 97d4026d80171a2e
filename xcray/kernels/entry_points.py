"""Calls of kernels without numba's dispatcher.

The dispatcher compares the types of all arguments with those of the compiled versions, in each
call: 5 us for a kernel with forty arrays, which is a tenth of a query on a small model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from xcray.arrays import CSR

INT64, INT32, FLOAT32 = np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.float32)
C_CONTIGUOUS, ALIGNED = 0x1, 0x100  # bits of `ndarray.flags.num`
USUAL = C_CONTIGUOUS | ALIGNED


class DirectKernel:
    """A kernel that is called without dispatch after the first call with usual arrays.

    Its first argument is a CSR. The other arguments must have the same types in each call, because
    the compiled version does not check them.
    """

    def __init__(self, kernel: Any) -> None:
        """Wrap a numba dispatcher."""
        self.kernel = kernel
        self.entry_point: Callable[..., Any] | None = None

    def __call__(self, X: CSR, *others: Any) -> Any:
        """Return the result of the kernel."""
        is_usual = has_usual_arrays(X)
        if is_usual and self.entry_point is not None:
            return self.entry_point(X, *others)
        result = self.kernel(X, *others)
        if is_usual:
            self.entry_point = _compiled_version(self.kernel, (X, *others))
        return result


def _compiled_version(kernel: Any, arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return the compiled version of a kernel for arguments of these types, None if missing."""
    types = tuple(numba.typeof(each) for each in arguments)  # type: ignore[no-untyped-call]
    compiled = kernel.overloads.get(types)
    return None if compiled is None else compiled.entry_point


def has_usual_arrays(X: CSR) -> bool:
    """Return whether the arrays of a CSR have the types of its class, in aligned memory."""
    indptr, indices, data, _ = X
    return (
        indptr.dtype is INT64
        and indices.dtype is INT32
        and data.dtype is FLOAT32
        and indptr.flags.num & indices.flags.num & data.flags.num & USUAL == USUAL
    )
