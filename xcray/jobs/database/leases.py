"""Lease expiry by observation: a lease is lost if its state did not change for its length.

Each observer measures on its own monotonic clock, because wall clocks jump and differ between
machines. The price: an observer that starts must first watch for the length of the lease.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any


def process_name() -> str:
    """Return a unique name of this process that contains its host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


class LeaseWatcher:
    """One process's observations of leases, for any thread. `monotonic` gives seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._observations: dict[Hashable, tuple[Any, float]] = {}
        self._lock = threading.Lock()

    def expired_leases(self, leases: Mapping[Hashable, tuple[Any, float]]) -> set[Hashable]:
        """Return the names of leases whose state has not changed for their length.

        leases: name -> (state, seconds). Leases that are not listed are forgotten.
        """
        now = self._monotonic()
        with self._lock:
            self._observations = {
                name: self._first_seen(name, state, now) for name, (state, _) in leases.items()
            }
            return {
                name
                for name, (_, seconds) in leases.items()
                if now - self._observations[name][1] > seconds
            }

    def is_expired(self, name: Hashable, state: Any, seconds: float) -> bool:
        """Return the same for one lease; other observations are kept."""
        now = self._monotonic()
        with self._lock:
            self._observations[name] = self._first_seen(name, state, now)
            return now - self._observations[name][1] > seconds

    def _first_seen(self, name: Hashable, state: Any, now: float) -> tuple[Any, float]:
        """Return the state and the time when it was first seen."""
        observation = self._observations.get(name)
        return observation if observation is not None and observation[0] == state else (state, now)
