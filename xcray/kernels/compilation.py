"""Counts of the kernels that this process compiles, as the first work after installation does."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from numba.core import event

COMPILING: Final = "compiling kernels"  # the note of work that waits for it
# Python's garbage collector while kernels are compiled: numba creates millions of objects that
# live on, and collections of all of them took an eighth of the time.
COLLECTION: Final = (10_000, 20, 100_000)


class CompilationCount(event.Listener):
    """Counts compiled kernels; kernels loaded from the cache are not among them.

    n_kernels, seconds: number and time of the compiled kernels. Functions that are compiled for a
    kernel are part of it. n_running: threads that compile now; meanwhile garbage is collected less
    often.
    """

    def __init__(self) -> None:
        """Create a listener for `numba:compile`."""
        self.n_kernels = 0
        self.seconds = 0.0
        self.n_running = 0
        self._lock = threading.Lock()
        self._usual_collection = gc.get_threshold()
        self._local = threading.local()

    def on_start(self, event: event.Event) -> None:
        """Note when a function begins."""
        started = self._local.__dict__.setdefault("started", [])
        started.append(time.monotonic())
        if len(started) == 1:
            with self._lock:
                self.n_running += 1
                gc.set_threshold(*COLLECTION)

    def on_end(self, event: event.Event) -> None:
        """Count a kernel when it is complete."""
        running = self._local.__dict__.get("started")
        if not running:  # the function began before the listener was installed
            return
        started = running.pop()
        if not running:
            with self._lock:
                self.n_kernels += 1
                self.n_running -= 1
                if not self.n_running:
                    gc.set_threshold(*self._usual_collection)
                self.seconds += time.monotonic() - started

    def note(self) -> str:
        """Return a note while kernels are compiled: their number so far; otherwise nothing."""
        if not self.n_running:
            return ""
        return f"{COMPILING}, once: {self.n_kernels} so far" if self.n_kernels else COMPILING


@contextmanager
def counted_compilation() -> Iterator[CompilationCount]:
    """Yield the count of the kernels that this process compiles in this context."""
    count = CompilationCount()
    with event.install_listener("numba:compile", count):
        yield count
