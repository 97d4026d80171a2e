"""Toy solver of family "group": least squares by gradient steps."""

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
from xcray.solvers.group_contract import (
    GroupSolver,
    Layout,
    Program,
    Round,
    TrainingRows,
    WorkerCalls,
)
from xcray.solvers.label_weights import RECORDS, to_solved_labels
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.row_shards import Shard, cut_share
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.checkpoints import TrainingState


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
class GradientSolver(Parameters, GroupSolver):
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
        self, rows: TrainingRows, number: int, layout: Layout, stopped: Callable[[], bool]
    ) -> GradientWorker:
        """Return a worker with its share of the rows."""
        share = (number, layout.workers)
        return GradientWorker(cut_share(rows.X, rows.Y, rows.weights, share, bias=0.0))

    def program(
        self, calls: WorkerCalls, rows: TrainingRows, state: TrainingState | None = None
    ) -> Program:
        """Take steps until the gradient is small."""
        W, number, norm, first = np.zeros((rows.X.n_cols, rows.Y.n_cols)), 0, np.inf, 0.0
        if state is not None:
            W = state.groups["weights"]()["W"]
            number, norm, first = (state.note[name] for name in ("number", "norm", "first"))
        size = 1.0 / max(scale for _, scale in calls.call(GradientWorker.scale))
        while norm > self.tolerance * first:
            if number == self.rounds:
                return f"after {number} rounds"
            replies = calls.call(GradientWorker.gradient, at_worker(calls.put(W)))
            G = np.sum([calls.fetch(handle) for handle, _ in replies], axis=0)
            loss, norm, number = (
                sum(part for _, part in replies),
                float(np.linalg.norm(G)),
                number + 1,
            )
            W, first = W - size * G, first or norm
            note = {"number": number, "norm": norm, "first": first}
            state = TrainingState(note, {"weights": partial(dict, W=W)})
            yield Round(number, state, {"objective": loss, "gradient": norm})
        return self.stopping.reached

    def export(
        self, calls: WorkerCalls, state: TrainingState, positives: Int64
    ) -> Iterator[SolvedLabels]:
        """Yield the weights of all labels."""
        W = state.groups["weights"]()["W"]
        yield to_solved_labels(0, W, 0.0, 0.0, positives, rounds=state.note["number"])

    def resources(self, shape: ProblemShape, layout: Layout) -> ResourceNeeds:
        """Return the needs: W and a gradient everywhere."""
        W, weights = 8 * shape.features * shape.labels, shape.expected_weights(0.0)
        seconds = 2.0 * self.rounds * shape.product_seconds
        return ResourceNeeds(
            2 * W, 2 * W + shape.n_bytes // layout.workers, 2 * W, 3 * W, weights, seconds
        )
