"""Strategy of joint solvers whose work is split: every worker has all weights, see `Replica`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from xcray.arrays import csr
from xcray.errors import Unavailable
from xcray.solvers.group_contract import Layout
from xcray.solvers.replica import Replica, ReplicatedSolver
from xcray.solvers.solved_labels import SolvedLabels
from xcray.training.epoch_strategy import initial_workers, make_worker_group
from xcray.training.group_training import GroupWorkerFactory
from xcray.training.independent import IndependentLabels
from xcray.training.observer import TrainingObserver
from xcray.training.report.summary import label_table
from xcray.training.strategy import TrainingContext
from xcray.workers.observer import RunProgress
from xcray.workers.synchronous_calls import SynchronousCalls

RESULT_BYTES: Final = 16  # per weight of the result, in Ray's object store
MAX_RESTORES: Final = 5  # without a finished round between them


class ReplicatedTraining(IndependentLabels):
    """Strategy of solvers of class `ReplicatedSolver` on several Ray workers."""

    def __init__(self, context: TrainingContext, solver: ReplicatedSolver) -> None:
        super().__init__(context, solver, initial_workers(context))
        self._replicated = solver
        self._lost = 0

    def solve(self, observer: TrainingObserver) -> None:
        """Train all labels, unless a part has them; none if the time is up before."""
        if not len(observer.parts.missing):
            return
        context = self._context
        path, content_hash = str(context.dataset.path.resolve()), context.dataset.content_hash
        factory = GroupWorkerFactory(self._replicated, path, content_hash, Layout(self.workers))
        store_bytes = RESULT_BYTES * self.estimate(observer.parts.missing, 0.0).weights
        group = make_worker_group(context.spec, factory, self.workers, context.job, store_bytes)
        try:
            group.open()
            with observer.observe(group):
                calls = SynchronousCalls(group, observer.stop.is_set, observer.record)
                try:
                    observer.commit(self._train(calls, observer))
                    observer.sync()
                except _TimeUp:
                    group.interrupt()
                self._lost = calls.lost
        finally:
            group.stop()
            group.close()

    def summarize(self, block: SolvedLabels, measures: Mapping[str, float]) -> dict[str, Any]:
        """Return the summary of a joint solver, and the number of lost workers."""
        return {**super().summarize(block, measures), "workers_lost": self._lost}

    def label_table(self, block: SolvedLabels, timeline: pa.Table) -> pa.Table:
        """Without seconds and workers: all labels are trained together."""
        return label_table(block, self._solver).drop_columns(["seconds", "worker"])

    def _train(self, calls: SynchronousCalls, observer: TrainingObserver) -> SolvedLabels:
        """Run all steps, from the last checkpoint; after the loss of a worker, go back to it.

        Raises _TimeUp, and Unavailable if workers keep being lost.
        """
        farthest, restores, note = -1, 0, ""
        while restores <= MAX_RESTORES:
            number = _restore(calls, str(self._context.run_dir.resolve()))
            restores = 0 if number > farthest else restores + 1
            farthest = max(farthest, number)
            if self._run_steps(calls, observer, number, note):
                results = calls.call_each(Replica.result, _only_first(calls.size))
                if all(has_ended for _, has_ended in results):
                    return _decode(calls.fetch(results[0][0]))
            note = "a worker was lost"
        raise Unavailable(
            f"workers were lost {restores} times before another round was saved; "
            "see the logs of the workers"
        )

    def _run_steps(
        self, calls: SynchronousCalls, observer: TrainingObserver, number: int, note: str
    ) -> bool:
        """Run the steps from finished round `number` on; return False if a worker is new."""
        began, first, limit = time.monotonic(), number, self._solver.stopping.limit
        step, whole = 0, None
        while True:
            left = observer.seconds_left()
            if left is not None and left <= 0.0:
                raise _TimeUp
            replies = [reply for _, reply in calls.call(Replica.advance, step, whole)]
            if any(reply.is_new for reply in replies):
                return False
            if replies[0].number > number or note:
                number, seconds = replies[0].number, time.monotonic() - began
                rate = (number - first) / max(seconds, 1e-9)
                eta = (limit - number) / rate if rate else None
                observer.report(RunProgress(number, limit, seconds, rate, eta, note=note))
                note = ""
            parts = [reply.part for reply in replies if reply.part is not None]
            if not parts:
                return True
            step, whole = step + 1, np.concatenate(parts)


class _TimeUp(Exception):
    """The time limit of the training was reached."""


def _restore(calls: SynchronousCalls, directory: str) -> int:
    """Let all workers go back to the last checkpoint; to the start if some do not see it."""
    for use_checkpoint in (True, False):
        numbers = {n for _, n in calls.call(Replica.restore, directory, use_checkpoint)}
        if len(numbers) == 1:
            break
    return max(numbers)


def _only_first(size: int) -> list[bool]:
    """Return True for the first worker, and False for the others."""
    return [number == 0 for number in range(size)]


def _decode(block: Any) -> SolvedLabels:
    """Return labels that came from another process with the array types of this one."""
    return SolvedLabels(block.labels, csr(*block.W), block.bias, block.records)
