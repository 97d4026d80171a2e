"""What one process of all does for a home: builds data sets, sweeps what uploads left, forgets old jobs and their files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from xcray.errors import XcrayError
from xcray.jobs.supervision.election import Post
from xcray.service.datasets.builds import Builder
from xcray.service.datasets.uploads import UploadDesk
from xcray.service.observability.request_log import LOGGER

SWEEP_SECONDS: Final = 300.0  # between two looks for what may go


class Housekeeper:
    """Does the house's work while it holds the post.

    alone: no other process accepts uploads or data sets, so nothing can be on its way at the start. sweep: removes what is kept no
    longer; it runs in a thread, one at a time, now and then.
    """

    def __init__(
        self,
        builder: Builder,
        uploads: UploadDesk,
        post: Post,
        *,
        alone: bool,
        sweep: Callable[[], object],
    ) -> None:
        self._builder = builder
        self._uploads = uploads
        self._post = post
        self._alone = alone
        self._sweep = sweep
        self._leads = False
        self._due = 0.0
        self._sweeping: asyncio.Task[None] | None = None

    async def turn(self) -> None:
        """One look: take the post or notice its loss, and do what is due. Raises XcrayError, OSError; the next turn comes soon."""
        held = await asyncio.to_thread(self._post.hold)
        if held and not self._leads:
            await self._begin()
        elif self._leads and not held:
            self._leads = False
            await self._builder.close()
        if not self._leads:
            return
        if not self._alone:
            await self._builder.look()
        if time.monotonic() >= self._due and (self._sweeping is None or self._sweeping.done()):
            self._due = time.monotonic() + SWEEP_SECONDS
            self._sweeping = asyncio.create_task(self._swept(), name="sweep")

    async def close(self) -> None:
        """End, and let another have the post at once."""
        await self._builder.close()
        if self._sweeping is not None:
            await asyncio.wait([self._sweeping])
        await asyncio.to_thread(self._post.leave)

    async def _begin(self) -> None:
        """Take up what was left."""
        swept = await asyncio.to_thread(self._uploads.sweep, alone=self._alone)
        left = await self._builder.lead(self._alone)
        self._leads = True
        LOGGER.info("keeping house", extra={"uploads_swept": swept, "builds_taken_up": left})

    async def _swept(self) -> None:
        """Remove what may go. What fails is tried again at the next round."""
        try:
            await asyncio.to_thread(self._uploads.sweep, alone=False)
            await asyncio.to_thread(self._sweep)
        except (XcrayError, OSError) as error:
            LOGGER.warning("sweeping failed", extra={"detail": str(error)})
