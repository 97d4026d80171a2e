"""Waiting for a state; the limit of time only detects hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(
    wish: Callable[[], Any], seconds: float = 600.0, tick: Callable[[], Any] = lambda: None
) -> Any:
    """Return the first true value of `wish`; `tick` is called between two looks."""
    deadline = time.monotonic() + seconds
    while not (value := wish()):
        assert time.monotonic() < deadline, "the condition did not become true in time"
        tick()
        time.sleep(0.02)
    return value
