"""Models in object storage: where each version lies, how it gets there, and how it comes from there into a registry.

    FOLDER/NAME/3-SEAL/...            version 3 of NAME, its files as in a model directory, manifest.json last
    FOLDER/NAME/aliases.json          where the aliases led when the models were last mirrored
    FOLDER/_tenants/TENANT/NAME/...   the same of another tenant than default

SEAL is the checksum of the manifest, which holds the checksum of every file: a folder can only ever hold one model, so nothing is
overwritten, whoever pushes at the same time, and nothing needs to be locked. Without its manifest a folder is no version yet.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.errors import Conflict, Corrupt, NotFound, ParameterError, excerpt
from xcray.model.directory import MANIFEST, manifest_of, read_manifest
from xcray.model.install import alone
from xcray.model.objectstore.client import NO_BUCKET, Place
from xcray.model.objectstore.transfer import MANIFEST_BYTES, Moved, checked, fetch, send
from xcray.model.registry import Registry
from xcray.model.traffic_split import Route
from xcray.storage.atomic import NAME, check_name, discard_directory, publish_directory, write_bytes

ALIASES: Final = "aliases.json"
NO_VERSION: Final = "NO_VERSION"
TENANTS: Final = "_tenants"
VERSION: Final = re.compile(r"([1-9]\d{0,8})-([0-9a-f]{64})")
STAGED: Final = ".pull-"
HASH: Final = re.compile(r"[0-9a-f]{64}")


class Remote(NamedTuple):
    """A version in a storage. number and seal: None where its folder does not tell."""

    place: Place
    name: str
    number: int | None
    seal: str | None

    def manifest(self) -> tuple[dict[str, Any], bytes]:
        """What it says, checked, and its bytes. Raises NotFound when it was pushed by half, Corrupt (or of a newer format)."""
        try:
            raw = (self.place / MANIFEST).read(MANIFEST_BYTES)
        except NotFound as error:
            if error.code == NO_BUCKET:
                raise
            raise NotFound(
                f"there is no whole model at {self.place.shown}: it has no {MANIFEST}, which comes last; push it again",
                code="HALF_PUSHED",
            ) from None
        found = manifest_of(raw)
        checked(found["files"], self.place.shown)
        if self.seal is not None and found["seal"] != self.seal:
            raise Corrupt(
                f"{self.place.shown} holds another model than its name says: restore it or push again",
                file=MANIFEST,
            )
        return found, raw


class Pushed(NamedTuple):
    """Where a model lies now. moved: nothing sent where it was there already."""

    shown: str
    name: str
    number: int
    seal: str
    moved: Moved


class Pulled(NamedTuple):
    """What came. path: the model directory; number: its version in the registry, None outside; moved: None if it was there."""

    source: str
    path: Path
    name: str
    number: int | None
    sha256: str
    moved: Moved | None


def names(folder: Place) -> list[str]:
    """Names of the models in a folder."""
    return [
        entry.name
        for entry in folder.entries()
        if entry.size is None and NAME.fullmatch(entry.name)
    ]


def tenants(folder: Place) -> list[str]:
    """Tenants other than default that have models in a folder."""
    return names(folder / TENANTS)


def versions(home: Place) -> list[Remote]:
    """Versions of a model's folder by number, also such as are on their way. Raises NotFound (bucket), Unavailable."""
    found = [VERSION.fullmatch(entry.name) for entry in home.entries() if entry.size is None]
    listed = [
        Remote(home / each.group(0), home.name, int(each.group(1)), each.group(2))
        for each in found
        if each
    ]
    return sorted(listed, key=lambda remote: (remote.number, remote.seal))


def is_whole(remote: Remote) -> bool:
    """Whether all of it is there."""
    return (remote.place / MANIFEST).size() is not None


