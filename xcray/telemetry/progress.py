"""Progress reports of long-running work."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


# names of the counters in `Progress.metrics`
LABELS_SOLVED: Final = "labels_solved"
WORKER_SECONDS: Final = "worker_seconds"  # seconds of workers for work that counted
EPOCHS: Final = "epochs"
ROWS_TRAINED: Final = "rows_trained"  # rows times epochs
ROWS_ANSWERED: Final = "rows_answered"
BATCHES_COPIED: Final = "batches_copied"  # second copies of batches whose worker was late
WORKERS_LOST: Final = "workers_lost"
NODES_LOST: Final = "nodes_lost"


class Progress(NamedTuple):
    """The progress of a training or batch prediction.

    phase: LOADING, TRAINING, MERGING, EVALUATING or PUBLISHING for a training, with done and total
    in labels (or in epochs, during TRAINING of solvers with epochs). Before them SELECTING, if
    parameters are chosen, with done in settings and total 0. LOADING, PREDICTING or
    PUBLISHING for a batch prediction, with done and total in rows. seconds: since the start. rate:
    per second. eta: seconds, or None if unknown. note: a line for people. newest: the last
    "epoch", "objective" and "held_out" loss of trainings with epochs. metrics: see
    `xcray.workers.run_metrics`.
    """

    phase: str
    done: int
    total: int
    seconds: float
    rate: float
    eta: float | None
    note: str
    newest: Mapping[str, Any] = EMPTY
    metrics: Mapping[str, Any] = EMPTY
