"""Synchronous strategy: all workers run one method at a time, the driver adds up the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from xcray.arrays import Int32, Pattern, TopK, frozen
from xcray.data.dataset import Dataset
from xcray.errors import Corrupt, Unavailable, XcrayError
from xcray.kernels.sparse import take_pattern_rows
from xcray.measures import f1, precision_at_k, predicted_sets
from xcray.solvers.least_squares.staged_solvers import StagesSolver
from xcray.solvers.replica import ReplicatedSolver
from xcray.solvers.solved_labels import SolvedLabels
from xcray.solvers.synchronous_contract import (
    HeldOut,
    InitialWeights,
    LabelWeights,
    RoundMetrics,
    SynchronousOutcome,
    SynchronousSolver,
    TrainingRows,
)
from xcray.storage.atomic import read_json, write_json
from xcray.system.blas_threads import limit_blas_threads
from xcray.training.capacity.epoch_resources import complete_estimate, problem_shape
from xcray.training.capacity.preflight import Estimate
from xcray.training.epoch_progress import CurvePoint, resume_note, seconds_left
from xcray.training.epoch_strategy import EpochStrategy, make_worker_group, outcome_report
from xcray.training.observer import TrainingObserver
from xcray.training.strategy import TrainingContext
from xcray.training.weight_checkpoints import WeightCheckpoints
from xcray.workers.observer import RunProgress
from xcray.workers.synchronous_calls import SynchronousCalls
from xcray.workers.timeline import START
from xcray.workers.worker_group import OBJECT_LOST

# Copies of all weights in Ray's object store: weights and gradients, of this round and the
# last.
STORE_COPIES: Final = 4
OUTCOME_FILE: Final = "outcome.json"
MAX_RESTARTS: Final = 5  # restarts from a checkpoint after node losses


@dataclass(frozen=True)
class SynchronousWorkerFactory:
    """Creates the workers of a synchronous training.

    solver: its class must be importable by the workers. path, content_hash: of the data set, which
    all nodes must see. workers: number of workers. in_memory: see `TrainingRows`.
    """

    solver: SynchronousSolver | StagesSolver | ReplicatedSolver
    path: str
    content_hash: str
    workers: int
    in_memory: bool = True

    def create_worker(self, worker: str, stopped: Callable[[], bool], /) -> Any:
        """Return the solver's worker, which takes its share of the rows."""
        number = int(worker.rpartition("-")[2])
        try:
            data = Dataset.open(Path(self.path))
            if data.content_hash != self.content_hash:
                raise Corrupt("another data set is there")
        except XcrayError as error:
            raise Unavailable(
                f"{worker} does not see the data set ({error.message}): "
                "put it on a file system that all nodes share",
                code="UNSEEN",
            ) from error
        rows = training_rows(data)._replace(in_memory=self.in_memory)
        return self.solver.create_worker(rows, number, self.workers, stopped)

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        self.solver.warm_up()


