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


def entry_point(kernel: Any, arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return the compiled version of a kernel for arguments of these types, None if there is none.

    It must be called with arguments of the same types only, because it does not check them.
    """
    types = tuple(numba.typeof(each) for each in arguments)  # type: ignore[no-untyped-call]
    compiled = kernel.overloads.get(types)
    return None if compiled is None else compiled.entry_point


def has_usual_arrays(X: CSR) -> bool:
    """Return whether the arrays of a CSR have the types of its class, in aligned memory."""
    indptr, indices, data, _ = X
    if indptr.dtype != INT64 or indices.dtype != INT32 or data.dtype != FLOAT32:
        return False
    arrays = (indptr, indices, data)
    return all(each.flags.forc and each.flags.aligned for each in arrays)
