"""Models that are loaded before the service reports that it is ready."""

from __future__ import annotations

import asyncio
from typing import Final

from xcray.errors import Unavailable, XcrayError
from xcray.jobs.home import DEFAULT_TENANT
from xcray.service.models.cache import ModelCache, ModelTarget
from xcray.service.observability.request_log import LOGGER

RETRY_SECONDS: Final = 5.0  # seconds until a failed load is tried again


class Preloading:
    """The models that the operator has configured in XCRAY_PRELOAD."""

    def __init__(self, references: tuple[str, ...] = ()) -> None:
        self._pending = list(references)
        self._attempted = asyncio.Event()

    def check(self) -> None:
        """Raise Unavailable while a model is not loaded."""
        if self._pending:
            raise Unavailable(
                f"{len(self._pending)} of the models in XCRAY_PRELOAD are not loaded yet",
                code="MODELS",
            )

    async def load(self, predictors: ModelCache) -> None:
        """Load all models; failed loads are retried until they succeed."""
        while self._pending:
            try:
                await self._load_pending(predictors)
            finally:
                self._attempted.set()
            if self._pending:
                await asyncio.sleep(RETRY_SECONDS)

    async def wait_for_first_attempt(self) -> None:
        """Return when `load` has loaded every model or failed to, at the first attempt."""
        if self._pending:
            await self._attempted.wait()

    async def _load_pending(self, predictors: ModelCache) -> None:
        """Load the models that are not loaded, each once; log failures."""
        for reference in list(self._pending):
            try:
                await predictors.find(ModelTarget(DEFAULT_TENANT, reference))
                self._pending.remove(reference)
            except (XcrayError, OSError) as error:
                LOGGER.warning(
                    "a model of XCRAY_PRELOAD can't be loaded",
                    extra={"model": reference, "detail": str(error)},
                )
