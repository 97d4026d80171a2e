"""Notes on stderr when a command compiles kernels, as the first ones after installation do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from numba.core import event

from xcray.cli.terminal.output import print_note
from xcray.kernels.compilation import CompilationCount

NOTE = "compiling kernels, once; later commands load them (xcray compile-kernels compiles all)"


class CompilationNote(CompilationCount):
    """Prints the note when the first kernel is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self._printed = False

    def on_start(self, event: event.Event) -> None:
        """Print the note, if this is the first kernel."""
        super().on_start(event)
        with self._lock:
            printed, self._printed = self._printed, True
        if not printed:
            print_note(NOTE)

    def print_total(self) -> None:
        """Print how many kernels were compiled, if any."""
        if self.n_kernels:
            plural = "" if self.n_kernels == 1 else "s"
            print_note(f"compiled {self.n_kernels} kernel{plural} in {self.seconds:.1f} s")


@contextmanager
def compilation_note() -> Iterator[None]:
    """Print notes about the kernels that this process compiles in this context."""
    note = CompilationNote()
    with event.install_listener("numba:compile", note):
        yield
    note.print_total()
