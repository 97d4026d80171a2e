"""The ways of training by the family of the solver, and what a training would take, told without training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from xcray.arrays import frozen
from xcray.data.dataset import Dataset
from xcray.solvers import make_solver
from xcray.training.capacity.preflight import Estimate
from xcray.training.independent import Scattering
from xcray.training.rotation.strategy import Circulating
from xcray.training.spec import TrainSpec
from xcray.training.strategy import Setting, Way
from xcray.training.synchronous import Going

WAYS: Final[dict[str, Callable[[Setting], Way]]] = {
    "scatter": Scattering,
    "circulate": Circulating,
    "rounds": Going,
}


def way_of(at: Setting) -> Way:
    """The way in which the solver of a training is trained."""
    return WAYS[at.solver.family](at)


def foresee(spec: TrainSpec, probe: float = 2.0) -> Estimate:
    """What it takes to train `spec` from the start; probe: seconds a probe may take, about. Raises NotFound, Corrupt."""
    dataset = Dataset.open(spec.dataset)
    way = way_of(
        Setting(
            spec,
            dataset,
            make_solver(spec.solver, spec.params),
            Path(spec.dataset),
            "estimate",
            cluster=False,
        )
    )
    return way.foreseen(frozen(np.arange(dataset.n_labels), np.int32), probe)
