"""Toy solver of family "synchronous": least squares by gradient steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.schedule.calls import at_worker
from xcray.solvers.declarations import (
    Link,
    ProblemShape,
    RecordSchema,
    ResourceNeeds,
    StoppingRule,
)
from xcray.solvers.multinomial import Shard, cut_share
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.solved_labels import SolvedLabels
from xcray.solvers.synchronous_contract import (
    RECORDS,
    InitialWeights,
    LabelWeights,
    RoundCallback,
    RoundMetrics,
    SynchronousOutcome,
    SynchronousSolver,
    TrainingRows,
    WorkerCalls,
    continue_training,
    to_solved_labels,
)


class GradientWorker:
    """A share of the rows."""

    def __init__(self, shard: Shard) -> None:
        self._X = shard.X.to_scipy()
        self._T = shard.targets.to_scipy().toarray()
        self._c = shard.weights[:, None]

    def scale(self) -> tuple[None, float]:
        """Return the largest |x|^2, which bounds the curvature."""
        squares = np.asarray(self._X.multiply(self._X).sum(axis=1))
        return None, float(squares.max(initial=0.0))

    def gradient(self, W: Float64) -> tuple[Float64, float]:
        """Return this share's part of the gradient (D', K), and of the loss."""
        R = self._X @ W - self._T
        return self._X.T @ (self._c * R), 0.5 * float((self._c * R * R).sum())


@dataclass(frozen=True)
class GradientSolver(Parameters, SynchronousSolver):
    """min over W  1/2 sum_i c_i |W'x_i - y_i|^2, by gradient steps of a fixed size."""

    revision: ClassVar[int] = 1
    link: ClassVar[Link] = "identity"
    records: ClassVar[RecordSchema] = RECORDS

    rounds: int = parameter(30, "maximum number of rounds", low=1)
    tolerance: float = parameter(1e-3, "stop at this share of the first gradient", low=0.0)

    @property
    def stopping(self) -> StoppingRule:
        """Return when the training ends."""
        return StoppingRule(
            "tolerance",
            self.tolerance,
            self.rounds,
            "the gradient is small",
            ("tolerance", "rounds"),
        )

    def create_worker(
        self, data: TrainingRows, number: int, workers: int, stopped: Callable[[], bool]
    ) -> GradientWorker:
        """Return a worker with its share of the rows."""
        return GradientWorker(cut_share(data.X, data.Y, data.weights, (number, workers), bias=0.0))

    def train(
        self,
        workers: WorkerCalls,
        n_features: int,
        n_labels: int,
        on_round: RoundCallback = continue_training,
        start: InitialWeights | None = None,
    ) -> SynchronousOutcome:
        """Take steps until the gradient is small."""
        W = np.zeros((n_features, n_labels)) if start is None else start(0, n_labels)
        size = 1.0 / max(scale for _, scale in workers.call(GradientWorker.scale))
        reason, number, first = "", 0, 0.0
        while not reason:
            replies = workers.call(GradientWorker.gradient, at_worker(workers.put(W)))
            G = np.sum([workers.fetch(handle) for handle, _ in replies], axis=0)
            loss, norm, number = sum(part for _, part in replies), np.linalg.norm(G), number + 1
            W, first = W - size * G, first or float(norm)
            last, parts = RoundMetrics(number, loss, float(norm), 2.0 * number, None), _parts(W)
            if on_round(last, parts):
                reason = "stopped by the caller"
            elif norm <= self.tolerance * first:
                reason = self.stopping.reached
            elif number >= self.rounds:
                reason = f"after {self.rounds} rounds"
        return SynchronousOutcome(last, reason, parts)

    def blocks(self, trained: SynchronousOutcome, positives: Int64) -> Iterator[SolvedLabels]:
        """Yield the weights of all labels."""
        for lo, hi, W in trained.parts():
            yield to_solved_labels(lo, W, 0.0, 0.0, positives[lo:hi], rounds=trained.last.number)

    def resources(self, shape: ProblemShape, workers: int) -> ResourceNeeds:
        """Return the needs: W and a gradient everywhere."""
        W, weights = 8 * shape.features * shape.labels, shape.expected_weights(0.0)
        seconds = 2.0 * self.rounds * shape.product_seconds
        return ResourceNeeds(2 * W, 2 * W + shape.n_bytes // workers, 2 * W, W, weights, seconds)


def _parts(W: Float64) -> Callable[[], Iterator[LabelWeights]]:
    """Return a function that yields all weights."""
    return partial(iter, [LabelWeights(0, W.shape[1], W)])
