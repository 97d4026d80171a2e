"""A job's log in pieces: its last lines, or what follows a byte of it, whole lines as far as they fit.

A log that grows too large loses its middle (`jobs/log_bounds`): bytes then move, and who follows goes on at the new end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Final, NamedTuple

LONGEST: Final = 1 << 20  # bytes of a piece


class Piece(NamedTuple):
    """Text from byte `begin` up to byte `end` of a log of `size` bytes."""

    text: str
    begin: int
    end: int
    size: int


def last_lines(path: Path, lines: int) -> Piece:
    """The last lines, at most LONGEST bytes; nothing while there is no log."""
    try:
        with open(path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            data = _at(log, max(0, size - LONGEST), LONGEST)
    except FileNotFoundError:
        return Piece("", 0, 0, 0)
    kept = b"".join(data.splitlines(keepends=True)[-lines:])
    end = max(0, size - LONGEST) + len(data)
    return Piece(_text(kept), end - len(kept), end, size)


def following(path: Path, offset: int, limit: int) -> Piece:
    """What follows byte `offset`, at most `limit` bytes: up to the last line end, a longer line cut between characters.

    The last line of a log that still grows is given when it has ended. Behind the end there is nothing: go on from `end`.
    """
    try:
        with open(path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            begin = min(offset, size)
            data = _at(log, begin, min(limit, LONGEST))
    except FileNotFoundError:
        return Piece("", 0, 0, 0)
    whole = data[: data.rfind(b"\n") + 1]
    if not whole and len(data) >= min(limit, LONGEST):
        whole = _whole_characters(data)
    return Piece(_text(whole), begin, begin + len(whole), size)


def _at(log: IO[bytes], begin: int, most: int) -> bytes:
    """At most `most` bytes from `begin`."""
    log.seek(begin)
    return log.read(most)


def _whole_characters(data: bytes) -> bytes:
    """Bytes of UTF-8 without a character that was cut in two at the end."""
    for left in range(1, min(4, len(data)) + 1):
        last = data[-left]
        if last & 0xC0 == 0x80:  # a byte within a character
            continue
        wanted = 4 if last >= 0xF0 else 3 if last >= 0xE0 else 2 if last >= 0xC0 else 1
        return data[:-left] if wanted > left and left < len(data) else data
    return data


def _text(data: bytes) -> str:
    """Text; bytes that are not UTF-8 are shown as such."""
    return data.decode("utf-8", "backslashreplace")
