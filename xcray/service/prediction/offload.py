"""Work that holds the interpreter for long, as reading ten megabytes of JSON does: one piece at a time, and off the event loop.

A call into C keeps the interpreter until it returns, up to 0.1 s for the largest bodies. Four of them at once would take turns
among themselves, and the event loop, which answers /healthz too, would wait for several of them whenever it has something to do.
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

_HANDS: Final = ThreadPoolExecutor(1, thread_name_prefix="xcray-heavy")


async def heavily(work: Callable[[], T]) -> T:
    """`work()`, after all heavy work of this process that came before. Raises what it raises."""
    return await asyncio.get_running_loop().run_in_executor(
        _HANDS, copy_context().run, _uncollected, work
    )


def _uncollected(work: Callable[[], T]) -> T:
    """Work without the collector of cycles: it would look through millions of new objects again and again, for 0.2 s each time, and
    what JSON is made of has no cycles. What an error refers to, its body among that, is let go here, not on the event loop."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return work()
    except XcrayError as raised:
        error = raised.with_traceback(None)
        error.__context__ = None
    finally:
        if collects:
            gc.enable()
    raise error
