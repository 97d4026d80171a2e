"""Clocks that tests move forward."""

from __future__ import annotations

import time


class WallClock:
    """The time of day when it was made, plus `ahead`, by which a test has moved it forward.

    Between these moves it stands still, so that no lease and no pause ends by itself.
    """

    def __init__(self) -> None:
        self.ahead = 0.0
        self._made = time.time()

    def __call__(self) -> float:
        return self._made + self.ahead


class Clock:
    """A clock that the test advances by its attribute `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds
