"""Worker of a MEMOIR training on several processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from xcray.arrays import frozen
from xcray.solvers.memoir.export import export_labels
from xcray.solvers.memoir.parameters import MemoirParameters
from xcray.solvers.memoir.rounds import Exchange, Share
from xcray.solvers.memoir.state import MemoirState, MemoirTraining, start_training
from xcray.solvers.replica import ReplicaReply
from xcray.solvers.solved_labels import SolvedLabels


class MemoirReplica:
    """Searches its share of each group and applies the updates of all: see `Replica`."""

    def __init__(
        self,
        params: MemoirParameters,
        local: MemoirState,
        share: Share,
        stopped: Callable[[], bool],
    ) -> None:
        self._params, self._local, self._share, self._stopped = params, local, share, stopped
        self._training: MemoirTraining | None = None
        self._exchange: Exchange | None = None
        self._step, self._has_ended = 0, False

    def restore(self, directory: str, use_checkpoint: bool) -> tuple[None, int]:
        """See `Replica`."""
        self._training = self._exchange = None  # its memory is free before the new one is made
        self._local.checkpoint_dir = Path(directory)
        training, checkpoint = start_training(
            self._params, self._local, self._share, use_checkpoint
        )
        saves = checkpoint if self._share.number == 0 else None
        self._training, self._exchange = training, training.run(self._stopped, saves)
        self._step, self._has_ended = 0, False
        return None, training.number

    def advance(self, step: int, whole: np.ndarray | None) -> tuple[None, ReplicaReply]:
        """See `Replica`."""
        if self._training is None or self._exchange is None or step != self._step:
            return None, ReplicaReply(is_new=True)
        part = None
        try:
            part = next(self._exchange) if whole is None else self._exchange.send(whole)
        except StopIteration:
            self._has_ended = True
        self._step += 1
        return None, ReplicaReply(part, self._training.number)

    def result(self, is_needed: bool) -> tuple[SolvedLabels | None, bool]:
        """See `Replica`."""
        if self._training is None or not (is_needed and self._has_ended):
            return None, self._has_ended
        labels = frozen(np.arange(len(self._local.positives)), np.int32)
        return export_labels(self._training, self._local, labels), True