class Synchronous(EpochStrategy):
    """Strategy of family "synchronous", see `TrainingStrategy`."""

    def __init__(self, context: TrainingContext, solver: SynchronousSolver) -> None:
        super().__init__(context, solver)
        self._solver = solver
        self._n_features = solver.n_weights(context.dataset.n_features)
        self._history: list[dict[str, Any]] = []
        self._began = self._earlier_seconds = 0.0  # start of this attempt; seconds of earlier ones
        self._reason = ""  # why the training ends
        self._note = ""  # what happened since the last report
        self._curve: list[CurvePoint] = []  # of the gradient, since the start or the last loss
        self._limit = solver.stopping.limit

    def run_settings(self) -> dict[str, Any]:
        """Return no settings: a run can be resumed with any number of workers."""
        return {}

    def estimate(self, missing: Int32, probe_seconds: float | None = None) -> Estimate:
        """See `xcray.training.capacity.epoch_resources`."""
        shape = problem_shape(self._context.dataset, self._n_features)
        needs = self._solver.resources(shape, self.workers)
        return complete_estimate(
            self._context.spec, self.workers, self._context.dataset, shape, needs
        )

    def solve(self, observer: TrainingObserver) -> None:
        """Run rounds from the last saved weights, or from 0, then commit all weights."""
        if (self.folder / OUTCOME_FILE).is_file() and not len(observer.parts.missing):
            return
        (self.folder / OUTCOME_FILE).unlink(missing_ok=True)
        observer.parts.clear()
        context, checkpoints = self._context, WeightCheckpoints(self.folder)
        path, content_hash = str(context.dataset.path.resolve()), context.dataset.content_hash
        factory = SynchronousWorkerFactory(self._solver, path, content_hash, self.workers)
        store_bytes = STORE_COPIES * 8 * self._n_features * context.dataset.n_labels
        group = make_worker_group(context.spec, factory, self.workers, context.job, store_bytes)
        try:
            group.open()
            with observer.observe(group), limit_blas_threads():
                calls = SynchronousCalls(group, observer.stop.is_set, observer.record)
                trained = self._train(calls, observer, checkpoints)
                self._write_outcome(self._reason or trained.reason, calls.lost)
                for block in self._solver.blocks(trained, context.dataset.label_counts):
                    observer.commit(block)
                    observer.sync()
        finally:
            group.stop()
            group.close()
        checkpoints.clear()

    def summarize(self, block: SolvedLabels, measures: Mapping[str, float]) -> dict[str, Any]:
        """Return `outcome_report`, the final gradient norm and the number of lost workers."""
        newest = read_json(self.folder / OUTCOME_FILE)
        return {
            **outcome_report(self._solver, newest, block, measures),
            "gradient": newest["gradient"],
            "workers_lost": newest["lost"],
        }

    def _train(
        self, rounds: SynchronousCalls, observer: TrainingObserver, checkpoints: WeightCheckpoints
    ) -> SynchronousOutcome:
        """Run all rounds; after a node loss, restart from the last checkpoint."""
        for losses in range(MAX_RESTARTS + 1):
            start = self._resume(observer, checkpoints)
            base = len(self._history)

            def on_round(
                metrics: RoundMetrics, parts: Callable[[], Iterator[LabelWeights]], base: int = base
            ) -> bool:
                return self._on_round(
                    metrics._replace(number=base + metrics.number), parts, observer, checkpoints
                )

            try:
                return self._solver.train(
                    rounds, self._n_features, self._context.dataset.n_labels, on_round, start
                )
            except Unavailable as error:
                if error.code != OBJECT_LOST or losses == MAX_RESTARTS:
                    raise
                self._note = "a node was lost"
        raise AssertionError("the last time around raises")

    def _resume(
        self, observer: TrainingObserver, checkpoints: WeightCheckpoints
    ) -> InitialWeights | None:
        """Go back to the newest checkpoint and return its weights; None without one."""
        newest = checkpoints.newest()
        observer.discard_since(START if newest is None else newest.position)
        self._began, self._history, self._earlier_seconds = time.monotonic(), [], 0.0
        self._curve.clear()
        if newest is not None:
            self._history, self._earlier_seconds = newest.history, newest.seconds
        if self._note:
            self._note += resume_note(len(self._history))
        return None if newest is None else newest.weights

    def _on_round(
        self,
        metrics: RoundMetrics,
        parts: Callable[[], Iterator[LabelWeights]],
        observer: TrainingObserver,
        checkpoints: WeightCheckpoints,
    ) -> bool:
        """Record and report a round, save the weights if due; return whether to stop."""
        seconds = self._earlier_seconds + time.monotonic() - self._began
        entry = {
            "epoch": metrics.number,
            "seconds": round(seconds, 3),
            "objective": metrics.objective,
            "gradient": metrics.gradient,
        }
        self._history.append({**entry, **self._held_out_metrics(metrics.held_out)})
        rate = metrics.number / max(seconds, 1e-9)
        self._curve.append(CurvePoint(seconds, metrics.ratio))
        eta = seconds_left(self._solver.stopping, metrics.number, seconds, self._curve)
        newest, self._note, note = self._history[-1], "", self._note
        observer.report(RunProgress(metrics.number, self._limit, seconds, rate, eta, newest, note))
        left = observer.seconds_left()
        if left is not None and left <= 0.0:
            self._reason = f"the time of {self._context.spec.max_seconds:g} s was up"
        elif metrics.number >= self._limit:
            self._reason = f"after {self._limit} rounds"
        if checkpoints.due or self._reason:
            checkpoints.save(self._history, seconds, observer.mark(), parts)
        return bool(self._reason)

    def _held_out_metrics(self, held_out: HeldOut | None) -> dict[str, float]:
        """Return measures of held-out rows; nothing if they were not evaluated."""
        test = self._context.dataset.test
        if held_out is None or test is None:
            return {}
        truth: Pattern = take_pattern_rows(test.Y, frozen(held_out.rows, np.int64))
        top = TopK(frozen(held_out.labels, np.int32), frozen(held_out.scores, np.float64))
        precision = {
            f"P@{k}": precision_at_k(top, truth, k) for k in sorted({1, held_out.labels.shape[1]})
        }
        return {
            "held_out": held_out.loss,
            **precision,
            **f1(predicted_sets(top, truth.n_cols, k=1), truth),
        }

    def _write_outcome(self, reason: str, losses: int) -> None:
        """Write the training summary before the parts, so that parts never exist without it."""
        last = self._history[-1]
        metrics = {
            "epochs": last["epoch"],
            "objective": last["objective"],
            "gradient": last["gradient"],
            "reason": reason,
        }
        write_json(
            self.folder / OUTCOME_FILE, {**metrics, "history": self._history, "lost": losses}
        )


def training_rows(dataset: Dataset) -> TrainingRows:
    """Return the rows of a data set for a synchronous solver."""
    train, test = dataset.train, dataset.test
    held_out = None if test is None else (test.X, test.Y, test.weights)
    return TrainingRows(train.X, train.Y, train.weights, held_out)
