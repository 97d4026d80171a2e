"""A limit of one BLAS thread: workers provide the parallelism.

Results are then bit-identical on machines with any number of cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from threadpoolctl import threadpool_limits

VARIABLE: Final = "OPENBLAS_NUM_THREADS"


@contextmanager
def limit_blas_threads() -> Iterator[None]:
    """Limit BLAS and LAPACK to one thread per call, in all threads of this process.

    More threads would sum products and inverses in another order, and W workers times C threads
    exceed C cores. Ray sets the same limit in its workers. A library that is loaded inside keeps
    the limit.
    """
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"  # read by a library when it is loaded
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
