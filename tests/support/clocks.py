"""Clocks that tests move forward."""

from __future__ import annotations

import time


class WallClock:
    """The time of day plus `ahead`, the seconds by which a test has moved it forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


class Clock:
    """A clock that the test advances by its attribute `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds
