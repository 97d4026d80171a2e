"""Tools that this machine lacks, and the checks done instead, for the summary of a test run.

A test that uses a tool (helm, promtool, a schema that must not be copied) does not skip if the tool
is missing. It does the next best check and calls `say`. So a successful run without a tool differs
from a complete run.
"""

from __future__ import annotations

said: dict[str, str] = {}


def say(what: str, instead: str) -> None:
    """Record that `what` is missing and that `instead` was done; the first record is kept."""
    said.setdefault(what, instead)


def lines() -> list[str]:
    """Return one line per missing tool, sorted."""
    return [f"without {what}: {instead}" for what, instead in sorted(said.items())]
