"""Minimisation of a failing input: ranges are removed while it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable

TRIES = 400


def shrunk(data: bytes, fails: Callable[[bytes], bool], tries: int = TRIES) -> bytes:
    """A part of `data` that still fails: halves, quarters, ... down to single bytes are left out,
    in at most `tries` tries.
    """
    size = max(1, len(data) // 2)
    while tries > 0:
        at, smaller = 0, False
        while at < len(data) and tries > 0:
            part = data[:at] + data[at + size :]
            tries -= 1
            if fails(part):
                data, smaller = part, True
            else:
                at += size
        if size == 1 and not smaller:
            return data
        size = max(1, min(size // 2 if not smaller else size, len(data) // 2))
    return data