def latest(home: Place) -> Remote:
    """The version with the highest number that is whole. Raises NotFound, and Conflict when two models claim that number."""
    whole: list[Remote] = []
    for remote in reversed(versions(home)):
        if whole and remote.number != whole[0].number:
            break
        if is_whole(remote):
            whole.append(remote)
    if not whole:
        raise NotFound(f"there is no whole model at {home.shown}: push one", code=NO_VERSION)
    return _only(whole)


def numbered(home: Place, number: int) -> Remote:
    """A version by number. Raises NotFound, Conflict when two models claim it."""
    whole = [remote for remote in versions(home) if remote.number == number and is_whole(remote)]
    if not whole:
        raise NotFound(f"there is no whole version {number} at {home.shown}")
    return _only(whole)


def aliases(home: Place) -> dict[str, Route]:
    """Where aliases led when the model was last mirrored. Raises Corrupt."""
    place = home / ALIASES
    return {} if place.size() is None else aliases_of(place.read(MANIFEST_BYTES), place.shown)


def aliases_text(routes: Mapping[str, Route]) -> bytes:
    """Aliases as they are kept."""
    kept = {alias: route.as_dict() for alias, route in routes.items()}
    return (
        json.dumps({"schema_version": 1, "aliases": kept}, indent=2, sort_keys=True) + "\n"
    ).encode()


def aliases_of(raw: bytes, shown: str) -> dict[str, Route]:
    """The aliases that an object holds. Raises Corrupt."""
    try:
        found = json.loads(raw)
        if found["schema_version"] != 1:
            raise Corrupt(
                f"{shown} has schema version {found['schema_version']}, this xcray reads 1: use a newer xcray"
            )
        return {
            check_name(alias, "alias"): Route.from_dict(route)
            for alias, route in found["aliases"].items()
        }
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        ParameterError,
        RecursionError,
    ) as error:
        raise Corrupt(
            f"{shown} does not hold aliases: {type(error).__name__}; the next mirroring mends it"
        ) from None


def push(
    source: Path,
    home: Place,
    number: int | None = None,
    *,
    again: bool = False,
    stop: threading.Event | None = None,
) -> Pushed:
    """Copy a model directory to the folder of its name, as version `number`, or as the next one unless it is there already.

    again: send all files, see `send`. Raises NotFound or Corrupt (no whole model), ParameterError (a name that can't be one),
    Conflict (another model has the number), Unavailable, Stopped.
    """
    check_name(home.name, "model name")
    manifest = read_manifest(source)
    checked(manifest["files"], source.name)
    seal, there = manifest["seal"], versions(home)
    if number is None:
        same = [
            remote.number for remote in there if remote.seal == seal and remote.number is not None
        ]
        number = same[-1] if same else max((remote.number or 0 for remote in there), default=0) + 1
    for remote in there:
        if remote.number == number and remote.seal != seal and is_whole(remote):
            raise Conflict(
                f"{home.shown} has another model as version {number}: push under another name, or pull that one first",
                code="VERSION_TAKEN",
            )
    target = home / f"{number}-{seal}"
    if not again and (target / MANIFEST).size() is not None:
        return Pushed(
            target.shown,
            home.name,
            number,
            seal,
            Moved(0, sum(entry["bytes"] for entry in manifest["files"].values())),
        )
    moved = send(
        source, manifest["files"], (source / MANIFEST).read_bytes(), target, again=again, stop=stop
    )
    return Pushed(target.shown, home.name, number, seal, moved)


def fetch_into(
    remote: Remote, target: Path, pinned: str | None = None, stop: threading.Event | None = None
) -> Pulled:
    """Copy a version to the directory `target`, by one rename, unless it is there. Raises Conflict when another thing is there."""
    manifest, raw = remote.manifest()
    check_pin(manifest, pinned, remote.place.shown)
    told = (remote.place.shown, target, remote.name, None, manifest["sha256"])
    with alone(target.parent / f".{target.name}.pull.lock"):
        if target.exists():
            if holds(target, manifest["seal"]):
                return Pulled(*told, None)
            raise Conflict(
                f"{target} exists already and is not this model: choose another place, or remove it"
            )
        staged, moved = _staged(remote, manifest, raw, target.parent, stop)
        publish_directory(staged, target)
    return Pulled(*told, moved)


