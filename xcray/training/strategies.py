"""The training strategy of a solver, and the estimate of a training, also as one document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from xcray.arrays import frozen
from xcray.data.dataset import Dataset
from xcray.errors import Refused
from xcray.solvers import make_solver
from xcray.training.auto_params import selection_seconds
from xcray.training.capacity.disk import free_bytes
from xcray.training.capacity.preflight import Estimate, check_fits, memory_limits
from xcray.training.group_training import GroupTraining
from xcray.training.independent import IndependentLabels
from xcray.training.label_groups.clustering import choose_sizes, cluster_labels
from xcray.training.label_groups.data import with_group_labels
from xcray.training.part_training import with_part_training
from xcray.training.spec import TrainSpec
from xcray.training.strategy import TrainingContext, TrainingStrategy

STRATEGIES: Final[Mapping[str, Callable[[TrainingContext, Any], TrainingStrategy]]] = {
    "independent": IndependentLabels,
    "group": GroupTraining,
}


def make_strategy(context: TrainingContext) -> TrainingStrategy:
    """Return the training strategy for a training's solver."""
    return STRATEGIES[context.solver.family](context, context.solver)


def estimate_training(spec: TrainSpec, probe_seconds: float = 2.0) -> Estimate:
    """Estimate training `spec` from the start, without training.

    probe_seconds: approximate time limit of the probe. Raises NotFound, Corrupt.
    """
    dataset, clusters = Dataset.open(spec.dataset), None
    if sizes := choose_sizes(spec.groups, dataset.n_labels):
        clusters = cluster_labels(dataset.train.X, dataset.train.YT, sizes)
        dataset = with_group_labels(dataset, clusters)
    strategy = make_strategy(
        TrainingContext(
            spec,
            dataset,
            make_solver(spec.solver, spec.params),
            Path(spec.dataset),
            "estimate",
            cluster=False,
            clusters=clusters,
        )
    )
    labels = frozen(np.arange(dataset.n_labels), np.int32)
    return with_part_training(spec, strategy.estimate(labels, probe_seconds), dataset)


def estimate_document(
    spec: TrainSpec, run_dir: Path, out: Path
) -> tuple[dict[str, Any], Refused | None]:
    """Return the fields of `EstimateView`, and why the training does not fit, None if it does.

    run_dir, out: where its parts and the model would be written.
    """
    estimate, limits = estimate_training(spec), memory_limits(spec)
    problem = None
    try:
        check_fits(estimate, limits, run_dir, out)
    except Refused as error:
        problem = error
    selection = selection_seconds(spec, Dataset.open(spec.dataset), estimate.core_seconds)
    return {
        "fits": problem is None,
        "problem": None if problem is None else problem.message,
        "workers": estimate.workers,
        "worker_bytes": estimate.worker + estimate.process,
        "memory_bytes": estimate.memory,
        "available_bytes": limits,
        "mapped_bytes": estimate.mapped,
        "disk_bytes": estimate.disk,
        "disk_free_bytes": free_bytes(out),
        "weights": estimate.weights,
        "core_seconds": estimate.core_seconds,
        "seconds": estimate.seconds,
        "selection_core_seconds": selection,
        "probed_labels": estimate.probed,
    }, problem
