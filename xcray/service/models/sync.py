"""Models kept alike with object storage while the service runs: what is published goes there, what is there comes here.

A thread of its own for each way, which stands back for requests; nothing waits for it: a job has ended when its model is published
here. Trouble is a degraded readiness (MIRROR, FOLLOW), a figure, a line in the log, and another try.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from xcray.errors import Stopped, Unavailable, XcrayError
from xcray.jobs.home import DEFAULT_TENANT, Home
from xcray.jobs.supervision.election import Post
from xcray.model.objectstore.client import Place
from xcray.model.objectstore.sync import Follower, Mirror, Shelf, Turn
from xcray.service.models.registries import Registries
from xcray.service.observability.metrics import Gauges
from xcray.service.observability.request_log import LOGGER
from xcray.service.settings import Settings
from xcray.system.processes import lower_thread_priority

MIRROR_SECONDS: Final = (
    5.0  # between two looks at what is published: at our own disk, while nothing is missing there
)
END_SECONDS: Final = 30.0


class Turning(Protocol):
    """A `Mirror` or a `Follower`."""

    def turn(self, stop: threading.Event | None = None) -> Turn:
        """Do what is due."""


class Carrier:
    """Turns one of them, again and again, while it may."""

    def __init__(
        self,
        code: str,
        make: Callable[[], Turning],
        may: Callable[[], bool],
        seconds: float,
        failed: Callable[[], None],
        lock: Path,
    ) -> None:
        """code: of its check. make: what is turned, made in the thread: it may ask a storage. seconds: between turns. lock: a file
        that one process of a home holds while it turns."""
        self.code = code
        self._make = make
        self._may = may
        self._seconds = seconds
        self._failed = failed
        self._lock = lock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"xcray-{code.lower()}", daemon=True)
        self._turning: Turning | None = None
        self._trouble: XcrayError | OSError | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; a transfer under way stops within a piece, and goes on with the next start."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)

    def check(self) -> None:
        """Raise Unavailable while the last turn had trouble."""
        trouble = self._trouble
        if trouble is not None:
            raise Unavailable(f"models and object storage are not alike: {trouble}", code=self.code)

    def turn(self) -> None:
        """Look once, if it is on us."""
        if not self._may():
            self._trouble = None
            return
        with _held(self._lock) as ours:
            try:
                if ours:
                    self._turning = self._turning or self._make()
                    self._note(self._turning.turn(self._stop).trouble)
            except Stopped:
                return
            except (XcrayError, OSError) as error:
                self._note(error)

    def _run(self) -> None:
        """The life of the thread."""
        lower_thread_priority()
        while not self._stop.is_set():
            self.turn()
            self._stop.wait(self._seconds)

    def _note(self, trouble: XcrayError | OSError | None) -> None:
        """Remember how it went, and say so when that is new."""
        if trouble is not None:
            self._failed()
            if str(trouble) != str(self._trouble):
                LOGGER.warning(
                    "models and object storage are not alike",
                    extra={"check": self.code, "detail": str(trouble)},
                )
        self._trouble = trouble


def carriers_of(
    settings: Settings, home: Home, registries: Registries, gauges: Gauges, post: Post | None
) -> list[Carrier]:
    """What a process carries by its settings. post: of who keeps the house, who alone mirrors; None: never this process."""
    out = []
    if settings.models_mirror is not None and post is not None:
        uri = settings.models_mirror

        def mirror() -> Turning:
            return Mirror(lambda: _shelves(registries), Place.at(uri), gauges.models_unmirrored.set)

        failed = gauges.model_transfer_failures.labels("mirror").inc
        out.append(
            Carrier(
                "MIRROR", mirror, post.hold, MIRROR_SECONDS, failed, home.models / ".mirror.lock"
            )
        )
    if settings.models_follow is not None:
        source = settings.models_follow

        def follow() -> Turning:
            return Follower(
                lambda tenant: registries.of(tenant or DEFAULT_TENANT),
                Place.at(source),
                gauges.models_unfollowed.set,
            )

        failed = gauges.model_transfer_failures.labels("follow").inc
        seconds = settings.models_follow_seconds
        out.append(
            Carrier("FOLLOW", follow, lambda: True, seconds, failed, home.models / ".follow.lock")
        )
    return out


def _shelves(registries: Registries) -> Iterator[Shelf]:
    """The models of all tenants."""
    for tenant in registries.tenants():
        yield Shelf(None if tenant == DEFAULT_TENANT else tenant, registries.of(tenant))


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Whether a lock file is ours for the length of a block; nobody waits for it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = True
        except BlockingIOError:
            ours = False
        yield ours
    finally:
        os.close(handle)
