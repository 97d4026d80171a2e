"""Logs that can't fill the disk: head and tail stay, and what was left out between them is told in the log itself.

Writers append (O_APPEND), so the file can be cut while they write: they go on at its new end. Lines written in the very moment of
the cut are among those left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

HEAD: Final = 0.2  # of the bound: how a runner started
TAIL: Final = 0.4  # how it ended; the rest is room, so that cuts are rare
MARK: Final = "--- {} bytes of this log were left out here ---\n"
MARKED: Final = re.compile(rb"--- (\d+) bytes of this log were left out here ---\n")


def bound_log(path: Path, most_bytes: int) -> int:
    """Cut the middle out of a log larger than `most_bytes`; how many bytes went, 0 when it was not too large or is not there."""
    try:
        with open(path, "r+b") as log:
            size = log.seek(0, os.SEEK_END)
            return _cut(log.fileno(), size, most_bytes) if size > most_bytes else 0
    except FileNotFoundError:
        return 0


def _cut(log: int, size: int, most: int) -> int:
    """Leave the first lines, a mark with all that was ever left out, and the last lines."""
    head = _whole_lines(os.pread(log, int(most * HEAD), 0))
    earlier = MARKED.match(os.pread(log, 100, len(head)))
    tail = os.pread(log, int(most * TAIL), size - int(most * TAIL))
    tail = tail[tail.find(b"\n") + 1 :]
    before = len(earlier[0]) if earlier else 0
    gone = size - len(head) - before - len(tail)
    mark = MARK.format(gone + (int(earlier[1]) if earlier else 0)).encode()
    os.ftruncate(log, len(head))
    os.pwrite(log, mark + tail, len(head))
    return gone


def _whole_lines(head: bytes) -> bytes:
    """The lines of the head up to a mark of an earlier cut, or up to the last whole one."""
    earlier = MARKED.search(head)
    return head[: earlier.start()] if earlier else head[: head.rfind(b"\n") + 1]
