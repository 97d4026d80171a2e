"""Training strategies by solver family, and the estimate of a training."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from xcray.arrays import frozen
from xcray.data.dataset import Dataset
from xcray.solvers import make_solver
from xcray.training.capacity.preflight import Estimate, worker_count
from xcray.training.group_training import GroupTraining
from xcray.training.independent import IndependentLabels
from xcray.training.shards.strategy import BlockRotation
from xcray.training.spec import TrainSpec
from xcray.training.strategy import TrainingContext, TrainingStrategy


def make_strategy(context: TrainingContext) -> TrainingStrategy:
    """Return the training strategy for the family of a training's solver."""
    solver = context.solver
    if solver.family == "independent":
        return IndependentLabels(context, solver, worker_count(context.spec))
    if solver.family == "rotation":
        return BlockRotation(context, solver)
    return GroupTraining(context, solver)


def estimate_training(spec: TrainSpec, probe_seconds: float = 2.0) -> Estimate:
    """Estimate training `spec` from the start, without training.

    probe_seconds: approximate time limit of the probe. Raises NotFound, Corrupt.
    """
    dataset = Dataset.open(spec.dataset)
    strategy = make_strategy(
        TrainingContext(
            spec,
            dataset,
            make_solver(spec.solver, spec.params),
            Path(spec.dataset),
            "estimate",
            cluster=False,
        )
    )
    return strategy.estimate(frozen(np.arange(dataset.n_labels), np.int32), probe_seconds)
