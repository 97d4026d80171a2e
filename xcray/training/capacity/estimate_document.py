"""The estimated needs of a training as one document, for the service and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xcray.data.dataset import Dataset
from xcray.errors import Refused
from xcray.training.auto_params import selection_seconds
from xcray.training.capacity.disk import free_bytes
from xcray.training.capacity.preflight import check_fits, memory_limits
from xcray.training.spec import TrainSpec
from xcray.training.strategies import estimate_training


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
