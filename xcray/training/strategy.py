"""What the shared flow of a training asks of a family of solvers: how its work is spread, what it takes, and to do it.

A family ends its work as every other does, with all labels in committed parts: merging, index, measures and the model's directory
know no families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from xcray.arrays import Float64, Int32
from xcray.data.dataset import Dataset
from xcray.solvers.solved_labels import Block
from xcray.system.memory import Footprint
from xcray.telemetry.progress import NONE
from xcray.training.block_store import Parts
from xcray.training.capacity.preflight import Estimate
from xcray.training.spec import TrainSpec
from xcray.workers.pool import StopFlag
from xcray.workers.run_metrics import Vitals


@dataclass(frozen=True)
class Setting:
    """What is to be trained and where: solver is the one of the spec, made; job names Ray actors; cluster: whether the one that the
    spec names may be asked how large it is."""

    spec: TrainSpec
    dataset: Dataset
    solver: Any
    run_dir: Path
    job: str
    cluster: bool = True


class Tell(Protocol):
    """Reports how far the solving is; see `xcray.telemetry.progress.Progress`. Raises Stopped when a stop was asked for."""

    def __call__(
        self,
        done: int,
        total: int,
        rate: float = 0.0,
        eta: float | None = None,
        note: str = "",
        figures: Mapping[str, Any] = NONE,
    ) -> None:
        """Report."""


@dataclass(frozen=True)
class Desk:
    """What a solving is handed. parts: where finished labels go; seconds_left: of the time that the spec allows, None for no end;
    watch: is given the function that asks workers in processes of their own what they hold; vitals: collects how it is doing."""

    parts: Parts
    stop: StopFlag
    tell: Tell
    seconds_left: Callable[[], float | None]
    watch: Callable[[Callable[[], Mapping[str, Footprint]]], None]
    vitals: Vitals


class Way(Protocol):
    """One family's training. workers: how many; link: how scores become probabilities, as the model's directory names it."""

    workers: int
    link: str

    def settled(self) -> dict[str, Any]:
        """What was settled for this run and must be the same when it goes on, beside solver and data; JSON."""

    def foreseen(self, missing: Int32, probe: float | None = None) -> Estimate:
        """What solving the labels `missing` (n,) int32 and publishing all takes; probe: seconds a probe may take, or None."""

    def shares(self) -> Float64:
        """(K,) float64: what each label's weights are thought to be in proportion to."""

    def solve(self, desk: Desk) -> None:
        """Solve the labels that no part holds. Raises Stopped, Unavailable, and what the solver raises."""

    def figures(self, block: Block, measures: Mapping[str, float]) -> dict[str, Any]:
        """How the training came out, for its report; JSON. measures: of the published model."""

    def classes(self, block: Block, timeline: pa.Table) -> pa.Table:
        """The report by class; see `xcray.training.report.summary.class_table`."""
