"""Files of a model registry: versions, state that can change, lock and history of each name.

    root/NAME/versions/N/     a model directory
    root/NAME/aliases.json    aliases, their traffic splits, and other state that can change
    root/NAME/history.jsonl   one line per change
    root/NAME/sets/           sets of labels (see `label_sets`)

A file lock serialises the changes to one name; the kernel releases it when its holder dies. Each
change is one rename, so readers need no lock.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xcray.errors import NotFound, excerpt, similar_or_all
from xcray.model.manifest import MANIFEST
from xcray.storage.atomic import NAME_PATTERN, check_name, read_json, write_json
from xcray.system.file_lock import exclusive_lock

LOCK = ".lock"
# seconds after which the next change gets a different file time, with any file system's clock
SETTLE_SECONDS = 2.0


class RegistryFiles:
    """The files of all names below one folder."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._thread_locks = threading.local()

    def folder(self, name: str) -> Path:
        """Return the folder of a name. Raises ParameterError for an invalid name."""
        return self.root / check_name(name, "model name")

    def names(self) -> list[str]:
        """Return the names that have at least one version, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(
            name
            for name in os.listdir(self.root)
            if NAME_PATTERN.fullmatch(name) and self.latest_number(name) is not None
        )

    def versions(self, name: str) -> list[int]:
        """Return the version numbers of a name, ascending; empty if there are none."""
        return sorted(self._newest_first(name))

    def version_path(self, name: str, version: int) -> Path:
        """Return the directory of a version. Raises NotFound."""
        path = self.folder(name) / "versions" / str(int(version))
        if not (path / MANIFEST).is_file():
            known = ", ".join(str(number) for number in self.versions(name))
            if not known:
                raise self.unknown_model(name)
            raise NotFound(f"there is no model {name}:{version}; versions: {known}")
        return path

    def unknown_model(self, name: str) -> NotFound:
        """Return the error for a model that does not exist, with a similar name or all names."""
        similar = similar_or_all(name, self.names())
        return NotFound(f"there is no model {excerpt(name)!r}{similar}")

    def latest_number(self, name: str) -> int | None:
        """Return the highest version, without reading the manifests of the others."""
        return next(self._newest_first(name), None)

    def _newest_first(self, name: str) -> Iterator[int]:
        """Yield the version numbers of a name, descending."""
        # strings instead of paths, because a list asks for those of a thousand models
        folder = f"{self.folder(name)}/versions"
        try:
            numbers = [int(number) for number in os.listdir(folder) if number.isdecimal()]
        except (FileNotFoundError, NotADirectoryError):
            return
        for number in sorted(numbers, reverse=True):
            if os.path.isfile(f"{folder}/{number}/{MANIFEST}"):
                yield number

    def highest_number(self, name: str) -> int:
        """Return the highest number ever used, according to the state and the folder."""
        return max([int(self.read_state(name)["highest"]), *self.versions(name)])

    def read_state(self, name: str) -> dict[str, Any]:
        """Return the state of a name: aliases, highest number and others, with defaults."""
        try:
            state = read_json(self.folder(name) / "aliases.json")
        except NotFound:
            state = {}
        empty: dict[str, Any] = {
            "aliases": {},
            "routes": {},
            "digests": {},
            "corrupt": {},
            "kept": [],
            "unloads": {},
        }
        return {"schema_version": 1, "highest": 0, **empty, **state}

    def write_state(self, name: str, state: dict[str, Any]) -> None:
        """Replace the state, atomically and durably."""
        write_json(self.folder(name) / "aliases.json", state)

    def update_state(
        self, name: str, change: Callable[[dict[str, Any]], None], action: str, **details: Any
    ) -> None:
        """Change the state of a name in place and record it in the history, if it changes."""
        with self.lock(name) as folder:
            before, state = self.read_state(name), self.read_state(name)
            change(state)
            if state != before:
                self.write_state(name, state)
                append_history(folder, action, **details)

    @contextmanager
    def lock(self, name: str) -> Iterator[Path]:
        """Lock the folder of an existing name against other changes, and yield it."""
        folder = self.folder(name)
        if not folder.is_dir():
            raise self.unknown_model(name)
        if name in self._locked_names():
            yield folder
        else:
            with exclusive_lock(folder / LOCK):
                yield folder

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock of a name, so that reads and changes inside are one transaction.

        Raises NotFound if there is no such model.
        """
        with self.lock(name):
            self._locked_names().add(name)
            try:
                yield
            finally:
                self._locked_names().discard(name)

    def history(self, name: str) -> list[dict[str, Any]]:
        """Return all changes to a name, oldest first: at (UTC), action, and its details.

        Details are version, alias, set and others, by action. Left out are lines that were cut off
        by a full disk or the death of their writer.
        """
        path = self.folder(name) / "history.jsonl"
        changes = []
        for line in path.read_text().splitlines() if path.is_file() else ():
            with suppress(ValueError):
                changes.append(json.loads(line))
        return changes

    def _locked_names(self) -> set[str]:
        """Return the names that this thread locked with `locked`."""
        if not hasattr(self._thread_locks, "names"):
            self._thread_locks.names = set()
        names: set[str] = self._thread_locks.names
        return names


def append_history(folder: Path, action: str, **details: Any) -> None:
    """Append one line to the history of a name; the caller holds its lock."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"at": at, "action": action, **details}).encode()
    with open(folder / "history.jsonl", "ab+") as out:
        out.seek(max(0, out.tell() - 1))
        # the line before can have been cut off
        out.write((b"" if out.read(1) in b"\n" else b"\n") + line + b"\n")
        out.flush()
        os.fsync(out.fileno())
