"""Before a training starts: what it will need of memory, disk and time, and whether it can fit."""

from __future__ import annotations

from xcray.execution.memory import available
from xcray.model.postings import BUDGET


def merge_budget(limit: int | None = None) -> int:
    """Bytes of weights that merging may hold at once: an eighth of what is left, 4 MiB at least.

    limit: bytes the training may take in all, or None.
    """
    left = min([*available().values(), *([limit] if limit is not None else [])], default=BUDGET * 8)
    return max(4 << 20, min(left // 8, 1 << 30))
