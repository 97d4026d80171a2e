"""Training strategies: the interface between the shared training flow and a solver family.

A strategy plans how the work is distributed, estimates its resources, and solves the labels.
Every strategy ends with all labels in committed parts. Merging, indexing, evaluation and the model
directory do not depend on the family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from xcray.arrays import Float64, Int32
from xcray.data.dataset import Dataset
from xcray.solvers.solved_labels import SolvedLabels
from xcray.system.memory import MemoryUsage
from xcray.telemetry.progress import EMPTY
from xcray.training.block_store import BlockStore
from xcray.training.capacity.preflight import Estimate
from xcray.training.spec import TrainSpec
from xcray.workers.pool import StopFlag
from xcray.workers.run_metrics import RunMetrics


@dataclass(frozen=True)
class TrainingContext:
    """What to train and where.

    solver: created from the spec. job: prefix of the names of Ray actors. cluster: whether the size
    of the spec's cluster can be queried.
    """

    spec: TrainSpec
    dataset: Dataset
    solver: Any
    run_dir: Path
    job: str
    cluster: bool = True


class ProgressFn(Protocol):
    """Reports the progress of solving; see `xcray.telemetry.progress.Progress`.

    Raises Stopped if a stop was requested.
    """

    def __call__(
        self,
        done: int,
        total: int,
        rate: float = 0.0,
        eta: float | None = None,
        note: str = "",
        figures: Mapping[str, Any] = EMPTY,
    ) -> None:
        """Report progress."""


@dataclass(frozen=True)
class RunServices:
    """Services of a run for its strategy.

    parts: store of finished labels. seconds_left: returns the remaining time, None without a limit.
    set_memory_source: receives a function that reads the memory of workers in separate processes.
    metrics: metrics of the run.
    """

    parts: BlockStore
    stop: StopFlag
    report_progress: ProgressFn
    seconds_left: Callable[[], float | None]
    set_memory_source: Callable[[Callable[[], Mapping[str, MemoryUsage]]], None]
    metrics: RunMetrics


class TrainingStrategy(Protocol):
    """Training of one solver family.

    workers: number of workers. link: link function from scores to probabilities, as in the
    manifest.
    """

    workers: int
    link: str

    def run_settings(self) -> dict[str, Any]:
        """Return the settings that must not change when the run is resumed; JSON.

        Solver and data are checked separately.
        """

    def estimate(self, missing: Int32, probe_seconds: float | None = None) -> Estimate:
        """Estimate solving the labels `missing` (n,) int32 and publishing all labels.

        probe_seconds: time limit of a probe, or None for the default.
        """

    def weight_shares(self) -> Float64:
        """Return (K,) float64, in proportion to the expected number of weights per label."""

    def solve(self, services: RunServices) -> None:
        """Solve the labels that no part holds.

        Raises Stopped, Unavailable, and the solver's errors.
        """

    def summarize(self, block: SolvedLabels, measures: Mapping[str, float]) -> dict[str, Any]:
        """Return the outcome of the training for its report; JSON.

        measures: of the published model.
        """

    def class_table(self, block: SolvedLabels, timeline: pa.Table) -> pa.Table:
        """Return the per-class report; see `xcray.training.report.summary.class_table`."""
