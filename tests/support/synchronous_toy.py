"""Helpers for tests of synchronous solvers: problems, and trainings in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.naive import multinomial as naive
from xcray.solvers.lc import LCSolver
from xcray.solvers.multinomial import Shard
from xcray.solvers.synchronous_contract import SynchronousOutcome
from xcray.workers.local_group import SerialGroup
from xcray.workers.synchronous_calls import SynchronousCalls

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
        number = int(worker.split("-")[1])
        return self._solver.make_worker(self._shards[number], self._watched[number], stopped)

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


def train(
    solver: Any,
    rows: Rows,
    workers: int = 1,
    sparse: bool = True,
    watched: Rows | None = None,
    **more: Any,
) -> SynchronousOutcome:
    """Train with `workers` workers in this thread."""
    group = SerialGroup(work_of(solver, rows, workers, sparse, watched), workers)
    group.open()
    return solver.train(SynchronousCalls(group), rows[0].shape[1], rows[1].shape[1], **more)


def weights(trained: SynchronousOutcome) -> Any:
    """Return all weights of a training: (D', K)."""
    parts = list(trained.parts())
    assert [part.lo for part in parts[1:]] == [part.hi for part in parts[:-1]]
    return np.concatenate([part.W for part in parts], axis=1)


def _share(solver: Any, n: int, worker: int, workers: int) -> Any:
    """Return the numbers of the rows that a worker holds: LC splits the labels instead."""
    return (
        np.arange(n)
        if isinstance(solver, LCSolver)
        else np.array_split(np.arange(n), workers)[worker]
    )
