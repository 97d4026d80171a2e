"""Matrix products on one core each: workers bring the parallelism, and bits are the same on machines of any number of cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits


@contextmanager
def one_core_each() -> Iterator[None]:
    """While this is open, BLAS and LAPACK use one core a call, in all threads of this process.

    Products and inverses are added up in another order by more threads; and W workers times C threads are more than C cores. Ray
    sets the same in its workers.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield
