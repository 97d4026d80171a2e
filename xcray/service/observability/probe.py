"""Background probe: a check that can hang runs in a thread, and its last result is cached."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class ProbeResult(NamedTuple, Generic[T]):
    """Newest result of a probe.

    value: None if there is no result yet or it is an error. error: the exception raised.
    age_seconds: since the result arrived, infinite without one. pending_seconds: how long the
    running call has taken so far, 0 if none is running.
    """

    value: T | None
    error: Exception | None
    age_seconds: float
    pending_seconds: float


class BackgroundProbe(Generic[T]):
    """One function, called by at most one thread at a time.

    A call that hangs blocks one thread, however often callers request the result.
    """

    def __init__(
        self, name: str, run_check: Callable[[], T], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the probe.

        name: of the thread, for stack dumps. run_check: can take any time, and raise.
        """
        self._name = name
        self._run_check = run_check
        self._clock = clock
        self._lock = threading.Lock()
        self._value: T | None = None
        self._error: Exception | None = None
        self._completed_at: float | None = None
        self._started_at: float | None = None  # of the running call
        self._done = threading.Event()

    def refresh(self) -> threading.Event:
        """Start a call unless one is running; the event is set when it ends."""
        with self._lock:
            if self._started_at is None:
                self._started_at = self._clock()
                self._done = threading.Event()
                threading.Thread(
                    target=self._run, args=(self._done,), name=self._name, daemon=True
                ).start()
            return self._done

    def latest(self) -> ProbeResult[T]:
        """Return the newest result."""
        with self._lock:
            now = self._clock()
            age = float("inf") if self._completed_at is None else now - self._completed_at
            return ProbeResult(
                self._value,
                self._error,
                age,
                0.0 if self._started_at is None else now - self._started_at,
            )

    def get(self, max_age: float, timeout: float) -> ProbeResult[T]:
        """Return the newest result.

        One older than `max_age` seconds is refreshed first, for up to `timeout` seconds.
        """
        if self.latest().age_seconds > max_age:
            self.refresh().wait(timeout)
        return self.latest()

    def _run(self, done: threading.Event) -> None:
        """Run the check in a thread of its own."""
        value: T | None = None
        error: Exception | None = None
        try:
            value = self._run_check()
        # The error is the result; callers decide about it.
        except Exception as raised:
            error = raised
        with self._lock:
            self._value, self._error = value, error
            self._completed_at, self._started_at = self._clock(), None
        done.set()
