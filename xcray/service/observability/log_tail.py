"""Reads a job's log in pieces: the last lines, or the complete lines after an offset.

A log that grows too large loses its middle (`jobs/runner/log_truncation`). Bytes then move, and a
reader that follows the log continues at the new end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Final, NamedTuple

MAX_PIECE_BYTES: Final = 1 << 20


class LogPiece(NamedTuple):
    """Text from byte `begin` up to byte `end` of a log of `size` bytes."""

    text: str
    begin: int
    end: int
    size: int


def read_last_lines(path: Path, lines: int) -> LogPiece:
    """Return the last lines, at max_bytes MAX_PIECE_BYTES; empty while there is no log."""
    try:
        with open(path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            data = _read_at(log, max(0, size - MAX_PIECE_BYTES), MAX_PIECE_BYTES)
    except FileNotFoundError:
        return LogPiece("", 0, 0, 0)
    tail = b"".join(data.splitlines(keepends=True)[-lines:])
    end = max(0, size - MAX_PIECE_BYTES) + len(data)
    return LogPiece(_decode(tail), end - len(tail), end, size)


def read_from(path: Path, offset: int, limit: int) -> LogPiece:
    """Return the text from byte `offset`, at most `limit` bytes, up to the last line end.

    A longer line is cut between characters. An incomplete last line is returned once it is
    complete. Behind the end the piece is empty; continue from `end`.
    """
    try:
        with open(path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            begin = min(offset, size)
            data = _read_at(log, begin, min(limit, MAX_PIECE_BYTES))
    except FileNotFoundError:
        return LogPiece("", 0, 0, 0)
    complete = data[: data.rfind(b"\n") + 1]
    if not complete and len(data) >= min(limit, MAX_PIECE_BYTES):
        complete = _trim_incomplete_character(data)
    return LogPiece(_decode(complete), begin, begin + len(complete), size)


def _read_at(log: IO[bytes], begin: int, max_bytes: int) -> bytes:
    """Return at most `max_bytes` bytes from `begin`."""
    log.seek(begin)
    return log.read(max_bytes)


def _trim_incomplete_character(data: bytes) -> bytes:
    """Return UTF-8 bytes without an incomplete character at the end."""
    for left in range(1, min(4, len(data)) + 1):
        last = data[-left]
        # A continuation byte.
        if last & 0xC0 == 0x80:
            continue
        width = 4 if last >= 0xF0 else 3 if last >= 0xE0 else 2 if last >= 0xC0 else 1
        return data[:-left] if width > left and left < len(data) else data
    return data


def _decode(data: bytes) -> str:
    """Return text; bytes that are not UTF-8 are escaped."""
    return data.decode("utf-8", "backslashreplace")
