"""How long work tells how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

NONE: Final[Mapping[str, Any]] = MappingProxyType({})


# what a run has done, as its vitals count it
CLASSES: Final = "classes_solved"
SECONDS: Final = "worker_seconds"  # of workers, for work that counted
EPOCHS: Final = "epochs"
ROWS: Final = "rows_trained"  # rows times epochs
ANSWERED: Final = "rows_answered"
COPIED: Final = "batches_copied"  # begun beside the first, whose worker was late
WORKERS_LOST: Final = "workers_lost"
NODES_LOST: Final = "nodes_lost"


class Progress(NamedTuple):
    """How far work is.

    phase: of a training LOADING, TRAINING, MERGING, EVALUATING or PUBLISHING, with done and total in classes (TRAINING of solvers
    that go in epochs: in epochs); of a batch prediction LOADING, PREDICTING or PUBLISHING, with done and total in rows. seconds
    since the start; rate a second; eta in seconds, None when not known; note: a line for people; figures: for machines, where a
    training goes in epochs its newest "epoch", "objective" and "held_out" loss; vitals: how the run is doing, see
    `xcray.workers.run_metrics`.
    """

    phase: str
    done: int
    total: int
    seconds: float
    rate: float
    eta: float | None
    note: str
    figures: Mapping[str, Any] = NONE
    vitals: Mapping[str, Any] = NONE
