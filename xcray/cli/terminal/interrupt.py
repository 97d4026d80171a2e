"""Handling of Ctrl-C: the first stops gracefully and keeps finished work, the second exits."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from xcray.cli.terminal.output import print_note
from xcray.cli.terminal.progress import Reporter, make_reporter
from xcray.errors import Stopped

if TYPE_CHECKING:
    import threading

    from xcray.workers.pool import StopFlag


@contextmanager
def stop_on_interrupt(flag: StopFlag | threading.Event) -> Iterator[None]:
    """Set `flag` on the first SIGINT or SIGTERM; then restore the previous handlers."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        text = "stopping: finished work is kept; press Ctrl-C again to exit immediately"
        print_note(text, always=True)
        flag.set()
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        restore()


def run_directory(run_dir: Path | None, out: Path) -> Path:
    """Return the directory of a resumable run: `run_dir` if given, else OUT.run next to OUT."""
    return run_dir or out.with_name(f"{out.name}.run")


@dataclass
class ResumableRun:
    """What the work of a command gets; keep: whether finished work stays when it has ended."""

    folder: Path
    progress: Reporter
    stop: StopFlag
    keep: bool


@contextmanager
def resumable_run(run_dir: Path | None, out: Path, finished: str) -> Iterator[ResumableRun]:
    """Run with progress, compilation notes and Ctrl-C handling in a `run_directory`.

    That is removed at the end, unless the user named it. finished: what it holds, such as "labels".
    Raises Stopped with a hint on how to resume.
    """
    from xcray.cli.terminal.compilation import compilation_note
    from xcray.workers.pool import StopFlag

    folder, flag = run_directory(run_dir, out), StopFlag()
    try:
        with compilation_note(), stop_on_interrupt(flag), make_reporter() as show:
            run = ResumableRun(folder, show, flag, keep=run_dir is not None)
            yield run
    except Stopped as stopped:
        hint = f"finished {finished} are kept in {folder}; run the same command again to resume"
        raise Stopped(stopped.message, hint=hint if folder.exists() else None) from None
    if not run.keep:
        shutil.rmtree(folder, ignore_errors=True)
