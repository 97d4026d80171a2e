"""The parts of the service that answer predict requests."""

from __future__ import annotations

from dataclasses import dataclass

from xcray.service.models.cache import ModelCache
from xcray.service.models.registries import Registries
from xcray.service.observability.metrics import Metrics
from xcray.service.prediction.batcher import Batcher
from xcray.service.prediction.shadow import ShadowRunner
from xcray.service.settings import Settings


@dataclass(frozen=True)
class PredictionServices:
    """What a prediction needs. registries: for the label sets of filters."""

    settings: Settings
    registries: Registries
    model_cache: ModelCache
    batcher: Batcher
    shadows: ShadowRunner
    metrics: Metrics

    def close(self) -> None:
        """Close the parts that have threads."""
        self.model_cache.close()
        self.shadows.close()
        self.batcher.close()
