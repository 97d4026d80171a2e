"""Checkpoints of a training: named arrays with a JSON note, complete or not used.

FOLDER/checkpoint-000012/  published by one rename:
    NAME.arrow             one file of arrays for each group
    checkpoint.json        the note, and a SHA-256 of every file's content and of itself

The two newest are kept. A damaged one is set aside, and the one before is used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from xcray.errors import Corrupt, XcrayError
from xcray.storage.array_files import Arrays, read_arrays, write_arrays
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    publish_directory,
    read_json,
    sha256_arrays,
    write_json,
)

NOTE_FILE: Final = "checkpoint.json"
MIN_SECONDS: Final = 1.0  # of work between two checkpoints
MAX_SHARE: Final = 0.05  # of the time, for writing them
N_KEPT: Final = 2  # the newest, and one to go back to if it is damaged

COPIES_ON_DISK: Final = N_KEPT + 1  # while one is written

# groups of arrays by name, each returned when it is needed
Groups: TypeAlias = Mapping[str, Callable[[], Arrays]]


class TrainingState(NamedTuple):
    """State of a training between two rounds.

    note: JSON. placed: objects that stay at workers, for trainings whose workers save them.
    """

    note: Mapping[str, Any]
    groups: Groups
    placed: Sequence[Any] = ()


class SavedFiles(NamedTuple):
    """A checkpoint on disk. note: JSON; files: SHA-256 of the arrays of each group, by name."""

    path: Path
    note: Mapping[str, Any]
    files: Mapping[str, str]


class CheckpointFolder:
    """The checkpoints of one run in its `folder`, which is created when the first one is saved.

    damaged: names of those that were set aside. seconds_to_save: that the last one took, 0 before
    the first.
    """

    def __init__(self, folder: Path) -> None:
        for left in folder.glob(".checkpoint-*.part"):  # of a process that died while it wrote
            discard_directory(left)
        self._folder = folder
        self._saved_at = time.monotonic()
        self.seconds_to_save = 0.0
        self.damaged: list[str] = []

    @property
    def due(self) -> bool:
        """Whether it is time for the next one: saving takes at most MAX_SHARE of the time."""
        wait = seconds_between(self.seconds_to_save)
        return time.monotonic() - self._saved_at >= wait

    def save(self, number: int, state: TrainingState) -> None:
        """Save the state after round `number` durably, then remove all but the newest.

        Raises OSError if the disk is full, and what a group raises; then nothing is published.
        """

        def write(staged: Path) -> dict[str, str]:
            groups = state.groups.items()
            return {name: write_arrays(file_of(staged, name), get()) for name, get in groups}

        self.save_files(number, state.note, write)

    def save_files(
        self,
        number: int,
        note: Mapping[str, Any],
        write: Callable[[Path], Mapping[str, str]],
    ) -> None:
        """Save a state whose files `write` puts into a directory, see `file_of`.

        It returns the SHA-256 of each group by name. Raises as `save`.
        """
        started, target = time.monotonic(), self._folder / f"checkpoint-{number:06d}"
        self._folder.mkdir(parents=True, exist_ok=True)
        staged = create_staging_directory(target)
        try:
            content = {"note": dict(note), "files": dict(write(staged))}
            write_json(staged / NOTE_FILE, {**content, "sha256": _digest(content)})
            discard_directory(target)
            publish_directory(staged, target)
        finally:
            discard_directory(staged)
        for older in self._paths()[N_KEPT:]:
            discard_directory(older)
        self._saved_at = time.monotonic()
        self.seconds_to_save = self._saved_at - started

    def newest(self) -> TrainingState | None:
        """Return the newest checkpoint without damage; None if there is none."""
        while (saved := self.newest_files()) is not None:
            try:
                files = saved.files.items()
                groups = {name: read_arrays(file_of(saved.path, name), sha) for name, sha in files}
            except XcrayError:
                self.set_aside(saved.path)
                continue
            return TrainingState(saved.note, {name: groups[name].copy for name in groups})
        return None

    def newest_files(self) -> SavedFiles | None:
        """Return the newest checkpoint with a valid note, of which no other file was read."""
        for path in self._paths():
            try:
                content = read_json(path / NOTE_FILE)
                digest = content.pop("sha256", None) if isinstance(content, dict) else None
                if digest != _digest(content):
                    raise Corrupt(f"{path.name} is not what was written")
            except XcrayError:
                self.set_aside(path)
                continue
            return SavedFiles(path, content["note"], content["files"])
        return None

    def set_aside(self, path: Path) -> None:
        """Rename a damaged checkpoint, so that it is not used; the last of its name is kept."""
        aside = path.with_suffix(".damaged")
        discard_directory(aside)
        path.rename(aside)
        self.damaged.append(path.name)

    def clear(self) -> None:
        """Remove all checkpoints after the training."""
        for path in self._paths():
            discard_directory(path)

    def _paths(self) -> list[Path]:
        """Return published checkpoints, newest first."""
        return sorted(self._folder.glob("checkpoint-[0-9]*[0-9]"), reverse=True)


def seconds_between(seconds_to_save: float) -> float:
    """Return the seconds of work between two checkpoints that take `seconds_to_save` each."""
    return max(MIN_SECONDS, seconds_to_save * (1.0 - MAX_SHARE) / MAX_SHARE)


def file_of(folder: Path, name: str) -> Path:
    """Return the file of the group `name` in a checkpoint."""
    return folder / f"{name}.arrow"


def _digest(content: Any) -> str:
    """Return a SHA-256 of the note and of the files' digests."""
    return sha256_arrays({"content": json.dumps(content, sort_keys=True)})
