"""Model registry in a folder: numbered immutable versions, and aliases that can be moved.

    root/NAME/versions/N/     a model directory
    root/NAME/aliases.json    aliases, their traffic splits, and other state that can change
    root/NAME/history.jsonl   one line per change
    root/NAME/sets/           sets of labels (see `label_sets`)

A file lock serialises the changes to one name; the kernel releases it when its holder dies. Each
change is one rename, so readers need no lock. A number is used once, even if its version is deleted
later.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from xcray.errors import Conflict, NotFound, ParameterError, excerpt
from xcray.model.calibration import CALIBRATION
from xcray.model.directory import MANIFEST, read_manifest
from xcray.model.install import exclusive_lock, install_directory
from xcray.model.label_sets import LabelSetCache, LabelSets
from xcray.model.traffic_split import TrafficSplit, split_of_alias, versions_of_alias
from xcray.storage.atomic import (
    NAME_PATTERN,
    check_name,
    create_staging_directory,
    read_json,
    sync_path,
    verify_files,
    write_json,
)

LOCK = ".lock"
LATEST = "latest"  # implicit: the highest version
# seconds after which the next change gets a different file time, with any file system's clock
SETTLE_SECONDS = 2.0


class ModelVersion(NamedTuple):
    """One version, from its manifest.

    shape: (labels, features); measures: fractions; n_bytes: on disk; calibrated: whether it
    gives probabilities, by curves or by softmax.
    """

    name: str
    version: int
    path: Path
    aliases: tuple[str, ...]
    sha256: str
    created: str
    solver: str
    shape: tuple[int, int]
    nnz: int
    n_bytes: int
    measures: dict[str, float]
    dataset_hash: str
    calibrated: bool


class Registry:
    """Model versions below one folder, safe for concurrent processes."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._label_set_cache: LabelSetCache = {}
        self._thread_locks = threading.local()

    def publish(
        self,
        name: str,
        staged: str | Path,
        *,
        number: int | None = None,
        verified: bool = False,
        source: str | None = None,
    ) -> int:
        """Move a finished model directory into the registry as the next version; return its number.

        number: required number, for a model that has one elsewhere; verified: its files
        were just compared with their checksums; source: origin, for the history. Raises
        NotFound or Corrupt if `staged` is not a complete model, ParameterError if the name
        is invalid, Conflict if the number exists.
        """
        folder, staged = self._folder(name), Path(staged)
        manifest = read_manifest(staged)
        if not verified:
            verify_files(staged, manifest["files"])
        (folder / "versions").mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder / LOCK):
            highest = self._highest_number(name)
            number = highest + 1 if number is None else number
            install_directory(staged, folder / "versions" / str(number))
            state = self._read_state(name)
            digests = {**state["digests"], str(number): manifest["sha256"]}
            self._write_state(name, {**state, "highest": max(highest, number), "digests": digests})
            _append_history(
                folder,
                "publish",
                version=number,
                sha256=manifest["sha256"],
                **({"source": source} if source else {}),
            )
        return number

    def names(self) -> list[str]:
        """Return the names that have at least one version, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(
            path.name
            for path in self.root.iterdir()
            if NAME_PATTERN.fullmatch(path.name) and self.versions(path.name)
        )

    def versions(self, name: str) -> list[int]:
        """Return the version numbers of a name, ascending; empty if there are none."""
        folder = self._folder(name) / "versions"
        names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
        return sorted(
            int(number)
            for number in names
            if number.isdecimal() and (folder / number / MANIFEST).is_file()
        )

    def aliases(self, name: str) -> dict[str, int]:
        """Return the version numbers by alias, including `latest` if there is a version."""
        versions = self.versions(name)
        return {**self._read_state(name)["aliases"], **({LATEST: versions[-1]} if versions else {})}

    def describe(self, name: str, version: int) -> ModelVersion:
        """Return the summary of one version. Raises NotFound, Corrupt."""
        path = self._version_path(name, version)
        manifest = read_manifest(path)
        return ModelVersion(
            name=name,
            version=version,
            path=path,
            aliases=tuple(
                sorted(alias for alias, number in self.aliases(name).items() if number == version)
            ),
            shape=(manifest["shape"][0], manifest["shape"][1]),
            n_bytes=sum(entry["bytes"] for entry in manifest["files"].values()),
            calibrated=CALIBRATION in manifest["files"] or manifest.get("link") == "softmax",
            **{
                key: manifest[key]
                for key in ("sha256", "created", "solver", "nnz", "measures", "dataset_hash")
            },
        )

    def entries(self, name: str | None = None) -> list[ModelVersion]:
        """Return the summaries of all versions of one name, or of all names, by name and number."""
        names = self.names() if name is None else [name]
        return [self.describe(each, version) for each in names for version in self.versions(each)]

    def resolve(self, reference: str) -> Path:
        """Return the directory of "name" (its latest version), "name:3" or "name@alias".

        Raises NotFound, ParameterError.
        """
        name, version = self.resolve_version(reference)
        return self._version_path(name, version)

    def resolve_version(self, reference: str) -> tuple[str, int]:
        """Return (name, version number) of a reference; the primary version of a traffic split.

        Raises NotFound, ParameterError.
        """
        name, split = self.resolve_split(reference)
        return name, split.primary

    def resolve_split(self, reference: str) -> tuple[str, TrafficSplit]:
        """Return (name, traffic split) of a reference. Raises NotFound, ParameterError."""
        if ":" in reference:
            name, _, number = reference.partition(":")
            if not (number.isascii() and number.isdecimal() and len(number) <= 9):
                raise ParameterError(
                    f"version {excerpt(number)!r} is not a number; write {name[:80]}:1"
                )
            self._version_path(name, int(number))
            return name, TrafficSplit.single(int(number))
        name, _, alias = reference.partition("@")
        if (alias or LATEST) == LATEST:
            version = self._latest_number(name)
            if version is not None:
                return name, TrafficSplit.single(version)
        else:
            split = split_of_alias(self._read_state(name), alias)
            if split is not None:
                return name, split
        available = self.aliases(name)
        if not available:
            raise NotFound(
                f"there is no model {excerpt(name)!r}; there are: "
                f"{', '.join(self.names()) or 'none'}"
            )
        raise NotFound(
            f"model {name} has no alias {excerpt(alias)!r}; it has {', '.join(sorted(available))}"
        )

    def traffic_splits(self, name: str) -> dict[str, TrafficSplit]:
        """Return the aliases with several versions or a shadow, and their traffic splits.

        The other aliases point to one version (`aliases`).
        """
        state = self._read_state(name)
        splits = {alias: split_of_alias(state, alias) for alias in state["routes"]}
        return {
            alias: split
            for alias, split in splits.items()
            if split is not None and len(split.versions) > 1
        }

    def previous_versions(self, name: str, alias: str = LATEST) -> list[int]:
        """Return the existing versions that an alias pointed to before, latest first.

        They can serve requests if the current version cannot be loaded.
        """
        versions = self.versions(name)
        if alias == LATEST:
            return versions[-2::-1]
        moves = [
            line
            for line in self.history(name)
            if line.get("action") == "set_alias" and line.get("alias") == alias
        ]
        before = [line["before"] for line in reversed(moves) if line.get("before") in versions]
        present = self._read_state(name)["aliases"].get(alias)
        return [version for version in dict.fromkeys(before) if version != present]

    def change_token(self, name: str) -> tuple[int, ...] | None:
        """Return a token that changes when a version is published or deleted, or an alias moves.

        It costs two system calls. None if the last change is so recent that the next one
        could have the same file time. Raises ParameterError for an invalid name.
        """
        base = f"{self.root}/{check_name(name, 'model name')}"
        try:
            folder, state = os.stat(f"{base}/versions"), os.stat(f"{base}/aliases.json")
        except FileNotFoundError:
            return None
        if max(folder.st_mtime, state.st_mtime) > time.time() - SETTLE_SECONDS:
            return None
        return folder.st_mtime_ns, folder.st_nlink, state.st_mtime_ns, state.st_ino, state.st_size

    def set_alias(self, name: str, alias: str, version: int) -> None:
        """Point an alias at a version.

        Raises NotFound if there is no such version, ParameterError for an invalid alias.
        """
        self.set_traffic_split(name, alias, TrafficSplit.single(version))

    def set_traffic_split(self, name: str, alias: str, split: TrafficSplit) -> None:
        """Point an alias at versions by weight.

        Raises NotFound if a version does not exist, ParameterError for an invalid alias.
        """
        if check_name(alias, "alias") == LATEST:
            raise ParameterError(
                f"alias {LATEST!r} always means the highest version; choose another name"
            )
        for version in split.versions:
            self._version_path(name, version)
        with self._lock(name) as folder:
            for version in split.versions:
                # check again: a version can be deleted before the lock is held
                self._version_path(name, version)
            state = self._read_state(name)
            # older versions of xcray read only this entry
            aliases = {
                **state["aliases"],
                alias: split.primary,
            }
            routes = {
                each: split_entry for each, split_entry in state["routes"].items() if each != alias
            }
            stored = split.as_dict() if len(split.versions) > 1 else {}
            self._write_state(
                name,
                {
                    **state,
                    "aliases": aliases,
                    "routes": {**routes, alias: stored} if stored else routes,
                },
            )
            _append_history(
                folder,
                "set_alias",
                alias=alias,
                version=split.primary,
                before=state["aliases"].get(alias),
                **stored,
            )

    def delete_alias(self, name: str, alias: str) -> None:
        """Delete an alias. Raises NotFound if there is none."""
        with self._lock(name) as folder:
            state = self._read_state(name)
            if alias not in state["aliases"]:
                raise NotFound(
                    f"model {name} has no alias {excerpt(alias)!r}; "
                    f"it has {', '.join(state['aliases']) or 'none'}"
                )
            version = state["aliases"].pop(alias)
            state["routes"].pop(alias, None)
            self._write_state(name, state)
            _append_history(folder, "delete_alias", alias=alias, before=version)

    def label_sets(self, name: str) -> LabelSets:
        """Return the label sets of a model: `registry.label_sets("news").put("safe", ["art"])`.

        Raises ParameterError.
        """
        folder = self._folder(name)
        return LabelSets(
            folder,
            lambda: self._lock(name),
            lambda action, **facts: _append_history(folder, action, **facts),
            self._label_set_cache,
        )

    def delete(self, name: str, version: int) -> None:
        """Delete one version; its number is not reused.

        Raises NotFound, and Conflict while an alias points to it.
        """
        self._version_path(name, version)
        with self._lock(name) as folder:
            path = self._version_path(name, version)
            state = self._read_state(name)
            holders = [
                alias for alias in state["aliases"] if version in versions_of_alias(state, alias)
            ]
            if holders:
                raise Conflict(
                    f"{name}:{version} is in use as {', '.join(holders)}; "
                    "move or delete the alias first"
                )
            for part, entry in (
                ("digests", str(version)),
                ("corrupt", str(version)),
                ("unloads", f"{name}:{version}"),
            ):
                state[part].pop(entry, None)
            self._write_state(name, {**state, "highest": self._highest_number(name)})
            hidden = create_staging_directory(path)
            # the rename hides it at once; processes that mapped it keep their pages
            os.rename(path, hidden)
            sync_path(path.parent)
            _append_history(folder, "delete", version=version)
        shutil.rmtree(hidden, ignore_errors=True)

    def published_sha256(self, name: str, version: int) -> str | None:
        """Return the sha256 of a version at its publication.

        None for versions published before it was recorded.
        """
        sha256 = self._read_state(name)["digests"].get(str(version))
        return None if sha256 is None else str(sha256)

    def corrupt_versions(self, name: str) -> dict[int, str]:
        """Return the versions that failed to load because their files changed, with the reason."""
        return {
            int(version): str(reason)
            for version, reason in self._read_state(name)["corrupt"].items()
        }

    def mark_corrupt(self, name: str, version: int, reason: str | None) -> None:
        """Mark a version as corrupt for all processes; a reason of None removes the mark.

        Raises NotFound.
        """
        self._version_path(name, version)

        def change(state: dict[str, Any]) -> None:
            state["corrupt"].pop(str(version), None)
            if reason is not None:
                state["corrupt"][str(version)] = reason

        self._update_state(name, change, "sound" if reason is None else "corrupt", version=version)

    def pinned(self, name: str) -> tuple[list[str], dict[str, int]]:
        """Return the references that every process keeps in memory, and unload counts.

        The counts are numbers of unload requests per reference.
        """
        state = self._read_state(name)
        return list(state["kept"]), {
            reference: int(times) for reference, times in state["unloads"].items()
        }

    def pin(self, reference: str) -> None:
        """Make every process keep the versions of a reference in memory.

        Raises NotFound, ParameterError.
        """
        name, _ = self.resolve_split(reference)

        def change(state: dict[str, Any]) -> None:
            state["kept"] = sorted({*state["kept"], reference})

        self._update_state(name, change, "load", reference=reference)

    def unload(self, reference: str) -> None:
        """Make every process unload the versions of a reference.

        A bare name unloads all its versions; "name:3" unpins all references to that
        version. Raises NotFound, ParameterError.
        """
        name, split = self.resolve_split(reference)

        def remains_pinned(pinned: str) -> bool:
            return reference not in (name, pinned) and not (
                ":" in reference and split.primary in self._versions_of(pinned)
            )

        def change(state: dict[str, Any]) -> None:
            state["kept"] = [each for each in state["kept"] if remains_pinned(each)]
            state["unloads"][reference] = int(state["unloads"].get(reference, 0)) + 1

        self._update_state(name, change, "unload", reference=reference)

    def _versions_of(self, reference: str) -> tuple[int, ...]:
        """Return the versions of a reference; empty if it no longer resolves."""
        try:
            return self.resolve_split(reference)[1].versions
        except NotFound:
            return ()

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock of a name, so that reads and changes inside are one transaction.

        Raises NotFound if there is no such model.
        """
        with self._lock(name):
            self._locked_names().add(name)
            try:
                yield
            finally:
                self._locked_names().discard(name)

    def history(self, name: str) -> list[dict[str, Any]]:
        """Return all changes to a name, oldest first: at (UTC), action, and its facts.

        Facts are version, alias, set and others, by action.
        """
        path = self._folder(name) / "history.jsonl"
        return (
            [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        )

    def _folder(self, name: str) -> Path:
        """Return the folder of a name. Raises ParameterError for an invalid name."""
        return self.root / check_name(name, "model name")

    def _version_path(self, name: str, version: int) -> Path:
        """Return the directory of a version. Raises NotFound."""
        path = self._folder(name) / "versions" / str(int(version))
        if not (path / MANIFEST).is_file():
            known = ", ".join(str(number) for number in self.versions(name)) or "none"
            raise NotFound(f"there is no model {name}:{version}; versions: {known}")
        return path

    def _read_state(self, name: str) -> dict[str, Any]:
        """Return the state of a name: aliases, highest number and others, with defaults."""
        try:
            state = read_json(self._folder(name) / "aliases.json")
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

    def _update_state(
        self, name: str, change: Callable[[dict[str, Any]], None], action: str, **facts: Any
    ) -> None:
        """Change the state of a name in place and record it in the history, if it changes."""
        with self._lock(name) as folder:
            before, state = self._read_state(name), self._read_state(name)
            change(state)
            if state != before:
                self._write_state(name, state)
                _append_history(folder, action, **facts)

    def _latest_number(self, name: str) -> int | None:
        """Return the highest version, without reading the manifests of the others."""
        folder = f"{self._folder(name)}/versions"
        try:
            numbers = sorted(
                (int(number) for number in os.listdir(folder) if number.isdecimal()), reverse=True
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        return next(
            (number for number in numbers if os.path.isfile(f"{folder}/{number}/{MANIFEST}")), None
        )

    def _write_state(self, name: str, state: dict[str, Any]) -> None:
        """Replace the state, atomically and durably."""
        write_json(self._folder(name) / "aliases.json", state)

    def _highest_number(self, name: str) -> int:
        """Return the highest number ever used, according to the state and the folder."""
        return max([int(self._read_state(name)["highest"]), *self.versions(name)])

    @contextmanager
    def _lock(self, name: str) -> Iterator[Path]:
        """Lock the folder of an existing name against other changes, and yield it."""
        folder = self._folder(name)
        if not folder.is_dir():
            raise NotFound(
                f"there is no model {name!r}; there are: {', '.join(self.names()) or 'none'}"
            )
        if name in self._locked_names():
            yield folder
        else:
            with exclusive_lock(folder / LOCK):
                yield folder

    def _locked_names(self) -> set[str]:
        """Return the names that this thread locked with `locked`."""
        if not hasattr(self._thread_locks, "names"):
            self._thread_locks.names = set()
        names: set[str] = self._thread_locks.names
        return names


def _append_history(folder: Path, action: str, **facts: Any) -> None:
    """Append one line to the history of a name; the caller holds its lock."""
    line = json.dumps(
        {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "action": action, **facts}
    )
    with open(folder / "history.jsonl", "a") as out:
        out.write(line + "\n")
        out.flush()
        os.fsync(out.fileno())
