"""A note on stderr when a command compiles kernels, as the first ones after installation do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from numba.core import event

from xcray.cli.terminal.output import print_note

NOTE = "compiling kernels, once; later commands load them (xcray compile-kernels compiles all)"


class CompilationNote(event.Listener):
    """Prints the note when the first kernel is compiled; kernels loaded from the cache are not."""

    def __init__(self) -> None:
        self._printed = False
        self._lock = threading.Lock()

    def on_start(self, event: event.Event) -> None:
        """Print the note, if this is the first kernel."""
        with self._lock:
            printed, self._printed = self._printed, True
        if not printed:
            print_note(NOTE)

    def on_end(self, event: event.Event) -> None:
        """Ignore the end of a compilation."""


@contextmanager
def compilation_note(quiet: bool) -> Iterator[None]:
    """Print the note when this process compiles its first kernel in this context."""
    if quiet:
        yield
        return
    with event.install_listener("numba:compile", CompilationNote()):
        yield
