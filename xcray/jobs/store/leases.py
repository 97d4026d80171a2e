"""Leases are watched, not dated: whoever sees one unrenewed for its length, on its own steady clock, may call it lost.

Wall clocks jump and differ between machines; how long something stayed the same is what each observer can measure by itself. The
price: after an observer starts, it first has to watch for that long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any


class Watch:
    """What one process has seen of leases. `steady` gives seconds that never jump. May be used from any thread."""

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._seen: dict[Hashable, tuple[Any, float]] = {}
        self._lock = threading.Lock()

    def lost(self, leases: Mapping[Hashable, tuple[Any, float]]) -> set[Hashable]:
        """Names of `leases` (name -> state, seconds) whose state was the same for their seconds. Those not named are forgotten."""
        now = self._steady()
        with self._lock:
            self._seen = {
                name: self._since(name, state, now) for name, (state, _) in leases.items()
            }
            return {
                name for name, (_, seconds) in leases.items() if now - self._seen[name][1] > seconds
            }

    def one_lost(self, name: Hashable, state: Any, seconds: float) -> bool:
        """The same for one lease; others stay as they were seen."""
        now = self._steady()
        with self._lock:
            self._seen[name] = self._since(name, state, now)
            return now - self._seen[name][1] > seconds

    def forget(self, names: Iterable[Hashable]) -> None:
        """No longer watch these."""
        with self._lock:
            for name in names:
                self._seen.pop(name, None)

    def _since(self, name: Hashable, state: Any, now: float) -> tuple[Any, float]:
        """The state and when it was first seen."""
        seen = self._seen.get(name)
        return seen if seen is not None and seen[0] == state else (state, now)
