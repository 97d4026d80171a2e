"""Memory of verified checksums, so that files that did not change are hashed once.

A file counts as unchanged while device, inode, size, time of modification and time of change are
those at its last verification. A user who can write to the memory file can also make this program
accept changed files, so it belongs into a directory of the user.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xcray.errors import XcrayError
from xcray.storage.atomic import read_json, verify_files, write_json

VERIFIED_FILE: Final = "verified.json"  # the memory of a user's commands, in the home
MAX_ENTRIES: Final = 4_096  # the least recently verified ones are forgotten
# A file that changed this recently could change again without a change of its times.
SETTLED_NS: Final = 2_000_000_000


class VerifiedFiles:
    """Verify files against their checksums, and remember the result in a JSON file.

    The memory is an optimisation: if it cannot be read or written, every file is hashed again.
    """

    def __init__(self, memory: Path) -> None:
        """Initialise. memory: the JSON file, which is created with its directory if missing."""
        self.memory = memory

    def verify(self, directory: Path, digests: Mapping[str, Mapping[str, Any]]) -> bool:
        """Compare the files of a directory with their recorded sizes and SHA-256.

        Files that were verified before and did not change since are not read. Returns whether any
        was read. Raises Corrupt with the name of the first file that differs.
        """
        known = self._load()
        identities = {name: _identity(directory / name) for name in digests}
        changed = {
            name: digest
            for name, digest in digests.items()
            if known.get(identities[name] or "") != digest["sha256"]
        }
        verify_files(directory, changed)
        settled = {
            identity: digests[name]["sha256"]
            for name in changed
            if (identity := identities[name]) is not None
            and identity == _identity(directory / name)
            and _is_settled(directory / name)
        }
        if settled:
            known = {name: value for name, value in known.items() if name not in settled} | settled
            self._save(dict(list(known.items())[-MAX_ENTRIES:]))
        return bool(changed)

    def _load(self) -> dict[str, str]:
        """Return checksums by identity, oldest first; empty if there is no readable memory."""
        try:
            entries = read_json(self.memory)["files"]
            return {str(identity): str(sha256) for identity, sha256 in entries}
        except (XcrayError, OSError, LookupError, TypeError, ValueError):
            return {}

    def _save(self, known: Mapping[str, str]) -> None:
        """Write the memory, unless its directory is not writable."""
        try:
            self.memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(self.memory, {"files": list(known.items())})
        except OSError:
            return


def _identity(path: Path) -> str | None:
    """Return what changes whenever a file changes; None if there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    fields = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, fields))


def _is_settled(path: Path) -> bool:
    """Whether the last change of a file is old enough to differ in time from a later one."""
    return time.time_ns() - os.stat(path).st_ctime_ns > SETTLED_NS
