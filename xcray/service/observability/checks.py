"""What readiness asks: the checks of one process that answers requests, by reason code."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Final

from xcray.errors import Refused, Unavailable
from xcray.jobs.store.metric_deltas import LOOKS
from xcray.jobs.store.statistics import StoreFigures
from xcray.service.app_state import Rooms
from xcray.service.observability.readiness import Check, Readiness

BUILDS: Final = 4  # times the processor seconds of a build: one may take twice that by the clock


def readiness_of(rooms: Rooms) -> Readiness:
    """The readiness of a service.

    Requests need STORE, SCHEMA, DISK, MODELS, and what the process that keeps us says (`rooms.needs`); RUNNER and `rooms.checks`
    are what trainings or some models miss. Without a store, or with one that does not serve this program any more, predictions are
    answered while keys that were known are believed: so requests are welcome for so long.
    """
    needed: dict[str, Check] = {
        "STORE": lambda: rooms.store.ping(),
        "SCHEMA": lambda: rooms.store.check_schema(),
        "DISK": lambda: _check_disk(rooms),
        "MODELS": rooms.preloading.check,
        **rooms.needs,
    }
    idle = Idle(lambda: rooms.store.figures(), rooms.settings.runner_silence_seconds)
    others: dict[str, Check] = {"RUNNER": idle.check, "BUILDER": lambda: _check_builds(rooms)}
    others |= rooms.checks
    others |= {carrier.code: carrier.check for carrier in rooms.carriers}
    graces = dict.fromkeys(("STORE", "SCHEMA"), rooms.settings.keys_grace_seconds)
    return Readiness(needed, others, lambda: rooms.draining, graces=graces)


class Idle:
    """Whether jobs wait that nobody looks at: the store's count of looks at the queue stands still. Judged by our own clock."""

    def __init__(
        self,
        ask: Callable[[], StoreFigures],
        silence: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """silence: seconds without a look after which nobody is there."""
        self._ask = ask
        self._silence = silence
        self._clock = clock
        self._seen: float | None = None
        self._since = clock()

    def check(self) -> None:
        """Raise Unavailable when jobs wait and no runner has looked at the queue for `silence` seconds."""
        found, now = self._ask(), self._clock()
        looks = found.counter(LOOKS)
        if looks != self._seen or not found.waiting:
            self._seen, self._since = looks, now
        elif now - self._since > self._silence:
            raise Unavailable(
                "jobs wait and no runner looks at the queue: start `xcray runner`", code="RUNNER"
            )


def _check_builds(rooms: Rooms) -> None:
    """Raise Unavailable when a data set was accepted so long ago that its build would have ended twice."""
    oldest = min(
        (path.stat().st_mtime for path in (rooms.home.path / "builds").glob("ds_*")), default=None
    )
    if oldest is not None and time.time() - oldest > BUILDS * rooms.settings.build_seconds:
        raise Unavailable(
            "data sets wait to be built for very long: is there a process that leads?",
            code="BUILDER",
        )


def _check_disk(rooms: Rooms) -> None:
    """Raise Refused when less than half of the disk's reserve is left."""
    if shutil.disk_usage(rooms.home.path).free < rooms.settings.disk_reserve_bytes // 2:
        raise Refused("the disk is nearly full", code="DISK_FULL")
