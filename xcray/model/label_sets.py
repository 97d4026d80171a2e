"""Named sets of labels of a model, for allow and deny lists: `set:NAME`.

    root/NAME/sets/SET.json    the names of its labels

Sets hold names and not numbers, so they are valid for every version of the model, including future
ones. A set can contain labels that a version lacks; the user of the set reports them. A change is
one rename, visible to the next request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.errors import Corrupt, NotFound, ParameterError, excerpt, similar_or_all
from xcray.model.registry_files import SETTLE_SECONDS, RegistryFiles, append_history
from xcray.storage.atomic import NAME_PATTERN, check_name, read_json, sync_path, write_json

SUFFIX: Final = ".json"
MAX_CACHED: Final = 256  # parsed sets in memory
LabelSetCache = dict[Path, tuple[tuple[int, ...], "StoredLabelSet"]]


class StoredLabelSet(NamedTuple):
    """A set: its name, its label names in the given order, and its last change (UTC)."""

    name: str
    labels: tuple[str, ...]
    changed: str


class LabelSets:
    """The label sets of one model, created by `Registry.label_sets`.

    Calling it with the name of a set returns its label names.
    """

    def __init__(self, files: RegistryFiles, model: str, cache: LabelSetCache) -> None:
        """Initialise. files: of the registry; cache: parsed sets. Raises ParameterError."""
        self._files = files
        self._model = model
        self._folder = files.folder(model) / "sets"
        self._cache = cache

    def __call__(self, name: str) -> tuple[str, ...]:
        """Return the label names of a set. Raises NotFound, ParameterError."""
        return self.get(name).labels

    def names(self) -> list[str]:
        """Return the names of all sets, sorted."""
        names = (path.stem for path in self._folder.glob(f"*{SUFFIX}"))
        return sorted(name for name in names if NAME_PATTERN.fullmatch(name))

    def get(self, name: str) -> StoredLabelSet:
        """Return the current state of one set.

        Raises NotFound if there is none, ParameterError for an invalid name, Corrupt.
        """
        path = self._path(name)
        try:
            stat = os.stat(path)
        except FileNotFoundError:
            raise NotFound(
                f"there is no label set {excerpt(name)!r}{similar_or_all(name, self.names())}",
                code="NO_SET",
            ) from None
        change_token = (stat.st_ino, stat.st_mtime_ns, stat.st_size)  # a change is a new file
        cached = self._cache.get(path)
        if cached is None or cached[0] != change_token:
            cached = change_token, _read_set(path, name)
            if stat.st_mtime < time.time() - SETTLE_SECONDS:
                if len(self._cache) >= MAX_CACHED:
                    self._cache.clear()
                self._cache[path] = cached
        return cached[1]

    def put(self, name: str, labels: Iterable[str]) -> StoredLabelSet:
        """Create or replace a set of label names; repeats are dropped.

        Raises NotFound without such a model, ParameterError for an invalid label or an
        empty set.
        """
        path = self._path(name)
        names = list(dict.fromkeys(_check_labels(labels)))
        if not names:
            raise ParameterError(f"set {name!r} has no label: give at least one, or delete the set")
        with self._files.lock(self._model) as folder:
            self._folder.mkdir(exist_ok=True)
            changed = datetime.now(UTC).isoformat(timespec="milliseconds")
            write_json(path, {"schema_version": 1, "labels": names, "changed": changed})
            append_history(folder, "set_labels", set=name, labels=len(names))
        return self.get(name)

    def delete(self, name: str) -> None:
        """Delete a set. Raises NotFound."""
        with self._files.lock(self._model) as folder:
            self.get(name)
            self._path(name).unlink()
            sync_path(self._folder)
            self._cache.pop(self._path(name), None)
            append_history(folder, "delete_labels", set=name)

    def _path(self, name: str) -> Path:
        """Return the file of a set."""
        return self._folder / f"{check_name(name, 'name of a set')}{SUFFIX}"


def _check_labels(labels: Iterable[Any]) -> Iterable[str]:
    """Yield the labels. Raises ParameterError unless all are non-empty strings."""
    if isinstance(labels, str):
        raise ParameterError(
            f"a label set is a list of label names, not one text; write [{excerpt(labels)!r}]"
        )
    for label in labels:
        if not isinstance(label, str) or not label:
            raise ParameterError(
                f"a label set holds label names, not {excerpt(repr(label))}: "
                "numbers mean different labels in different versions"
            )
        yield label


def _read_set(path: Path, name: str) -> StoredLabelSet:
    """Read a set from its file. Raises Corrupt."""
    content = read_json(path)
    try:
        labels, changed = content["labels"], content["changed"]
        if content["schema_version"] != 1 or not all(
            isinstance(label, str) for label in [*labels, changed]
        ):
            raise TypeError
    except (KeyError, TypeError):
        raise Corrupt(
            f"set {name!r} is not a list of labels in schema version 1: write it again",
            file=path.name,
        ) from None
    return StoredLabelSet(name, tuple(labels), changed)
