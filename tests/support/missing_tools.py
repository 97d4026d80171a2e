"""What this machine lacks, and what a test did instead: said once, in the summary at the end of a
test run.

A test that wants a tool (helm, promtool, a schema that may not be copied) never skips where it is
absent: it does the next best check and calls `say`. So a green run on a poor machine can't be taken
for a full one.
"""

from __future__ import annotations

_said: dict[str, str] = {}


def say(what: str, instead: str) -> None:
    """Say that `what` was absent and that `instead` was done; the same absence is said once,
    whoever says it first.
    """
    _said.setdefault(what, instead)


def lines() -> list[str]:
    """The sentences of this run, in order of what was absent."""
    return [f"without {what}: {instead}" for what, instead in sorted(_said.items())]
