"""Names of files in run directories, and which of them are no finished work."""

from __future__ import annotations

import contextlib
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

LOCK_FILE: Final = "lock"
TOKEN_FILE: Final = "directory.json"  # another directory of this path has another token
REBUILT: Final = "data"  # a data set with the text options that `auto` chose
BATCH_ROWS: Final = "xcray-rows.parquet"  # rows that a batch prediction copied from lines
# files of a run before its first finished part
UNFINISHED_FILES: Final = (LOCK_FILE, TOKEN_FILE, "run.json", "timeline-*", f"*{BATCH_ROWS}*")


def remove_unused(run_dir: Path) -> None:
    """Remove a run directory that holds no finished work, so that a failed start leaves nothing."""
    with contextlib.suppress(OSError):
        files = list(run_dir.iterdir())
        if all(any(fnmatch(file.name, name) for name in UNFINISHED_FILES) for file in files):
            for file in files:
                file.unlink()
            run_dir.rmdir()
