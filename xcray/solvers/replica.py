"""Contract of joint solvers whose work several workers share, each with all weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from xcray.solvers.contract import JointSolver
from xcray.solvers.group_contract import Layout, TrainingRows
from xcray.solvers.solved_labels import SolvedLabels


class ReplicaReply(NamedTuple):
    """Reply of a replica to `Replica.advance`.

    part: its share of the array that all replicas need for the next step; None at the end. number:
    finished rounds. is_new: the replica does not have the state of this step and did nothing.
    """

    part: np.ndarray | None = None
    number: int = 0
    is_new: bool = False


class Replica(Protocol):
    """Worker of a training that all workers run alike, apart from shares of the expensive parts.

    A step yields a share of an array. The driver concatenates the shares of all workers in their
    order and sends the whole to each of them, so that their weights stay equal. Only these arrays
    travel, never weights.
    """

    def restore(self, directory: str, use_checkpoint: bool) -> tuple[None, int]:
        """Go back to the checkpoint in `directory`, or to the start; return the finished rounds.

        The first worker saves checkpoints there, if its node sees the directory.
        """

    def advance(self, step: int, whole: np.ndarray | None) -> tuple[None, ReplicaReply]:
        """Run step number `step` since `restore`, from 0.

        whole: what all replicas yielded in the step before; None in the first.
        """

    def result(self, is_needed: bool) -> tuple[SolvedLabels | None, bool]:
        """Return all labels after the last step, and whether the training has ended here.

        is_needed: whether to create the labels.
        """


class ReplicatedSolver(JointSolver):
    """Base of joint solvers whose work can be split over threads or workers, with the same bits."""

    @property
    def can_split(self) -> bool:
        """Return whether these parameters have work to share."""
        raise NotImplementedError

    def set_threads(self, local: Any, threads: int) -> None:
        """Let the training with the state `local` use that many threads."""
        raise NotImplementedError

    def create_worker(
        self, rows: TrainingRows, number: int, layout: Layout, stopped: Callable[[], bool]
    ) -> Replica:
        """Return worker `number`, created where it will run.

        Soon after `stopped` returns True, methods raise Stopped.
        """
        raise NotImplementedError
