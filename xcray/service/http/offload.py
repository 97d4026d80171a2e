"""Off-loading of work that holds the interpreter lock for long to a single thread.

Decoding ten megabytes of JSON is such work. A call into C holds the lock until it returns, up to
0.1 s for the largest bodies. Four such calls at once would alternate, and the event loop, which
also answers /healthz, would wait for several of them whenever it has something to do.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

from xcray.errors import XcrayError

T = TypeVar("T")

_HEAVY_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="xcray-heavy")


async def run_in_heavy_thread(work: Callable[[], T]) -> T:
    """Return `work()`, run after all earlier heavy work of this process. Raises what it raises."""
    return await asyncio.get_running_loop().run_in_executor(
        _HEAVY_THREAD, copy_context().run, _run_without_gc, work
    )


def _run_without_gc(work: Callable[[], T]) -> T:
    """Run `work` with the cyclic garbage collector disabled.

    The collector would scan millions of new objects repeatedly, 0.2 s each time, and parsed JSON
    has no cycles. Objects referenced by an error, such as the body, are released here and not on
    the event loop.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return work()
    except XcrayError as caught:
        error = caught.with_traceback(None)
        error.__context__ = None
    finally:
        if was_enabled:
            gc.enable()
    raise error
