"""Models by name, in a folder: numbered versions that never change, aliases that move.

    root/NAME/versions/N/     a model directory         root/NAME/aliases.json    aliases and their splits, and what else may change
    root/NAME/history.jsonl   one line per change    root/NAME/sets/    sets of labels (see `label_sets`)

Changes to one name are serialised by a file lock, which the kernel drops when its holder dies; each is one rename, so
readers need no lock. A number is given out once, even when its version is deleted later.
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
from xcray.model.install import alone, move_in
from xcray.model.label_sets import Known, LabelSets
from xcray.model.traffic_split import Route, needed, route_of
from xcray.storage.atomic import (
    NAME,
    check_name,
    read_json,
    staging_directory,
    sync_path,
    verify_files,
    write_json,
)

LOCK = ".lock"
LATEST = "latest"  # implied: the highest version there is
SETTLED = (
    2.0  # seconds after which the next change gets another time, whatever the file system's clock
)


class ModelVersion(NamedTuple):
    """One version, from its manifest.

    shape: (labels, features); measures: fractions; n_bytes: on disk; calibrated: whether it tells probabilities,
    by curves or as softmax.
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
    """Model versions below one folder, safe for many processes at once."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._known: Known = {}
        self._held = threading.local()

    def publish(
        self,
        name: str,
        staged: str | Path,
        *,
        number: int | None = None,
        verified: bool = False,
        source: str | None = None,
    ) -> int:
        """Move a finished model directory in as the next version of `name`; returns its number.

        number: which it must be, for a model that has one elsewhere; verified: its files have been compared with their checksums
        just now; source: where it came from, for the history. Raises NotFound or Corrupt when `staged` is not a whole model,
        ParameterError when the name is not allowed, Conflict when there is a version of that number.
        """
        home, staged = self._home(name), Path(staged)
        manifest = read_manifest(staged)
        if not verified:
            verify_files(staged, manifest["files"])
        (home / "versions").mkdir(parents=True, exist_ok=True)
        with alone(home / LOCK):
            highest = self._highest(name)
            number = highest + 1 if number is None else number
            move_in(staged, home / "versions" / str(number))
            state = self._state(name)
            digests = {**state["digests"], str(number): manifest["sha256"]}
            self._write_state(name, {**state, "highest": max(highest, number), "digests": digests})
            _note(
                home,
                "publish",
                version=number,
                sha256=manifest["sha256"],
                **({"source": source} if source else {}),
            )
        return number

    def names(self) -> list[str]:
        """Names that have at least one version, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(
            path.name
            for path in self.root.iterdir()
            if NAME.fullmatch(path.name) and self.versions(path.name)
        )

    def versions(self, name: str) -> list[int]:
        """Version numbers of a name, ascending; empty when there are none."""
        folder = self._home(name) / "versions"
        found = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
        return sorted(
            int(number)
            for number in found
            if number.isdecimal() and (folder / number / MANIFEST).is_file()
        )

    def aliases(self, name: str) -> dict[str, int]:
        """Version numbers by alias, `latest` included when there is a version."""
        versions = self.versions(name)
        return {**self._state(name)["aliases"], **({LATEST: versions[-1]} if versions else {})}

    def describe(self, name: str, version: int) -> ModelVersion:
        """One version's summary. Raises NotFound, Corrupt."""
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
        """Summaries of all versions, of one name or of all, by name and number."""
        names = self.names() if name is None else [name]
        return [self.describe(each, version) for each in names for version in self.versions(each)]

    def resolve(self, reference: str) -> Path:
        """The directory of "name" (its latest version), "name:3" or "name@alias". Raises NotFound, ParameterError."""
        name, version = self.locate(reference)
        return self._version_path(name, version)

    def locate(self, reference: str) -> tuple[str, int]:
        """(name, version number) that a reference stands for now; of a split the primary one. Raises NotFound, ParameterError."""
        name, route = self.route(reference)
        return name, route.primary

    def route(self, reference: str) -> tuple[str, Route]:
        """(name, versions by weight) that a reference stands for now. Raises NotFound, ParameterError."""
        if ":" in reference:
            name, _, number = reference.partition(":")
            if not (number.isascii() and number.isdecimal() and len(number) <= 9):
                raise ParameterError(
                    f"version {excerpt(number)!r} is not a number; write {name[:80]}:1"
                )
            self._version_path(name, int(number))
            return name, Route.to(int(number))
        name, _, alias = reference.partition("@")
        if (alias or LATEST) == LATEST:
            version = self._latest(name)
            if version is not None:
                return name, Route.to(version)
        else:
            route = route_of(self._state(name), alias)
            if route is not None:
                return name, route
        known = self.aliases(name)
        if not known:
            raise NotFound(
                f"there is no model {excerpt(name)!r}; there are: {', '.join(self.names()) or 'none'}"
            )
        raise NotFound(
            f"model {name} has no alias {excerpt(alias)!r}; it has {', '.join(sorted(known))}"
        )

    def routes(self, name: str) -> dict[str, Route]:
        """Where its aliases lead that split requests or have a shadow; the others lead to one version (`aliases`)."""
        state = self._state(name)
        found = {alias: route_of(state, alias) for alias in state["routes"]}
        return {
            alias: route
            for alias, route in found.items()
            if route is not None and len(route.versions) > 1
        }

    def previous(self, name: str, alias: str = LATEST) -> list[int]:
        """Versions there still are that an alias led to before, latest first: what may answer when the present one can't."""
        versions = self.versions(name)
        if alias == LATEST:
            return versions[-2::-1]
        moves = [
            line
            for line in self.history(name)
            if line.get("action") == "set_alias" and line.get("alias") == alias
        ]
        before = [line["before"] for line in reversed(moves) if line.get("before") in versions]
        present = self._state(name)["aliases"].get(alias)
        return [version for version in dict.fromkeys(before) if version != present]

    def stamp(self, name: str) -> tuple[int, ...] | None:
        """Figures that differ once a version of `name` is published or deleted, or an alias moved: two questions to the system.

        None when they can't be trusted: something changed so lately that the file system's clock may not see the next change.
        Raises ParameterError for a name that can't be one.
        """
        home = f"{self.root}/{check_name(name, 'model name')}"
        try:
            folder, state = os.stat(f"{home}/versions"), os.stat(f"{home}/aliases.json")
        except FileNotFoundError:
            return None
        if max(folder.st_mtime, state.st_mtime) > time.time() - SETTLED:
            return None
        return folder.st_mtime_ns, folder.st_nlink, state.st_mtime_ns, state.st_ino, state.st_size

    def set_alias(self, name: str, alias: str, version: int) -> None:
        """Point an alias at a version. Raises NotFound when there is no such version, ParameterError for a bad alias."""
        self.set_route(name, alias, Route.to(version))

    def set_route(self, name: str, alias: str, route: Route) -> None:
        """Lead an alias to versions by weight. Raises NotFound when one of them is not there, ParameterError for a bad alias."""
        if check_name(alias, "alias") == LATEST:
            raise ParameterError(
                f"alias {LATEST!r} always means the highest version; choose another name"
            )
        for version in route.versions:
            self._version_path(name, version)
        with self._change(name) as home:
            for version in route.versions:
                self._version_path(
                    name, version
                )  # again: it may have been deleted before we had the lock
            state = self._state(name)
            aliases = {
                **state["aliases"],
                alias: route.primary,
            }  # which is all that earlier programs know of
            routes = {each: kept for each, kept in state["routes"].items() if each != alias}
            more = route.as_dict() if len(route.versions) > 1 else {}
            self._write_state(
                name,
                {
                    **state,
                    "aliases": aliases,
                    "routes": {**routes, alias: more} if more else routes,
                },
            )
            _note(
                home,
                "set_alias",
                alias=alias,
                version=route.primary,
                before=state["aliases"].get(alias),
                **more,
            )

    def delete_alias(self, name: str, alias: str) -> None:
        """Remove an alias. Raises NotFound when there is none."""
        with self._change(name) as home:
            state = self._state(name)
            if alias not in state["aliases"]:
                raise NotFound(
                    f"model {name} has no alias {excerpt(alias)!r}; it has {', '.join(state['aliases']) or 'none'}"
                )
            version = state["aliases"].pop(alias)
            state["routes"].pop(alias, None)
            self._write_state(name, state)
            _note(home, "delete_alias", alias=alias, before=version)

    def sets(self, name: str) -> LabelSets:
        """The sets of labels of a model: `registry.sets("news").put("safe", ["art", "music"])`. Raises ParameterError."""
        home = self._home(name)
        return LabelSets(
            home,
            lambda: self._change(name),
            lambda action, **facts: _note(home, action, **facts),
            self._known,
        )

    def delete(self, name: str, version: int) -> None:
        """Delete one version; its number is not used again. Raises NotFound, and Conflict while an alias points to it."""
        self._version_path(name, version)
        with self._change(name) as home:
            path = self._version_path(name, version)
            state = self._state(name)
            holders = [alias for alias in state["aliases"] if version in needed(state, alias)]
            if holders:
                raise Conflict(
                    f"{name}:{version} is in use as {', '.join(holders)}; move or delete the alias first"
                )
            for part, entry in (
                ("digests", str(version)),
                ("corrupt", str(version)),
                ("unloads", f"{name}:{version}"),
            ):
                state[part].pop(entry, None)
            self._write_state(name, {**state, "highest": self._highest(name)})
            gone = staging_directory(path)
            os.rename(path, gone)  # at once out of sight; processes that mapped it keep their pages
            sync_path(path.parent)
            _note(home, "delete", version=version)
        shutil.rmtree(gone, ignore_errors=True)

    def digest(self, name: str, version: int) -> str | None:
        """The sha256 of a version when it was published; None of those that were published before it was kept."""
        found = self._state(name)["digests"].get(str(version))
        return None if found is None else str(found)

    def corrupt(self, name: str) -> dict[int, str]:
        """Versions that somebody could not load because their files are not what was written, with the reason."""
        return {
            int(version): str(reason) for version, reason in self._state(name)["corrupt"].items()
        }

    def mark_corrupt(self, name: str, version: int, reason: str | None) -> None:
        """Remember that a version is corrupt, for everybody to see; None: that it is not any more. Raises NotFound."""
        self._version_path(name, version)

        def change(state: dict[str, Any]) -> None:
            state["corrupt"].pop(str(version), None)
            if reason is not None:
                state["corrupt"][str(version)] = reason

        self._alter(name, change, "sound" if reason is None else "corrupt", version=version)

    def kept(self, name: str) -> tuple[list[str], dict[str, int]]:
        """References of a name that every process shall hold in memory, and how often each was asked to be let go ("": all)."""
        state = self._state(name)
        return list(state["kept"]), {
            reference: int(times) for reference, times in state["unloads"].items()
        }

    def keep(self, reference: str) -> None:
        """Have every process hold what a reference stands for in memory. Raises NotFound, ParameterError."""
        name, _ = self.route(reference)

        def change(state: dict[str, Any]) -> None:
            state["kept"] = sorted({*state["kept"], reference})

        self._alter(name, change, "load", reference=reference)

    def let_go(self, reference: str) -> None:
        """Have every process drop what a reference stands for; of a bare name all its versions, of a version every name for it.

        Raises NotFound, ParameterError.
        """
        name, route = self.route(reference)

        def stays(kept: str) -> bool:
            return reference not in (name, kept) and not (
                ":" in reference and route.primary in self._versions_of(kept)
            )

        def change(state: dict[str, Any]) -> None:
            state["kept"] = [each for each in state["kept"] if stays(each)]
            state["unloads"][reference] = int(state["unloads"].get(reference, 0)) + 1

        self._alter(name, change, "unload", reference=reference)

    def _versions_of(self, reference: str) -> tuple[int, ...]:
        """The versions that a reference leads to; none when it leads nowhere any more."""
        try:
            return self.route(reference)[1].versions
        except NotFound:
            return ()

    @contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """Look at a name and change it as one: nobody else changes it in between. Raises NotFound when there is no such model."""
        with self._change(name):
            self._mine().add(name)
            try:
                yield
            finally:
                self._mine().discard(name)

    def history(self, name: str) -> list[dict[str, Any]]:
        """All changes to a name, oldest first: at (UTC), action, and what it was about (version, alias, set)."""
        path = self._home(name) / "history.jsonl"
        return (
            [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        )

    def _home(self, name: str) -> Path:
        """The folder of a name, the name checked."""
        return self.root / check_name(name, "model name")

    def _version_path(self, name: str, version: int) -> Path:
        """The directory of a version that exists."""
        path = self._home(name) / "versions" / str(int(version))
        if not (path / MANIFEST).is_file():
            known = ", ".join(str(number) for number in self.versions(name)) or "none"
            raise NotFound(f"there is no model {name}:{version}; versions: {known}")
        return path

    def _state(self, name: str) -> dict[str, Any]:
        """Aliases and the highest number given out."""
        try:
            state = read_json(self._home(name) / "aliases.json")
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

    def _alter(
        self, name: str, change: Callable[[dict[str, Any]], None], action: str, **facts: Any
    ) -> None:
        """Change the state of a name in place, and say so in its history, unless nothing changes."""
        with self._change(name) as home:
            before, state = self._state(name), self._state(name)
            change(state)
            if state != before:
                self._write_state(name, state)
                _note(home, action, **facts)

    def _latest(self, name: str) -> int | None:
        """The highest version there is: without a look at the others."""
        folder = f"{self._home(name)}/versions"
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
        write_json(self._home(name) / "aliases.json", state)

    def _highest(self, name: str) -> int:
        """The highest number ever given out, as far as the state or the folder knows."""
        return max([int(self._state(name)["highest"]), *self.versions(name)])

    @contextmanager
    def _change(self, name: str) -> Iterator[Path]:
        """The folder of a name that exists, locked against other changes."""
        home = self._home(name)
        if not home.is_dir():
            raise NotFound(
                f"there is no model {name!r}; there are: {', '.join(self.names()) or 'none'}"
            )
        if name in self._mine():
            yield home
        else:
            with alone(home / LOCK):
                yield home

    def _mine(self) -> set[str]:
        """Names that this thread has locked by `changing`."""
        if not hasattr(self._held, "names"):
            self._held.names = set()
        names: set[str] = self._held.names
        return names


def _note(home: Path, action: str, **facts: Any) -> None:
    """Append one line to the history of a name; the caller holds its lock."""
    line = json.dumps(
        {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "action": action, **facts}
    )
    with open(home / "history.jsonl", "a") as out:
        out.write(line + "\n")
        out.flush()
        os.fsync(out.fileno())
