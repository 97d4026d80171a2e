"""Training on a part of the training rows, so that something is chosen or fitted on the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from xcray.data.dataset import Dataset
from xcray.errors import Stopped
from xcray.model.model import Model
from xcray.telemetry.progress import Progress
from xcray.training.capacity.preflight import Estimate
from xcray.training.selection.evaluate import STOPPED
from xcray.training.selection.held_out import HOLDOUT
from xcray.training.spec import TrainSpec, parse_group_sizes
from xcray.workers.pool import StopFlag

PART: Final = "part"  # folder of the run directory; groups and a ranker have one training


class TrainModel(Protocol):
    """A training whose run directory is not locked, see `xcray.training.run`."""

    def __call__(
        self, spec: TrainSpec, run_dir: Path, out: Path, training: PartTraining, plan: Any
    ) -> object:
        """Train and publish the model `out`. plan: of groups of labels, or None."""


class PartTraining(NamedTuple):
    """How a run trains on parts of its rows.

    progress: called with a Progress; stop: a flag that ends it; job: prefix of the names of actors.
    """

    train: TrainModel
    progress: Callable[[Progress], None]
    stop: StopFlag
    job: str

    def model(self, spec: TrainSpec, part: Dataset, folder: Path, plan: Any = None) -> Model:
        """Return the model of `part`, trained as the search of `spec` is, in `folder`.

        A second call resumes, or opens the finished model. Raises as the training.
        """
        if not (folder / "model").exists():
            own = replace(
                spec,
                dataset=str(part.path),
                auto=None,
                groups="none",
                rank=False,
                calibrate=False,
                max_seconds=None,
            )
            training = self._replace(job=f"{self.job}-part")
            self.train(own, folder / "run", folder / "model", training, plan)
        return Model.open(folder / "model", verify=False)

    def renamed(self, phase: str, note: str = "") -> PartTraining:
        """Return the same with another phase of its progress."""

        def report(step: Progress) -> None:
            self.progress(step._replace(phase=phase, note=note))

        return self._replace(progress=report)

    def until(self, seconds: float | None) -> PartTraining:
        """Return the same, stopped after these seconds as if it was requested; None: never."""
        return self if seconds is None else self._replace(stop=TimedStop(self.stop, seconds))

    def check_stop(self) -> None:
        """Raise Stopped if a stop was requested."""
        if self.stop.is_set():
            raise Stopped(STOPPED)


class TimedStop(StopFlag):
    """A flag that is also set when the time is up."""

    def __init__(self, stop: StopFlag, seconds: float) -> None:
        super().__init__()
        self._stop, self._end = stop, time.monotonic() + seconds

    def is_set(self) -> bool:
        """Return whether a stop was requested or the time is up."""
        return self._stop.is_set() or time.monotonic() >= self._end


def with_part_training(spec: TrainSpec, estimate: Estimate, data: Dataset) -> Estimate:
    """Return the estimate of a training with that of its part, if groups or a ranker need one.

    The disk holds the rows of the part, its finished labels and its model, until the training ends.
    """
    if not spec.rank and parse_group_sizes(spec.groups) == ():
        return estimate
    share = 1.0 - HOLDOUT
    rows = sum(
        entry["bytes"]
        for name, entry in data.files.items()
        if name.startswith(("train/x", "train/y"))
    )
    return estimate._replace(
        core_seconds=(1.0 + share) * estimate.core_seconds,
        seconds=(1.0 + share) * estimate.seconds,
        parts=estimate.parts + int(share * (rows + estimate.parts + estimate.model)),
    )
