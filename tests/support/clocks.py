"""Clocks that tests put on."""

from __future__ import annotations

import time


class WallClock:
    """The time of day, and how far the test has put it on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead
