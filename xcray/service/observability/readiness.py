"""Readiness: checks that can hang run in the background, and callers get the result at once.

A check passes by returning and fails by raising. A check that runs for more than HANG_SECONDS
counts as failed until it returns. So `refresh` returns within REFRESH_TIMEOUT_SECONDS with the
current status, even if a database or a disk hangs. A required check with a grace period first makes
the service degraded, and unready only after that period. Otherwise a restart of the database would
take all replicas out of the load balancer at once, although they could still answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from xcray.service.observability.probe import BackgroundProbe
from xcray.service.observability.request_log import LOGGER

DRAINING: Final = "DRAINING"
REFRESH_TIMEOUT_SECONDS: Final = 0.06  # /readyz answers within 0.1 s
HANG_SECONDS: Final = 2.0  # a check that runs longer counts as failed
STALE_SECONDS: Final = 10.0  # an older result is ignored
WATCH_SECONDS: Final = 2.0  # between refreshes of `watch`
WAIT_STEP_SECONDS: Final = 0.005

Check = Callable[[], None]


class ReadinessStatus(NamedTuple):
    """Status of the checks.

    reasons: codes why requests are not accepted, empty if they are. degraded: codes of other
    failing checks.
    """

    reasons: list[str]
    degraded: list[str]


class Readiness:
    """Runs the checks of one process."""

    def __init__(
        self,
        required: Mapping[str, Check],
        optional: Mapping[str, Check],
        draining: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        *,
        graces: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Create it.

        required: by code, the checks without which requests cannot be answered. optional: checks
        that only some requests, or jobs, need. graces: by code, how many seconds requests are
        answered after a required check last passed.
        """
        self._required = {
            code: BackgroundProbe(f"xcray-check-{code}", check, clock)
            for code, check in required.items()
        }
        self._optional = {
            code: BackgroundProbe(f"xcray-check-{code}", check, clock)
            for code, check in optional.items()
        }
        self._draining = draining
        self._clock = clock
        self._graces = dict(graces)
        self._last_passed = dict[str, float]()
        self.timeout = REFRESH_TIMEOUT_SECONDS
        self._logged: dict[str, bool] = {}

    async def refresh(self, timeout: float | None = None) -> ReadinessStatus:
        """Run all checks and return the status within `timeout` seconds.

        A check that takes longer contributes its previous result.
        """
        events = [each.refresh() for each in (*self._required.values(), *self._optional.values())]
        until = time.monotonic() + (self.timeout if timeout is None else timeout)
        while not all(event.is_set() for event in events) and time.monotonic() < until:
            await asyncio.sleep(WAIT_STEP_SECONDS)
        return self.status()

    def status(self) -> ReadinessStatus:
        """Return the status of the latest results."""
        failing = [code for code, check in self._required.items() if not self._passes(code, check)]
        tolerated = [code for code in failing if self._is_in_grace(code)]
        reasons = [DRAINING] if self._draining() else []
        reasons += [code for code in failing if code not in tolerated]
        return ReadinessStatus(
            reasons,
            tolerated
            + [code for code, check in self._optional.items() if not self._passes(code, check)],
        )

    def failing_checks(self) -> dict[str, bool]:
        """Return for each check whether it failed in its latest result."""
        checks = {**self._required, **self._optional}
        return {
            DRAINING: self._draining(),
            **{code: not self._passes(code, check) for code, check in checks.items()},
        }

    async def watch(self) -> None:
        """Refresh every few seconds, so that results are fresh and changes are logged."""
        while True:
            await self.refresh()
            await asyncio.sleep(WATCH_SECONDS)

    def _passes(self, code: str, check: BackgroundProbe[None]) -> bool:
        """Return whether a check passed recently and does not hang; log a change."""
        result = check.latest()
        passes = (
            result.error is None
            and result.age_seconds < STALE_SECONDS
            and result.pending_seconds < HANG_SECONDS
        )
        if passes:
            self._last_passed[code] = self._clock() - result.age_seconds
        # Without a recent result there is nothing to log.
        is_known = result.pending_seconds >= HANG_SECONDS or result.age_seconds < STALE_SECONDS
        if is_known and self._logged.get(code, True) != passes:
            reason = (
                f"no answer for {result.pending_seconds:.1f} s"
                if result.error is None
                else str(result.error)
            )
            LOGGER.log(
                20 if passes else 30,
                "a check passes again" if passes else "a check fails",
                extra={"check": code, "why": reason},
            )
            self._logged[code] = passes
        return passes

    def _is_in_grace(self, code: str) -> bool:
        """Return whether a failing required check is still in its grace period."""
        return code in self._last_passed and self._clock() - self._last_passed[
            code
        ] < self._graces.get(code, 0.0)
