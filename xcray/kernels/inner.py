"""The decorator of kernels that only other kernels call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def inner(*, allocates: bool = True, **options: Any) -> Callable[[Kernel], Kernel]:
    """Return a decorator that compiles a kernel without entry points for Python and C.

    The code that unpacks arrays from Python objects is a large part of a small kernel. allocates:
    False omits the reference counts of arrays, which take a tenth of a short query; the kernel must
    not create arrays (numba refuses it) and must not return any. options: of `numba.njit`.
    """
    chosen: dict[str, Any] = {
        "nogil": True,
        "cache": True,
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
        "_nrt": allocates,
        **options,
    }
    decorator: Callable[[Kernel], Kernel] = numba.njit(**chosen)
    return decorator
