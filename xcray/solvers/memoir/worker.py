"""Worker of a MEMOIR training: all weights, and a share of the searches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xcray.arrays import frozen
from xcray.solvers.group_contract import StateLost
from xcray.solvers.memoir.export import export_labels
from xcray.solvers.memoir.margin_errors import OracleErrors
from xcray.solvers.memoir.parameters import MemoirParameters
from xcray.solvers.memoir.rounds import Exchange, run_alone
from xcray.solvers.memoir.share import Share
from xcray.solvers.memoir.state import (
    MemoirState,
    MemoirTraining,
    restore,
    saved_arrays,
    start_training,
)
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.array_files import Arrays


class MemoirReply(NamedTuple):
    """Reply of a worker to a step.

    part: its share of an array that all workers need to go on; None at the end of a round. number:
    of finished rounds. is_done: whether they were all. errors: of the search in the last round.
    """

    part: np.ndarray | None
    number: int
    is_done: bool
    errors: OracleErrors | None


class MemoirWorker:
    """Runs the same training as all workers; only the searches of a group are split.

    A step returns a share of an array. The program concatenates the shares and sends the whole to
    all workers, so that their weights stay equal and never travel.
    """

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
        self._step = 0

    def begin(self, arrays: Arrays | None) -> tuple[None, MemoirReply]:
        """Go to a saved state, or to W = 0."""
        self._training = self._exchange = None  # its memory is free before the new one is made
        training = start_training(self._params, self._local, self._share)
        if arrays is not None:
            restore(training, arrays)
        self._training, self._step = training, 0
        return None, self._reply(training, None)

    def advance(self, step: int, whole: np.ndarray | None) -> tuple[None, MemoirReply]:
        """Run step number `step` since `begin`, from 0: to the next exchange or end of a round.

        whole: what all workers returned in the step before; None to start a round. Raises
        StateLost at a new worker.
        """
        training = self._state()
        if step != self._step:
            raise StateLost("the worker is new: it has not run the steps before")
        self._step += 1
        if self._share.workers == 1:
            run_alone(training.run_round(self._stopped))
            return None, self._reply(training, None)
        part = None
        try:
            if self._exchange is None or whole is None:
                self._exchange = training.run_round(self._stopped)
                part = next(self._exchange)
            else:
                part = self._exchange.send(whole)
        except StopIteration:
            self._exchange = None
        return None, self._reply(training, part)

    def snapshot(self, is_needed: bool) -> tuple[Arrays | None, None]:
        """Return the state after the last round if it is needed. Raises StateLost."""
        training = self._state()
        return saved_arrays(training) if is_needed else None, None

    def labels(self, is_needed: bool) -> tuple[SolvedLabels | None, None]:
        """Return all labels if they are needed. Raises StateLost."""
        training = self._state()
        if not is_needed:
            return None, None
        labels = frozen(np.arange(len(self._local.positives)), np.int32)
        return export_labels(training, self._local, labels), None

    def _state(self) -> MemoirTraining:
        """Return the training. Raises StateLost if the worker is new."""
        if self._training is None:
            raise StateLost("the worker is new: it has no weights")
        return self._training

    def _reply(self, training: MemoirTraining, part: np.ndarray | None) -> MemoirReply:
        """Return the reply after a step."""
        errors = training.rounds.errors[-1] if training.rounds.errors else None
        return MemoirReply(part, training.number, training.is_done, errors)
