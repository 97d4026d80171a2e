"""A limit of one BLAS thread: workers provide the parallelism.

Results are then bit-identical on machines with any number of cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits


@contextmanager
def limit_blas_threads() -> Iterator[None]:
    """Limit BLAS and LAPACK to one thread per call, in all threads of this process.

    More threads would sum products and inverses in another order, and W workers times C threads
    exceed C cores. Ray sets the same limit in its workers.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield
