"""Helpers for tests of group solvers: problems, and trainings in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.naive import multinomial as naive
from xcray.arrays import csr, pattern
from xcray.solvers.group_contract import Round, TrainingRows, WorkerCalls
from xcray.solvers.lbfgs.solver import LBFGSSolver, LBFGSWorker
from xcray.solvers.lc.solver import LCSolver, LCWorker
from xcray.solvers.row_shards import Shard
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.checkpoints import TrainingState
from xcray.training.group_workers import RowWorkerFactory
from xcray.workers.calls import GroupCalls
from xcray.workers.local_group import SerialGroup
from xcray.workers.parts import ShareWorker

Rows = tuple[Any, Any, Any]  # X (N, D), Y (N, K), c (N,), all dense


class Work:
    """Creates the workers of a solver over shards and held-out rows, given per worker."""

    def __init__(
        self, solver: Any, shards: Sequence[Shard], watched: Sequence[Shard | None]
    ) -> None:
        self._solver = solver
        self._shards = shards
        self._watched = watched

    def create_worker(self, worker: str, stopped: Callable[[], bool]) -> Any:
        def create(number: int) -> Any:
            rows = (self._shards[number], self._watched[number], stopped)
            is_lc = isinstance(self._solver, LCSolver)
            return LCWorker(self._solver, *rows) if is_lc else LBFGSWorker(*rows)

        return ShareWorker(create)

    def warm_up(self) -> None:
        self._solver.warm_up()


def problem(seed: int = 0, n: int = 90, d: int = 8, k: int = 5) -> Rows:
    """Return a noisy problem with weighted rows.

    Some rows have two labels. Some have none, and therefore no weight.
    """
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.5)).astype(np.float32).astype(np.float64)
    Y = np.eye(k)[(X @ rng.normal(size=(d, k)) + rng.normal(size=(n, k))).argmax(axis=1)]
    Y[: n // 6] = 0.5 * np.eye(k)[rng.permutation(n)[: n // 6] % k] + 0.5 * Y[: n // 6]
    c = rng.uniform(0.5, 2.0, n)
    Y[-4:], c[-4:] = 0.0, 0.0
    return X, Y, c / c.sum()


def work_of(
    solver: Any, rows: Rows, workers: int, sparse: bool = True, watched: Rows | None = None
) -> Work:
    """Return the work with all rows at every worker, or a share at each, as the solver needs."""
    shares = [_share(solver, len(rows[0]), worker, workers) for worker in range(workers)]
    shards = [naive.shard_of(*rows, share, sparse) for share in shares]
    values: list[Shard | None] = [None] * workers
    if watched is not None:
        values = [
            naive.shard_of(*watched, _share(solver, len(watched[0]), worker, workers), sparse)
            for worker in range(workers)
        ]
    return Work(solver, shards, values)


class Trained(NamedTuple):
    """A training in this thread: its rounds, why it ended, and the labels that it exports."""

    rounds: list[Round]
    reason: str
    weights: Any
    labels: list[SolvedLabels]

    @property
    def last(self) -> Round:
        return self.rounds[-1]


def train(
    solver: Any,
    rows: Rows,
    workers: int = 1,
    sparse: bool = True,
    watched: Rows | None = None,
    group: SerialGroup | None = None,
    **options: Any,
) -> Trained:
    """Train with `workers` workers in this thread; options: of `run_program`."""
    group = group or SerialGroup(work_of(solver, rows, workers, sparse, watched), workers)
    group.open()
    shape = (rows[0].shape[1] - bool(solver.bias), rows[1].shape[1])
    return run_program(solver, GroupCalls(group), empty_rows(*shape), **options)


def empty_rows(n_features: int, n_labels: int) -> TrainingRows:
    """Return no rows: the program of a solver whose workers have theirs needs the shape only."""
    return TrainingRows(csr([0], [], [], n_features), pattern([0], [], n_labels))


def run_program(
    solver: Any,
    calls: WorkerCalls,
    rows: TrainingRows,
    state: TrainingState | None = None,
    on_round: Callable[[Round, Any], None] = lambda done, W: None,
    rounds: int = 10**9,
) -> Trained:
    """Run a program from `state` to its end, or for some rounds; on_round: gets weights too."""
    program, done = solver.program(calls, rows, state), list[Round]()
    positives = np.arange(rows.Y.n_cols)
    while len(done) < rounds:
        try:
            each = next(program)
            done.append(each._replace(state=copied(each.state)))
        except StopIteration as end:
            reason = end.value
            break
        on_round(done[-1], weights_of(solver, done[-1].state, rows))
    else:
        reason = "stopped by the caller"
    last = done[-1].state if done else state
    return Trained(
        done, reason, weights_of(solver, last, rows), list(solver.export(calls, last, positives))
    )


def train_rows(solver: Any, rows: TrainingRows, workers: int = 1, **options: Any) -> Trained:
    """Train on rows with `workers` workers in this thread; options: of `run_program`."""
    layout = solver.layout(workers, True, rows)
    group = SerialGroup(RowWorkerFactory(solver, rows, layout), layout.workers)
    group.open()
    return run_program(solver, GroupCalls(group), rows, **options)


def copied(state: TrainingState) -> TrainingState:
    """Return a copy of a state, as on disk: a program can change its arrays when it goes on."""
    arrays = {
        name: {key: np.array(value) for key, value in get().items()}
        for name, get in state.groups.items()
    }
    return TrainingState(dict(state.note), {name: arrays[name].copy for name in arrays})


def weights_of(solver: Any, state: TrainingState, rows: TrainingRows) -> Any:
    """Return all weights of a state in double precision: (D', K); None if it has none."""
    if isinstance(solver, LBFGSSolver):
        scales = state.groups["scales"]()["scales"]
        return state.groups["lbfgs"]()["x"].reshape(len(scales), -1) / scales
    if isinstance(solver, LCSolver):
        parts = [state.groups[f"labels-{lo:08d}"]()["W"] for lo, _ in state.note["ranges"]]
        W = np.concatenate(parts, axis=1)
        mean = state.groups["sums"]()["weights"][:, None] / W.shape[1]
        return W - mean if solver.centre == "yes" else W
    return state.groups["weights"]()["W"] if "weights" in state.groups else None


def _share(solver: Any, n: int, worker: int, workers: int) -> Any:
    """Return the numbers of the rows that a worker holds: LC splits the labels instead."""
    return (
        np.arange(n)
        if isinstance(solver, LCSolver)
        else np.array_split(np.arange(n), workers)[worker]
    )
