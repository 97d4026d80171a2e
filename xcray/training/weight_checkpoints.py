"""Checkpoints of the weights of a synchronous training, as directories published by one rename."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64
from xcray.errors import XcrayError
from xcray.solvers.synchronous_contract import InitialWeights, LabelWeights
from xcray.storage.array_files import read_arrays, write_arrays
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    publish_directory,
    read_json,
    write_json,
)
from xcray.workers.timeline import START, TimelinePosition

CHECKPOINT_SECONDS: Final = 30.0  # between two checkpoints of the weights
FIRST_SECONDS: Final = 1.0  # of work before the first one of a run
METADATA_FILE: Final = "checkpoint.json"


class SavedWeights(NamedTuple):
    """A checkpoint: the history, seconds of training and timeline up to it, and its weights."""

    history: list[dict[str, Any]]
    seconds: float
    position: TimelinePosition
    weights: InitialWeights


class WeightCheckpoints:
    """Checkpoints of the weights, at most one every CHECKPOINT_SECONDS.

    The first one of a run is due after FIRST_SECONDS, so that a loss never costs much more. Each
    one is a directory that is published by one rename; only the newest is kept.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".round-*.part"):
            discard_directory(left)
        self._folder = folder
        self._saved_at = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time for the next one."""
        first = min(FIRST_SECONDS, CHECKPOINT_SECONDS)
        interval = CHECKPOINT_SECONDS if self._paths() else first
        return time.monotonic() - self._saved_at >= interval

    def save(
        self,
        history: list[dict[str, Any]],
        seconds: float,
        position: TimelinePosition,
        parts: Callable[[], Iterator[LabelWeights]],
    ) -> None:
        """Save the weights after the last round of `history`, after `seconds` of training.

        position: in the timeline, after that round.
        """
        target = self._folder / f"round-{len(history):06d}"
        staged, files = create_staging_directory(target), []
        try:
            for number, part in enumerate(parts()):
                digest = write_arrays(staged / f"weights-{number:05d}.arrow", {"W": part.W})
                files.append({"lo": part.lo, "hi": part.hi, "sha256": digest})
            metadata = {
                "history": history,
                "seconds": seconds,
                "timeline": position,
                "files": files,
            }
            write_json(staged / METADATA_FILE, metadata)
            discard_directory(target)
            publish_directory(staged, target)
        finally:
            discard_directory(staged)
        for older in self._paths()[1:]:
            discard_directory(older)
        self._saved_at = time.monotonic()

    def newest(self) -> SavedWeights | None:
        """Return the last saved weights; None without any.

        Damaged checkpoints are removed.
        """
        for path in self._paths():
            try:
                metadata = read_json(path / METADATA_FILE)
                files = [
                    (f"weights-{number:05d}.arrow", each["sha256"])
                    for number, each in enumerate(metadata["files"])
                ]
                arrays = [read_arrays(path / name, digest)["W"] for name, digest in files]
            except XcrayError:
                discard_directory(path)
                continue
            ends = [(each["lo"], each["hi"]) for each in metadata["files"]]
            position = TimelinePosition(*metadata.get("timeline", START))
            weights = partial(weight_columns, ends, arrays)
            return SavedWeights(metadata["history"], metadata["seconds"], position, weights)
        return None

    def clear(self) -> None:
        """Remove all checkpoints after the training."""
        for path in self._paths():
            discard_directory(path)

    def _paths(self) -> list[Path]:
        """Return the published checkpoints, newest first."""
        return sorted(self._folder.glob("round-[0-9]*"), reverse=True)


def weight_columns(
    ends: Sequence[tuple[int, int]], arrays: Sequence[Float64], lo: int, hi: int
) -> Float64:
    """Return the weights of labels lo .. hi-1: (D', hi-lo).

    arrays: weights of labels a .. b-1 each, where (a, b) are the `ends`.
    """
    overlapping = [
        W[:, max(lo - a, 0) : hi - a]
        for (a, b), W in zip(ends, arrays, strict=True)
        if a < hi and b > lo
    ]
    return np.concatenate(overlapping, axis=1)
