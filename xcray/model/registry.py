"""Model registry in a folder: numbered immutable versions, and aliases that can be moved.

`registry_files` says how changes are kept apart. A number is used once, even if its version is
deleted later.
"""

from __future__ import annotations

import os
import shutil
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from xcray.data.dataset import reading_of
from xcray.errors import Conflict, NotFound, ParameterError, excerpt
from xcray.model.aliases import LATEST, Aliases
from xcray.model.calibration import probability_source
from xcray.model.corrupt_marks import CorruptMarks
from xcray.model.install import install_directory
from xcray.model.label_sets import LabelSetCache, LabelSets
from xcray.model.manifest import MANIFEST, read_manifest
from xcray.model.pins import Pins
from xcray.model.registry_files import LOCK, SETTLE_SECONDS, RegistryFiles, append_history
from xcray.model.traffic_split import TrafficSplit, versions_of_alias
from xcray.storage.atomic import check_name, create_staging_directory, sync_path, verify_files
from xcray.system.file_lock import exclusive_lock


class ModelVersion(NamedTuple):
    """One version, from its manifest.

    shape: (labels, features); measures: fractions; n_bytes: on disk; calibrated: whether it
    gives probabilities, by curves or by its link. reading: see `Dataset.reading`. dataset_name,
    held_out: the data set and its number of held-out rows, None if they are not recorded.
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
    dataset_name: str | None
    held_out: int | None
    calibrated: bool
    reading: dict[str, Any]


class Registry:
    """Model versions below one folder, safe for concurrent processes.

    `aliases`, `pins` and `corrupt` hold what can change about them.
    """

    def __init__(self, root: str | Path) -> None:
        self._files = RegistryFiles(root)
        self._label_set_cache: LabelSetCache = {}
        self.root = self._files.root
        self.aliases = Aliases(self._files)
        self.pins = Pins(self._files, self.resolve_split)
        self.corrupt = CorruptMarks(self._files)
        self.names = self._files.names
        self.versions = self._files.versions
        self.latest_number = self._files.latest_number
        self.unknown_model = self._files.unknown_model
        self.history = self._files.history
        self.locked = self._files.locked

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
        folder, staged = self._files.folder(name), Path(staged)
        manifest = read_manifest(staged)
        if not verified:
            verify_files(staged, manifest["files"])
        (folder / "versions").mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder / LOCK):
            highest = self._files.highest_number(name)
            number = highest + 1 if number is None else number
            install_directory(staged, folder / "versions" / str(number))
            state = self._files.read_state(name)
            digests = {**state["digests"], str(number): manifest["sha256"]}
            self._files.write_state(
                name, {**state, "highest": max(highest, number), "digests": digests}
            )
            append_history(
                folder,
                "publish",
                version=number,
                sha256=manifest["sha256"],
                **({"source": source} if source else {}),
            )
        return number

    def describe(self, name: str, version: int) -> ModelVersion:
        """Return the summary of one version. Raises NotFound, Corrupt."""
        path = self._files.version_path(name, version)
        return ModelVersion(
            name=name,
            version=version,
            path=path,
            aliases=tuple(
                sorted(
                    alias for alias, number in self.aliases.of(name).items() if number == version
                )
            ),
            **self.recorded(name, version),
        )

    def recorded(self, name: str, version: int) -> dict[str, Any]:
        """Return the fields of `ModelVersion` that the manifest of a version has.

        Raises NotFound, Corrupt.
        """
        path = f"{self.root}/{check_name(name, 'model name')}/versions/{version}"
        try:
            now = os.stat(f"{path}/{MANIFEST}")
        except OSError:
            return _fields_of(read_manifest(Path(path)))  # says what is missing
        return _read_fields(path, (now.st_ino, now.st_size, now.st_mtime_ns))

    def resolve(self, reference: str) -> Path:
        """Return the directory of "name" (its latest version), "name:3" or "name@alias".

        Raises NotFound, ParameterError.
        """
        name, version = self.resolve_version(reference)
        return self._files.version_path(name, version)

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
            self._files.version_path(name, int(number))
            return name, TrafficSplit.single(int(number))
        name, _, alias = reference.partition("@")
        if (alias or LATEST) == LATEST:
            version = self._files.latest_number(name)
            if version is not None:
                return name, TrafficSplit.single(version)
        else:
            split = self.aliases.find_split(name, alias)
            if split is not None:
                return name, split
        available = self.aliases.of(name)
        if not available:
            raise self._files.unknown_model(name)
        raise NotFound(
            f"model {name} has no alias {excerpt(alias)!r}; it has {', '.join(sorted(available))}"
        )

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
        present = self._files.read_state(name)["aliases"].get(alias)
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

    def label_sets(self, name: str) -> LabelSets:
        """Return the label sets of a model: `registry.label_sets("news").put("safe", ["art"])`.

        Raises ParameterError.
        """
        return LabelSets(self._files, name, self._label_set_cache)

    def delete(self, name: str, version: int) -> None:
        """Delete one version; its number is not reused.

        Raises NotFound, and Conflict while an alias points to it.
        """
        self._files.version_path(name, version)
        with self._files.lock(name) as folder:
            path = self._files.version_path(name, version)
            state = self._files.read_state(name)
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
            self._files.write_state(name, {**state, "highest": self._files.highest_number(name)})
            hidden = create_staging_directory(path)
            # the rename hides it at once; processes that mapped it keep their pages
            os.rename(path, hidden)
            sync_path(path.parent)
            append_history(folder, "delete", version=version)
        shutil.rmtree(hidden, ignore_errors=True)

    def published_sha256(self, name: str, version: int) -> str | None:
        """Return the sha256 of a version at its publication.

        None for versions published before it was recorded.
        """
        sha256 = self._files.read_state(name)["digests"].get(str(version))
        return None if sha256 is None else str(sha256)


@lru_cache(4096)
def _read_fields(path: str, stamp: tuple[int, int, int]) -> dict[str, Any]:
    """Return what `ModelVersion` has of a manifest. stamp: changes with the file.

    Lists are sorted by fields of all models. Raises NotFound, Corrupt.
    """
    return _fields_of(read_manifest(Path(path)))


def _fields_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what `ModelVersion` has of a manifest."""
    data = manifest.get("report", {}).get("data", {})
    return {
        "shape": (manifest["shape"][0], manifest["shape"][1]),
        "n_bytes": sum(entry["bytes"] for entry in manifest["files"].values()),
        "dataset_name": data.get("name"),
        "held_out": data.get("held_out"),
        "calibrated": probability_source(manifest) is not None,
        "reading": reading_of(manifest),
        **{
            key: manifest[key]
            for key in ("sha256", "created", "solver", "nnz", "measures", "dataset_hash")
        },
    }
