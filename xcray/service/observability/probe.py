"""What was found lately: questions that may hang are asked in threads, and whoever wants the answer never waits long for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Found(NamedTuple, Generic[T]):
    """value: of the newest answer, None when there was none or it was an error; error: what was raised; age: seconds since it came,
    infinite while none has; waiting: seconds that the question under way has been waiting for its answer, 0 without one."""

    value: T | None
    error: Exception | None
    age: float
    waiting: float


class Lately(Generic[T]):
    """One question, asked by at most one thread at a time: what hangs holds one thread, however often somebody wants to know."""

    def __init__(
        self, name: str, ask: Callable[[], T], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """name: of the thread, for people who look at stacks. ask: may take any time, and raise."""
        self._name = name
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._value: T | None = None
        self._error: Exception | None = None
        self._came: float | None = None
        self._since: float | None = None  # when the question under way was asked
        self._done = threading.Event()

    def wonder(self) -> threading.Event:
        """Ask, unless that is under way; the event is set when the answer has come."""
        with self._lock:
            if self._since is None:
                self._since = self._clock()
                self._done = threading.Event()
                threading.Thread(
                    target=self._find, args=(self._done,), name=self._name, daemon=True
                ).start()
            return self._done

    def found(self) -> Found[T]:
        """The newest answer."""
        with self._lock:
            now = self._clock()
            age = float("inf") if self._came is None else now - self._came
            return Found(
                self._value, self._error, age, 0.0 if self._since is None else now - self._since
            )

    def soon(self, age: float, patience: float) -> Found[T]:
        """The newest answer; one older than `age` seconds is asked for again, and waited for, up to `patience` seconds."""
        if self.found().age > age:
            self.wonder().wait(patience)
        return self.found()

    def _find(self, done: threading.Event) -> None:
        """Ask in a thread of its own."""
        value: T | None = None
        error: Exception | None = None
        try:
            value = self._ask()
        except Exception as raised:  # it is the answer: whoever wants to know judges it
            error = raised
        with self._lock:
            self._value, self._error = value, error
            self._came, self._since = self._clock(), None
        done.set()
