"""Queue of requests that take seconds, outside the threads that all other routes share.

FastAPI runs synchronous routes in one pool of threads, and asyncio's default executor looks up
keys. A route that waits for a model or for a child process would hold such a thread, and a few
dozen of its requests would stop the API of all tenants. Here, a request that waits holds no thread,
and a tenant can have only a few of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from xcray.service.http.limits import RateLimited

T = TypeVar("T")


class TenantQueue:
    """Runs slow work of requests on its own threads, in order of arrival. Not thread-safe.

    name: of the work, in plural, for the error message. threads: number of requests that run at
    once. max_per_tenant: number of requests of one tenant that run or wait. retry_after: seconds
    that a rejected client is asked to wait.
    """

    def __init__(self, name: str, *, threads: int, max_per_tenant: int, retry_after: int) -> None:
        self._name = name
        self._max_per_tenant = max_per_tenant
        self._retry_after = retry_after
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"xcray-{name}")
        self._running: Counter[str] = Counter()

    async def run(self, tenant: str, work: Callable[[], T]) -> T:
        """Return `work()`, run on a thread of this queue.

        Raises what it raises, and RateLimited at once if the tenant has too many requests here.
        """
        if self._running[tenant] >= self._max_per_tenant:
            raise RateLimited(
                f"{self._running[tenant]} {self._name} of your tenant are running or waiting: "
                f"retry in {self._retry_after} s",
                code="CONCURRENCY",
                retry_after=self._retry_after,
            )
        self._running[tenant] += 1
        # The work counts until it ends, also if the client closes the connection before.
        future = self._pool.submit(copy_context().run, work)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._release, tenant))
        return await asyncio.wrap_future(future)

    def _release(self, tenant: str) -> None:
        """Count one request less of a tenant."""
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def close(self) -> None:
        """Drop what waits; work in progress goes on until it ends."""
        self._pool.shutdown(wait=False, cancel_futures=True)
