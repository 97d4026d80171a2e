"""What readiness asks: the checks of one process that answers requests, by reason code."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Final

from xcray.errors import Conflict, Refused, Unavailable
from xcray.jobs.figures import StoreFigures
from xcray.jobs.revision import NEWER
from xcray.jobs.tally import LOOKS
from xcray.service.readiness import Check, Readiness
from xcray.service.state import Rooms

BUILDS: Final = 4  # times the processor seconds of a build: one may take twice that by the clock


def readiness_of(rooms: Rooms) -> Readiness:
    """The readiness of a service.

    Requests need STORE, SCHEMA, DISK, MODELS, and what the process that keeps us says (`rooms.needs`); RUNNER and `rooms.checks`
    are what trainings or some models miss.
    """
    schema = Schema(lambda: rooms.store.check_schema(), rooms.settings.keys_grace_seconds)
    needed: dict[str, Check] = {
        "STORE": lambda: rooms.store.ping(),
        "SCHEMA": schema.check,
        "DISK": lambda: _check_disk(rooms),
        "MODELS": rooms.preloading.check,
        **rooms.needs,
    }
    idle = Idle(lambda: rooms.store.figures(), rooms.settings.runner_silence_seconds)
    others: dict[str, Check] = {"RUNNER": idle.check, "BUILDER": lambda: _check_builds(rooms), NEWER: schema.newer}
    others |= rooms.checks
    others |= {carrier.code: carrier.check for carrier in rooms.carriers}
    return Readiness(needed, others, lambda: rooms.draining)


class Schema:
    """Whether the store serves this program.

    Once it is too new for it, only predictions are answered, by keys that were known: so requests are welcome while these are
    believed, and no longer.
    """

    def __init__(self, ask: Callable[[], None], grace: float, clock: Callable[[], float] = time.monotonic) -> None:
        """ask: raises Conflict when it does not. grace: seconds for which keys are believed."""
        self._ask, self._grace, self._clock = ask, grace, clock
        self._since: float | None = None

    def newer(self) -> None:
        """Raise Conflict when the store serves newer programs alone."""
        try:
            self._ask()
        except Conflict as error:
            if error.code == NEWER:
                raise

    def check(self) -> None:
        """Raise Conflict when the store is too old, or has been too new for longer than the grace."""
        try:
            self._ask()
            self._since = None
        except Conflict as error:
            self._since = self._clock() if self._since is None else self._since
            if error.code != NEWER or self._clock() - self._since >= self._grace:
                raise


class Idle:
    """Whether jobs wait that nobody looks at: the store's count of looks at the queue stands still. Judged by our own clock."""

    def __init__(self, ask: Callable[[], StoreFigures], silence: float, clock: Callable[[], float] = time.monotonic) -> None:
        """silence: seconds without a look after which nobody is there."""
        self._ask, self._silence, self._clock = ask, silence, clock
        self._seen: float | None = None
        self._since = clock()

    def check(self) -> None:
        """Raise Unavailable when jobs wait and no runner has looked at the queue for `silence` seconds."""
        found, now = self._ask(), self._clock()
        looks = found.counter(LOOKS)
        if looks != self._seen or not found.waiting:
            self._seen, self._since = looks, now
        elif now - self._since > self._silence:
            raise Unavailable("jobs wait and no runner looks at the queue: start `xcray runner`", code="RUNNER")


def _check_builds(rooms: Rooms) -> None:
    """Raise Unavailable when a data set was accepted so long ago that its build would have ended twice."""
    oldest = min((path.stat().st_mtime for path in (rooms.home.path / "builds").glob("ds_*")), default=None)
    if oldest is not None and time.time() - oldest > BUILDS * rooms.settings.build_seconds:
        raise Unavailable("data sets wait to be built for very long: is there a process that leads?", code="BUILDER")


def _check_disk(rooms: Rooms) -> None:
    """Raise Refused when less than half of the disk's reserve is left."""
    if shutil.disk_usage(rooms.home.path).free < rooms.settings.disk_reserve_bytes // 2:
        raise Refused("the disk is nearly full", code="DISK_FULL")
