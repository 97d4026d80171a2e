"""Sizes in bytes, read from text and written for people."""

from __future__ import annotations

import re

from xcray.errors import ParameterError

SIZE = re.compile(r"(\d+(?:\.\d*)?(?:e\d+)?) *([a-zA-Z]*)")
NAMES = ("bytes", "KiB", "MiB", "GiB", "TiB")
UNITS = {"": 1, "b": 1, "bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def parse_bytes(text: int | str) -> int:
    """Bytes from a number or from text like "4GiB", "500 MB", "2e9". Raises ParameterError with the forms there are."""
    found = SIZE.fullmatch(str(text).strip())
    size = float(found[1]) * UNITS[found[2].lower()] if found and found[2].lower() in UNITS else 0.0
    if not 1 <= size < 2**63 or isinstance(text, bool):
        raise ParameterError(
            f"{str(text)[:80]!r} is no amount of memory: write bytes, or a number with {', '.join(NAMES)} or MB, GB"
        )
    return int(size)


def human(size: float) -> str:
    """Bytes for people: `1.5 GiB`."""
    step = 0
    while abs(size) >= 1024 and step < len(NAMES) - 1:
        size, step = size / 1024, step + 1
    return (
        f"{size:.0f} {NAMES[step]}"
        if step == 0 or abs(size) >= 100
        else f"{size:.1f} {NAMES[step]}"
    )