def fetch_to(
    registry: Registry,
    name: str,
    remote: Remote,
    pinned: str | None = None,
    stop: threading.Event | None = None,
) -> Pulled:
    """Copy a version into a registry, under its number, unless it is there. Raises Conflict when that is another model."""
    manifest, raw = remote.manifest()
    check_pin(manifest, pinned, remote.place.shown)
    home = registry.root / check_name(name, "model name")
    with alone(home / ".pull.lock"):
        number = _present(registry, name, remote.number, manifest["seal"])
        moved = None
        if number is None:
            staged, moved = _staged(remote, manifest, raw, home, stop)
            number = registry.publish(
                name, staged, number=remote.number, verified=True, source=remote.place.shown
            )
            for left in home.glob(f"{STAGED}*.part"):  # of versions that nobody came back for
                discard_directory(left)
    return Pulled(
        remote.place.shown,
        registry.resolve(f"{name}:{number}"),
        name,
        number,
        manifest["sha256"],
        moved,
    )


def check_pin(manifest: Mapping[str, Any], pinned: str | None, shown: str) -> None:
    """Raise Corrupt unless a manifest is of the model that was pinned, by its seal or its sha256. ParameterError for no hash."""
    if pinned is None:
        return
    if not HASH.fullmatch(pinned.lower()):
        raise ParameterError(
            f"{excerpt(pinned)!r} is no SHA-256: write its 64 hexadecimal digits", code="HASH"
        )
    if pinned.lower() not in (manifest["seal"], manifest["sha256"]):
        raise Corrupt(
            f"{shown} is not the model that was asked for: its sha256 is {manifest['sha256']}, its seal {manifest['seal']}"
        )


def _only(whole: list[Remote]) -> Remote:
    """The one there is."""
    if len(whole) > 1:
        claims = ", ".join(remote.place.shown for remote in whole)
        raise Conflict(
            f"two models claim to be the same version: {claims}; name one of them, or remove one",
            code="VERSION_TAKEN",
        )
    return whole[0]


def _present(registry: Registry, name: str, number: int | None, seal: str) -> int | None:
    """The number under which a registry has a model; None when it has not. Raises Conflict when its number is another's."""
    there = registry.versions(name)
    same = [each for each in there if holds(registry.resolve(f"{name}:{each}"), seal)]
    if number is None or number in same:
        return number if number in same else next(iter(same), None)
    if number in there:
        raise Conflict(
            f"{name}:{number} is another model here: pull it under another name (--name)",
            code="VERSION_TAKEN",
        )
    return None


def holds(path: Path, seal: str) -> bool:
    """Whether a directory is the model of a seal."""
    try:
        return bool(read_manifest(path)["seal"] == seal)
    except (NotFound, Corrupt):
        return False


def _staged(
    remote: Remote,
    manifest: Mapping[str, Any],
    raw: bytes,
    beside: Path,
    stop: threading.Event | None,
) -> tuple[Path, Moved]:
    """A version fetched into a directory that the next try would find; its manifest is written last."""
    staged = beside / f"{STAGED}{manifest['seal'][:32]}.part"
    _remove_foreign(staged, manifest["files"])
    moved = fetch(remote.place, manifest["files"], staged, stop)
    write_bytes(staged / MANIFEST, raw)
    return staged, moved


def _remove_foreign(staged: Path, files: Mapping[str, Any]) -> None:
    """Remove what an earlier try can't have left there."""
    known = {MANIFEST, *files}
    if staged.is_dir() and any(
        path.relative_to(staged).as_posix() not in known
        for path in staged.rglob("*")
        if path.is_file()
    ):
        discard_directory(staged)
