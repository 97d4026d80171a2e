"""Who does what only one process may do: one of those that stand for a post has it, until it leaves or falls silent."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from xcray.errors import Unavailable

LOG: Final = logging.getLogger(__name__)


class Duties(Protocol):
    """What a post needs of the store."""

    def stand_for(self, duty: str, owner: str, lease_seconds: float) -> int | None:
        """The term in which `owner` has the duty, or None while another has it."""

    def resign(self, duty: str, owner: str) -> None:
        """Give the duty up, if it is the owner's."""


class Post(Protocol):
    """What holders of a duty ask."""

    term: int | None

    def hold(self) -> bool:
        """Whether the duty is ours now."""

    def leave(self) -> None:
        """Give it up."""


class Elected:
    """One process' view of a duty that many stand for.

    A holder calls `hold` more often than once a lease, from any thread. It counts itself out before others may count it out:
    when the store has not confirmed it for two thirds of a lease of its own clock.
    """

    def __init__(
        self,
        store: Duties,
        duty: str,
        owner: str,
        lease_seconds: float,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._duty = duty
        self._owner = owner
        self._lease = lease_seconds
        self._steady = steady
        self._asked = self._confirmed = -float("inf")
        self._lock = threading.Lock()
        self.term: int | None = None

    def hold(self) -> bool:
        """Whether the duty is ours now. Asks the store six times a lease at most."""
        with self._lock:
            now = self._steady()
            if now - self._asked >= self._lease / 6:
                self._asked = now
                self._ask(now)
            if self.term is not None and now - self._confirmed > self._lease * 2 / 3:
                LOG.warning(
                    "%s: the store has not answered for too long; another may have the duty now",
                    self._duty,
                )
                self.term = None
            return self.term is not None

    def leave(self) -> None:
        """Give the duty up, so that another has it at once."""
        if self.term is not None:
            self.term = None
            try:
                self._store.resign(self._duty, self._owner)
            except Unavailable as error:
                LOG.warning(
                    "%s: %s", self._duty, error.message
                )  # then it passes on when the lease is over

    def _ask(self, now: float) -> None:
        """Stand, or stand again."""
        try:
            term = self._store.stand_for(self._duty, self._owner, self._lease)
        except Unavailable as error:
            LOG.warning("%s: %s", self._duty, error.message)
            return
        if term != self.term:
            LOG.info(
                "%s: %s",
                self._duty,
                "another has the duty" if term is None else f"the duty is ours, term {term}",
            )
        self.term, self._confirmed = term, now


class OnlyOne:
    """The post of a process that nobody can compete with: it holds the home's lock."""

    term: int | None = None  # there are no others to be told from

    def hold(self) -> bool:
        """Always."""
        return True

    def leave(self) -> None:
        """Nothing: nobody waits for it."""
