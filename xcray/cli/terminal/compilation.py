"""Notes on stderr when a command compiles kernels, as the first ones after installation do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from numba.core import event

from xcray.cli.terminal.output import print_note

NOTE = "compiling kernels, once; later commands load them (xcray compile-kernels compiles all)"


class CompilationNote(event.Listener):
    """Prints the note when the first kernel is compiled; kernels loaded from the cache are not.

    n_kernels, seconds: number and time of the compiled kernels. Functions that are compiled for a
    kernel are part of it.
    """

    def __init__(self, quiet: bool = False) -> None:
        """Create a listener for `numba:compile`. quiet: only count."""
        self.n_kernels = 0
        self.seconds = 0.0
        self._printed = quiet
        self._lock = threading.Lock()
        self._local = threading.local()

    def on_start(self, event: event.Event) -> None:
        """Print the note, if this is the first kernel."""
        started = self._local.__dict__.setdefault("started", [])
        started.append(time.monotonic())
        with self._lock:
            printed, self._printed = self._printed, True
        if not printed:
            print_note(NOTE)

    def on_end(self, event: event.Event) -> None:
        """Count a kernel when it is complete."""
        started = self._local.started.pop()
        if not self._local.started:
            with self._lock:
                self.n_kernels += 1
                self.seconds += time.monotonic() - started

    def print_total(self) -> None:
        """Print how many kernels were compiled, if any."""
        if self.n_kernels:
            plural = "" if self.n_kernels == 1 else "s"
            print_note(f"compiled {self.n_kernels} kernel{plural} in {self.seconds:.1f} s")


@contextmanager
def compilation_note(quiet: bool) -> Iterator[None]:
    """Print notes about the kernels that this process compiles in this context."""
    if quiet:
        yield
        return
    note = CompilationNote()
    with event.install_listener("numba:compile", note):
        yield
    note.print_total()
