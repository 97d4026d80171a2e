"""Training strategies: the interface between the shared training flow and a solver family.

A strategy plans how the work is distributed, estimates its resources, and solves the labels.
Every strategy ends with all labels in committed parts. Merging, indexing, evaluation and the model
directory do not depend on the family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from xcray.arrays import Float64, Int32
from xcray.data.dataset import Dataset
from xcray.index.staged import Stage
from xcray.solvers import AnySolver
from xcray.solvers.group_contract import StagedModel
from xcray.solvers.solved_labels import SolvedLabels
from xcray.training.capacity.preflight import Estimate
from xcray.training.label_groups.clustering import LabelClusters
from xcray.training.observer import TrainingObserver
from xcray.training.spec import TrainSpec


@dataclass(frozen=True)
class TrainingContext:
    """What to train and where.

    solver: created from the spec. job: prefix of the names of Ray actors. cluster: whether the size
    of the spec's cluster can be queried. clusters: groups that the labels of the data set end with,
    see `xcray.training.label_groups`.
    """

    spec: TrainSpec
    dataset: Dataset
    solver: AnySolver
    run_dir: Path
    job: str
    cluster: bool = True
    clusters: LabelClusters | None = None


class TrainingStrategy(Protocol):
    """Training of one solver family.

    workers: number of workers. staged: the model after `solve`, if it is a chain of stages; else
    None.
    """

    workers: int
    staged: StagedModel | None

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of `staged`; none if the model has weights of labels."""
        return () if self.staged is None else self.staged.stages

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

    def solve(self, observer: TrainingObserver) -> None:
        """Solve the labels that no part holds.

        Raises Stopped, Unavailable, and the solver's errors.
        """

    def summarize(self, block: SolvedLabels, measures: Mapping[str, float]) -> dict[str, Any]:
        """Return the outcome of the training for its report; JSON.

        measures: of the published model.
        """

    def label_table(self, block: SolvedLabels, timeline: pa.Table) -> pa.Table:
        """Return the per-label report; see `xcray.training.report.summary.label_table`."""
