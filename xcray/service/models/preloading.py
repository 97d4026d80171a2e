"""Models that are loaded before the service says that it is ready."""

from __future__ import annotations

import asyncio
from typing import Final

from xcray.errors import Unavailable, XcrayError
from xcray.jobs.home import DEFAULT_TENANT
from xcray.service.models.cache import PredictorCache, Wanted
from xcray.service.observability.request_log import LOGGER

AGAIN: Final = 5.0  # seconds until a model that could not be loaded is tried again


class Preloading:
    """The models that the operator wants loaded before requests come."""

    def __init__(self, references: tuple[str, ...] = ()) -> None:
        self._left = list(references)

    def check(self) -> None:
        """Raise Unavailable while one is not loaded."""
        if self._left:
            raise Unavailable(
                f"{len(self._left)} of the models in XCRAY_PRELOAD are not loaded yet",
                code="MODELS",
            )

    async def load(self, predictors: PredictorCache) -> None:
        """Load all of them; those that can't be are tried again and again."""
        while self._left:
            for reference in list(self._left):
                try:
                    await predictors.find(Wanted(DEFAULT_TENANT, reference))
                    self._left.remove(reference)
                except (XcrayError, OSError) as error:
                    LOGGER.warning(
                        "a model of XCRAY_PRELOAD can't be loaded",
                        extra={"model": reference, "detail": str(error)},
                    )
            if self._left:
                await asyncio.sleep(AGAIN)
