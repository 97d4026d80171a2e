"""Clocks that tests move forward."""

from __future__ import annotations

import time


class WallClock:
    """The time of day plus `ahead`, the seconds by which a test has moved it forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead
