"""Truncation of logs, so that they cannot fill the disk.

The head and the tail are kept, and a mark in the log says how many bytes were removed between them.
Writers append (O_APPEND), so the file can be cut while they write: they continue at its new end.
Lines written at the very moment of the cut are lost.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

HEAD_SHARE: Final = 0.2  # share of the limit for the start of a runner
TAIL_SHARE: Final = 0.4  # share for its end; the rest is free, so that cuts are rare
MARK: Final = "--- {} bytes of this log were left out here ---\n"
MARK_PATTERN: Final = re.compile(rb"--- (\d+) bytes of this log were left out here ---\n")


def truncate_log(path: Path, max_bytes: int) -> int:
    """Cut the middle out of a log larger than `max_bytes` and return the bytes removed.

    Returns 0 if the log is small enough or missing.
    """
    try:
        with open(path, "r+b") as log:
            size = log.seek(0, os.SEEK_END)
            return _cut_middle(log.fileno(), size, max_bytes) if size > max_bytes else 0
    except FileNotFoundError:
        return 0


def _cut_middle(log: int, size: int, max_bytes: int) -> int:
    """Keep the first lines, a mark with the total of removed bytes, and the last lines."""
    head = _whole_lines(os.pread(log, int(max_bytes * HEAD_SHARE), 0))
    earlier = MARK_PATTERN.match(os.pread(log, 100, len(head)))
    tail = os.pread(log, int(max_bytes * TAIL_SHARE), size - int(max_bytes * TAIL_SHARE))
    tail = tail[tail.find(b"\n") + 1 :]
    before = len(earlier[0]) if earlier else 0
    removed = size - len(head) - before - len(tail)
    mark = MARK.format(removed + (int(earlier[1]) if earlier else 0)).encode()
    os.ftruncate(log, len(head))
    os.pwrite(log, mark + tail, len(head))
    return removed


def _whole_lines(head: bytes) -> bytes:
    """Return the complete lines of the head, up to a mark of an earlier cut."""
    earlier = MARK_PATTERN.search(head)
    return head[: earlier.start()] if earlier else head[: head.rfind(b"\n") + 1]
