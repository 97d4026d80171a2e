"""Leader election: of all processes that compete for a role, one is the leader until it fails."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from xcray.errors import Unavailable
from xcray.jobs.store.leader_leases import LeaderLeaseTable

LOG: Final = logging.getLogger(__name__)


class LeaderElection:
    """Leadership of a role for which several processes compete.

    A leader calls `acquire_or_renew` more often than once per lease, from any thread. It steps down
    before others can take the role: when the store has not confirmed it for two thirds of a lease
    of its own clock.
    """

    def __init__(
        self,
        leases: LeaderLeaseTable,
        role: str,
        owner: str,
        lease_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leases = leases
        self._role = role
        self._owner = owner
        self._lease = lease_seconds
        self._monotonic = monotonic
        self._requested_at = self._confirmed_at = -float("inf")
        self._lock = threading.Lock()
        self.term: int | None = None

    def acquire_or_renew(self) -> bool:
        """Return whether this process is the leader now.

        Queries the store at most six times per lease.
        """
        with self._lock:
            now = self._monotonic()
            if now - self._requested_at >= self._lease / 6:
                self._requested_at = now
                self._renew(now)
            if self.term is not None and now - self._confirmed_at > self._lease * 2 / 3:
                LOG.warning(
                    "%s: the store has not answered for too long; another process can lead now",
                    self._role,
                )
                self.term = None
            return self.term is not None

    def release(self) -> None:
        """Release the role, so that another process gets it at once."""
        if self.term is not None:
            self.term = None
            try:
                self._leases.release(self._role, self._owner)
            except Unavailable as error:
                # Another process gets the role when the lease expires.
                LOG.warning("%s: %s", self._role, error.message)

    def _renew(self, now: float) -> None:
        """Acquire the role or renew its lease."""
        try:
            term = self._leases.try_acquire(self._role, self._owner, self._lease)
        except Unavailable as error:
            LOG.warning("%s: %s", self._role, error.message)
            return
        if term != self.term:
            LOG.info(
                "%s: %s",
                self._role,
                "another process is the leader" if term is None else f"leader in term {term}",
            )
        self.term, self._confirmed_at = term, now


class AlwaysLeader:
    """Leadership without competition: the process holds the lock of the home."""

    term: int | None = None  # no term is needed without competitors

    def acquire_or_renew(self) -> bool:
        """Return True."""
        return True

    def release(self) -> None:
        """Do nothing: no other process waits for the role."""


Leadership: TypeAlias = LeaderElection | AlwaysLeader  # a process's view of a leader role
