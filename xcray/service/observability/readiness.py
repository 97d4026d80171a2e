"""Whether requests are welcome, and what trainings miss: checks that may hang, asked in the background, answered at once.

A check passes by returning and fails by raising. One whose answer takes longer than HANGS seconds has failed until it answers. So
whatever stands still, a stopped database or a disk that does not come back, `look` returns within PATIENCE, with the truth. What a
process can do without for a while degrades it for so long, and makes it unready then: without that, a database that starts again
would take every replica out of its balancer at once, though all of them could answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from xcray.service.observability.probe import Lately
from xcray.service.observability.request_log import LOGGER

DRAINING: Final = "DRAINING"
PATIENCE: Final = 0.06  # seconds that an answer waits for newer findings: /readyz stays below 0.1
HANGS: Final = 2.0  # seconds after which a check that has not answered has failed
STALE: Final = 10.0  # seconds after which a finding says nothing any more
EVERY: Final = 2.0  # seconds between looks while nobody asks
STEP: Final = 0.005

Check = Callable[[], None]


class Standing(NamedTuple):
    """reasons: codes why requests are not welcome, none when they are; degraded: codes of what else is amiss."""

    reasons: list[str]
    degraded: list[str]


class Readiness:
    """Looks after the checks of one process."""

    def __init__(
        self,
        needed: Mapping[str, Check],
        others: Mapping[str, Check],
        draining: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        *,
        graces: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """needed: by code, what must hold for requests to be answered; others: what only some of them, or trainings, need. graces:
        seconds, by code, for which requests are answered although what is needed does not hold any more."""
        self._needed = {
            code: Lately(f"xcray-check-{code}", check, clock) for code, check in needed.items()
        }
        self._others = {
            code: Lately(f"xcray-check-{code}", check, clock) for code, check in others.items()
        }
        self._draining = draining
        self._clock = clock
        self._graces = dict(graces)
        self._held = dict[str, float]()  # and when it held last
        self.patience = PATIENCE
        self._known: dict[str, bool] = {}

    async def look(self, patience: float | None = None) -> Standing:
        """How things stand: as found now where that is found at once, else as found last. Returns within `patience` seconds."""
        questions = [each.wonder() for each in (*self._needed.values(), *self._others.values())]
        until = time.monotonic() + (self.patience if patience is None else patience)
        while not all(question.is_set() for question in questions) and time.monotonic() < until:
            await asyncio.sleep(STEP)
        return self.standing()

    def standing(self) -> Standing:
        """How things stood when last looked at."""
        lacking = [code for code, check in self._needed.items() if not self._holds(code, check)]
        bearable = [code for code in lacking if self._is_bearable(code)]
        reasons = [DRAINING] if self._draining() else []
        reasons += [code for code in lacking if code not in bearable]
        return Standing(
            reasons,
            bearable
            + [code for code, check in self._others.items() if not self._holds(code, check)],
        )

    def failing(self) -> dict[str, bool]:
        """Each check, and whether it failed when last looked at."""
        checks = {**self._needed, **self._others}
        return {
            DRAINING: self._draining(),
            **{code: not self._holds(code, check) for code, check in checks.items()},
        }

    async def watch(self) -> None:
        """Look every few seconds, so that findings are fresh and changes are logged, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    def _holds(self, code: str, check: Lately[None]) -> bool:
        """Whether a check has passed lately and does not hang; a change is logged."""
        found = check.found()
        holds = found.error is None and found.age < STALE and found.waiting < HANGS
        if holds:
            self._held[code] = self._clock() - found.age
        looked = (
            found.waiting >= HANGS or found.age < STALE
        )  # else nothing is known yet, and there is nothing to say
        if looked and self._known.get(code, True) != holds:
            why = (
                f"no answer for {found.waiting:.1f} s" if found.error is None else str(found.error)
            )
            LOGGER.log(
                20 if holds else 30,
                "a check passes again" if holds else "a check fails",
                extra={"check": code, "why": why},
            )
            self._known[code] = holds
        return holds

    def _is_bearable(self, code: str) -> bool:
        """Whether what is needed held so lately that requests can be answered without it."""
        return code in self._held and self._clock() - self._held[code] < self._graces.get(code, 0.0)
