"""Synchronisation of models with object storage while the service runs.

Published models are mirrored to the storage, and models in a followed storage are pulled. Each
direction has its own low-priority thread, and nothing waits for it: a job has finished when its
model is published locally. An error degrades readiness (MIRROR, FOLLOW), sets a metric, is logged,
and is retried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from xcray.errors import Stopped, Unavailable, XcrayError
from xcray.jobs.home import DEFAULT_TENANT, Home
from xcray.jobs.supervision.election import Leadership
from xcray.model.objectstore.sync import Follower, Mirror, TenantModels
from xcray.service import constants
from xcray.service.models.registries import Registries
from xcray.service.observability.metrics import Metrics
from xcray.service.observability.request_log import LOGGER
from xcray.service.settings import Settings
from xcray.storage.objectstore.client import StoragePath
from xcray.system.file_lock import try_lock
from xcray.system.processes import lower_thread_priority

# interval of checks for published models; reads only the local disk while nothing is missing
MIRROR_SECONDS: Final = 5.0
JOIN_SECONDS: Final = 30.0  # limit of the wait for the thread when the worker is closed


class SyncWorker:
    """Thread that synchronises periodically while it is enabled."""

    def __init__(
        self,
        code: str,
        create: Callable[[], Mirror | Follower],
        is_enabled: Callable[[], bool],
        seconds: float,
        on_failure: Callable[[], None],
        lock: Path,
    ) -> None:
        """Create a worker; `start` starts its thread.

        code: of its readiness check. create: creates the syncable, in the thread, because it can
        access the storage. seconds: interval. lock: a file that one process of a home locks while
        it synchronises.
        """
        self.code = code
        self._make = create
        self._may = is_enabled
        self._seconds = seconds
        self._failed = on_failure
        self._lock = lock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"xcray-{code.lower()}", daemon=True)
        self._syncable: Mirror | Follower | None = None
        self._error: XcrayError | OSError | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread.

        A running transfer stops within one part and resumes after the next start.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)

    def check(self) -> None:
        """Raise Unavailable while the last synchronisation failed."""
        error = self._error
        if error is not None:
            raise Unavailable(
                f"models are not in sync with object storage: {error}", code=self.code
            )

    def sync_once(self) -> None:
        """Synchronise once, if enabled and if no other process does."""
        if not self._may():
            self._error = None
            return
        with open(self._lock, "ab") as lock:
            try:
                if try_lock(lock):
                    self._syncable = self._syncable or self._make()
                    self._record_error(self._syncable.sync(self._stop).error)
            except Stopped:
                return
            except (XcrayError, OSError) as error:
                self._record_error(error)

    def _run(self) -> None:
        """Run the thread."""
        lower_thread_priority()
        while not self._stop.is_set():
            self.sync_once()
            self._stop.wait(self._seconds)

    def _record_error(self, error: XcrayError | OSError | None) -> None:
        """Store the error of the last synchronisation (None for success); log a new one."""
        if error is not None:
            self._failed()
            if str(error) != str(self._error):
                LOGGER.warning(
                    "models are not in sync with object storage",
                    extra={"check": self.code, "detail": str(error)},
                )
        self._error = error


def sync_workers(
    settings: Settings,
    home: Home,
    registries: Registries,
    metrics: Metrics,
    leadership: Leadership | None,
) -> list[SyncWorker]:
    """Return the workers that the settings require.

    leadership: of the maintenance leader, which alone mirrors; None: this process never does.
    """
    workers = []

    def pending(direction: str) -> Callable[[float], None]:
        """Return the setter of the number of models that wait to be copied in a direction."""
        return metrics.model_sync_pending.labels(direction).set

    if settings.models_mirror is not None and leadership is not None:
        uri = settings.models_mirror

        def mirror() -> Mirror:
            return Mirror(
                lambda: _tenant_registries(registries), StoragePath.parse(uri), pending("mirror")
            )

        failed = metrics.model_transfer_failures.labels("mirror").inc
        workers.append(
            SyncWorker(
                "MIRROR",
                mirror,
                leadership.acquire_or_renew,
                MIRROR_SECONDS,
                failed,
                home.models / ".mirror.lock",
            )
        )
    if settings.models_follow is not None:
        source = settings.models_follow

        def follow() -> Follower:
            return Follower(
                lambda tenant: registries.of(tenant or DEFAULT_TENANT),
                StoragePath.parse(source),
                pending("follow"),
            )

        failed = metrics.model_transfer_failures.labels("follow").inc
        seconds = constants.MODELS_FOLLOW_SECONDS
        workers.append(
            SyncWorker(
                "FOLLOW", follow, lambda: True, seconds, failed, home.models / ".follow.lock"
            )
        )
    return workers


def _tenant_registries(registries: Registries) -> Iterator[TenantModels]:
    """Yield the registries of all tenants."""
    for tenant in registries.tenants():
        yield TenantModels(None if tenant == DEFAULT_TENANT else tenant, registries.of(tenant))
