"""Sets of labels kept under a name beside a model's aliases, for allow and deny lists: `set:NAME`.

    root/NAME/sets/SET.json    the names of its labels

They are names, not numbers, so that they hold for every version of the model, also for those to come. A set may name labels that a
version lacks; whoever uses it tells which. A change is one rename, seen by the next request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.errors import Corrupt, NotFound, ParameterError, excerpt
from xcray.storage.atomic import check_name, read_json, sync_path, write_json

SUFFIX: Final = ".json"
KEPT: Final = 256  # sets that stay parsed
SETTLED: Final = (
    2.0  # seconds after which the next change gets another time, whatever the file system's clock
)
Known = dict[Path, tuple[tuple[int, ...], "LabelSet"]]


class LabelSet(NamedTuple):
    """A set: its name, the names of its labels in the order given, and when it was changed (UTC)."""

    name: str
    labels: tuple[str, ...]
    changed: str


class LabelSets:
    """The sets of one model; made by `Registry.sets`. Calling it with the name of a set gives the names of its labels."""

    def __init__(
        self,
        home: Path,
        change: Callable[[], AbstractContextManager[Path]],
        note: Callable[..., None],
        known: Known,
    ) -> None:
        """home: the model's folder; change: locks it, or raises NotFound; note: writes its history; known: parsed sets."""
        self._folder = home / "sets"
        self._change = change
        self._note = note
        self._known = known

    def __call__(self, name: str) -> tuple[str, ...]:
        """The names of the labels of a set. Raises NotFound, ParameterError."""
        return self.get(name).labels

    def names(self) -> list[str]:
        """All sets, sorted."""
        found = (path.name for path in self._folder.iterdir()) if self._folder.is_dir() else ()
        return sorted(
            name.removesuffix(SUFFIX)
            for name in found
            if name.endswith(SUFFIX) and not name.startswith(".")
        )

    def get(self, name: str) -> LabelSet:
        """One set, as it is now. Raises NotFound when there is none, ParameterError for what can't be a name, Corrupt."""
        path = self._path(name)
        try:
            stat = os.stat(path)
        except FileNotFoundError:
            raise NotFound(
                f"there is no set of labels {excerpt(name)!r}; there are: {', '.join(self.names()) or 'none'}",
                code="NO_SET",
            ) from None
        mark = (stat.st_ino, stat.st_mtime_ns, stat.st_size)  # a change is a new file
        known = self._known.get(path)
        if known is None or known[0] != mark:
            known = mark, _read(path, name)
            if stat.st_mtime < time.time() - SETTLED:
                if len(self._known) >= KEPT:
                    self._known.clear()
                self._known[path] = known
        return known[1]

    def put(self, name: str, labels: Iterable[str]) -> LabelSet:
        """Keep names of labels as a set, in place of what it was; repeats are dropped. Raises ParameterError, also for no label."""
        path = self._path(name)
        given = list(dict.fromkeys(_checked(labels)))
        if not given:
            raise ParameterError(f"set {name!r} has no label: name at least one, or delete the set")
        with self._change():
            self._folder.mkdir(exist_ok=True)
            changed = datetime.now(UTC).isoformat(timespec="milliseconds")
            write_json(path, {"schema_version": 1, "labels": given, "changed": changed})
            self._note("set_labels", set=name, labels=len(given))
        return self.get(name)

    def delete(self, name: str) -> None:
        """Remove a set. Raises NotFound."""
        with self._change():
            self.get(name)
            self._path(name).unlink()
            sync_path(self._folder)
            self._known.pop(self._path(name), None)
            self._note("delete_labels", set=name)

    def _path(self, name: str) -> Path:
        """The file of a set."""
        return self._folder / f"{check_name(name, 'name of a set')}{SUFFIX}"


def _checked(labels: Iterable[Any]) -> Iterable[str]:
    """The labels, all of them texts."""
    if isinstance(labels, str):
        raise ParameterError(
            f"a set is a list of names of labels, not one text; write [{excerpt(labels)!r}]"
        )
    for label in labels:
        if not isinstance(label, str) or not label:
            raise ParameterError(
                f"a set holds names of labels, not {excerpt(repr(label))}: numbers mean other labels in other versions"
            )
        yield label


def _read(path: Path, name: str) -> LabelSet:
    """A set from its file."""
    found = read_json(path)
    try:
        labels, changed = found["labels"], found["changed"]
        if found["schema_version"] != 1 or not all(
            isinstance(label, str) for label in [*labels, changed]
        ):
            raise TypeError
    except (KeyError, TypeError):
        raise Corrupt(
            f"set {name!r} is not a list of labels of schema version 1: put it again",
            file=path.name,
        ) from None
    return LabelSet(name, tuple(labels), changed)
