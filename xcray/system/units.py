"""Sizes in bytes and durations: parsing and formatting."""

from __future__ import annotations

import re

from xcray.errors import InputError, ParameterError

SIZE_PATTERN = re.compile(r"(\d+(?:\.\d*)?(?:e\d+)?) *([a-zA-Z]*)")
UNIT_NAMES = ("bytes", "KiB", "MiB", "GiB", "TiB")
UNIT_BYTES = {
    "": 1,
    "b": 1,
    "bytes": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
UNIT_BYTES |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def parse_bytes(text: int | str) -> int:
    """Return bytes from a number or from text like "4GiB", "500 MB", "2e9".

    Raises ParameterError, whose message lists the valid forms.
    """
    match = SIZE_PATTERN.fullmatch(str(text).strip())
    size = (
        float(match[1]) * UNIT_BYTES[match[2].lower()]
        if match and match[2].lower() in UNIT_BYTES
        else 0.0
    )
    if not 1 <= size < 2**63 or isinstance(text, bool):
        raise ParameterError(
            f"{str(text)[:80]!r} is not a valid size: write bytes,"
            f" or a number with {', '.join(UNIT_NAMES)} or MB, GB"
        )
    return int(size)


def format_bytes(size: float) -> str:
    """Return bytes as text, such as `1.5 GiB`."""
    step = 0
    while abs(size) >= 1024 and step < len(UNIT_NAMES) - 1:
        size, step = size / 1024, step + 1
    return (
        f"{size:.0f} {UNIT_NAMES[step]}"
        if step == 0 or abs(size) >= 100
        else f"{size:.1f} {UNIT_NAMES[step]}"
    )


def parse_seconds(text: str) -> float:
    """Parse 90, 90s, 15m, 2h or 7d to seconds. Raises InputError."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNIT_SECONDS else (text, "s")
    try:
        seconds = float(number) * UNIT_SECONDS[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise InputError(
            f"{text[:40]!r} is not a valid time: write it like 90s, 15m, 2h or 7d", code="TIME"
        )
    return seconds
