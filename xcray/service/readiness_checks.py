"""Readiness checks of one serving process, by reason code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from xcray.errors import Refused, Unavailable
from xcray.jobs.store.metric_deltas import QUEUE_POLLS
from xcray.jobs.store.statistics import StoreStatistics
from xcray.service import constants
from xcray.service.app_state import AppState
from xcray.service.observability.readiness import Check, Readiness
from xcray.service.supervision import has_space

BUILD_TIME_FACTOR: Final = 4  # x the processor time limit of a build, in wall time


def build_readiness(app_state: AppState) -> Readiness:
    """Return the readiness of a service.

    Requests need STORE, SCHEMA, DISK and MODELS. The others concern jobs or single models. Without
    a store, or with one that this program cannot use any more, predictions continue while cached
    keys are valid, so the service stays ready for that grace period.
    """
    required: dict[str, Check] = {
        "STORE": lambda: app_state.store.ping(),
        "SCHEMA": lambda: app_state.store.check_schema(),
        "DISK": lambda: _check_disk(app_state),
        "MODELS": app_state.preloading.check,
    }
    queue_check = StalledQueueCheck(
        lambda: app_state.store.statistics.read(), constants.RUNNER_STALE_SECONDS
    )
    optional: dict[str, Check] = {
        "RUNNER": queue_check.check,
        "BUILDER": lambda: _check_builds(app_state),
    }
    optional |= app_state.checks
    graces = dict.fromkeys(("STORE", "SCHEMA"), constants.KEYS_GRACE_SECONDS)
    return Readiness(required, optional, lambda: app_state.draining, graces=graces)


class StalledQueueCheck:
    """Check that the job queue is polled while jobs are pending.

    It watches the poll counter of the store, on the clock of this process.
    """

    def __init__(
        self,
        read_statistics: Callable[[], StoreStatistics],
        stale_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the check. stale_seconds: without a poll until the check fails."""
        self._read_statistics = read_statistics
        self._stale_seconds = stale_seconds
        self._clock = clock
        self._last_polls: float | None = None
        self._changed_at = clock()

    def check(self) -> None:
        """Raise Unavailable if jobs are pending and no runner polled for `stale_seconds`."""
        statistics, now = self._read_statistics(), self._clock()
        polls = statistics.counter_total(QUEUE_POLLS)
        if polls != self._last_polls or not statistics.longest_wait:
            self._last_polls, self._changed_at = polls, now
        elif now - self._changed_at > self._stale_seconds:
            raise Unavailable(
                "jobs are pending and no runner polls the queue: start `xcray runner`",
                code="RUNNER",
            )


def _check_builds(app_state: AppState) -> None:
    """Raise Unavailable if a data set was accepted so long ago that its build is overdue."""
    oldest = min(
        (path.stat().st_mtime for path in (app_state.home.path / "builds").glob("ds_*")),
        default=None,
    )
    if (
        oldest is not None
        and time.time() - oldest > BUILD_TIME_FACTOR * app_state.settings.build_seconds
    ):
        raise Unavailable(
            "accepted data sets are not being built: check that a leader process is running",
            code="BUILDER",
        )


def _check_disk(app_state: AppState) -> None:
    """Raise Refused if less than half of the disk's reserve is left."""
    if not has_space(app_state.settings):
        raise Refused("the disk is nearly full", code="DISK_FULL")
