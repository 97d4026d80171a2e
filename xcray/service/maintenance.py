"""Maintenance of a home by one process: data set builds, and removal of leftovers.

The leftovers are abandoned uploads, and old jobs with their files.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from xcray.errors import XcrayError
from xcray.jobs.supervision.election import Leadership
from xcray.service.datasets.builds import Builder
from xcray.service.datasets.uploads import UploadStore
from xcray.service.observability.request_log import LOGGER

SWEEP_SECONDS: Final = 300.0  # between two removals of expired files


class MaintenanceLoop:
    """Runs maintenance tasks while this process is the leader.

    exclusive_home: no other process accepts uploads or data sets, so nothing is in transfer at the
    start. sweep: removes expired jobs and files; it runs in a thread, one at a time, periodically.
    """

    def __init__(
        self,
        builder: Builder,
        uploads: UploadStore,
        leadership: Leadership,
        *,
        exclusive_home: bool,
        sweep: Callable[[], object],
    ) -> None:
        self._builder = builder
        self._uploads = uploads
        self._leadership = leadership
        self._exclusive_home = exclusive_home
        self._sweep = sweep
        self._is_leader = False
        self._next_sweep_at = 0.0
        self._sweep_task: asyncio.Task[None] | None = None

    async def tick(self) -> None:
        """Acquire or detect loss of leadership, then run the tasks that are due.

        Raises XcrayError or OSError; the next tick tries again.
        """
        is_leader = await asyncio.to_thread(self._leadership.acquire_or_renew)
        if is_leader and not self._is_leader:
            await self._take_over()
        elif self._is_leader and not is_leader:
            self._is_leader = False
            await self._builder.close()
        if not self._is_leader:
            return
        if not self._exclusive_home:
            await self._builder.poll()
        if time.monotonic() >= self._next_sweep_at and (
            self._sweep_task is None or self._sweep_task.done()
        ):
            self._next_sweep_at = time.monotonic() + SWEEP_SECONDS
            self._sweep_task = asyncio.create_task(self._sweep_expired(), name="sweep")

    async def close(self) -> None:
        """Stop, and release the leadership at once."""
        await self._builder.close()
        if self._sweep_task is not None:
            await asyncio.wait([self._sweep_task])
        await asyncio.to_thread(self._leadership.release)

    async def _take_over(self) -> None:
        """Start as leader: resume what an earlier leader left."""
        removed = await asyncio.to_thread(self._uploads.sweep, exclusive=self._exclusive_home)
        resumed = await self._builder.become_leader(self._exclusive_home)
        self._is_leader = True
        LOGGER.info(
            "maintenance started", extra={"uploads_removed": removed, "builds_resumed": resumed}
        )

    async def _sweep_expired(self) -> None:
        """Remove what has expired. Failures are retried in the next round."""
        try:
            await asyncio.to_thread(self._uploads.sweep, exclusive=False)
            await asyncio.to_thread(self._sweep)
        except (XcrayError, OSError) as error:
            LOGGER.warning("removal of expired files failed", extra={"detail": str(error)})
