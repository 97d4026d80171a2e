"""One contract, one suite: the serial pool, the threaded pool and the loop that drives them. Ray's has a file of its own."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from tests.test_ppdsparse import problem
from xcray.errors import ShapeMismatch, Stopped, Unavailable
from xcray.execution.drive import drive
from xcray.execution.local import SerialPool, ThreadPool
from xcray.execution.pool import Result, StopFlag
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.schedule.messages import Joined, Lost
from xcray.schedule.scatter import Scatter
from xcray.solvers.block import merge
from xcray.solvers.ppdsparse import PPDSparseSolver

POOLS = {
    "serial": SerialPool,
    "one thread": lambda solver, local: ThreadPool(solver, local, 1),
    "three threads": lambda solver, local: ThreadPool(solver, local, 3),
}


def setting(k: int = 24, **parameters):
    """A solver, its local part and a schedule of single labels and small batches."""
    X, Y = problem(21, n=300, d=80, k=k)
    solver = PPDSparseSolver(**parameters)
    local = solver.load(X, transpose(X), transpose_pattern(Y))
    costs = solver.cost_terms(X, local.problem.XT, local.problem.YT) @ solver.cost_rates
    return solver, local, Scatter(range(k), costs / costs.sum() / 2)


@pytest.mark.parametrize("name", POOLS)
def test_every_pool_gives_the_same_bits(name):
    solver, local, schedule = setting()
    results: list[Result] = []
    ticks = []
    drive(schedule, POOLS[name](solver, local), commit=results.append, stop=StopFlag(), tick=lambda: ticks.append(1))
    merged = merge([r.block for r in results], 24, 80)
    assert merged.digest() == solver.solve(local.sibling(), np.arange(24, dtype=np.int32)).digest()
    assert len(results) > 4
    assert ticks
    assert all(r.seconds > 0 for r in results)


@pytest.mark.parametrize("name", POOLS)
def test_a_stop_keeps_what_was_committed_and_ends_threads(name):
    solver, local, schedule = setting()
    stop, committed = StopFlag(), []

    def commit(result: Result) -> None:
        committed.append(result)
        stop.set()

    with pytest.raises(Stopped):
        drive(schedule, POOLS[name](solver, local), commit=commit, stop=stop, tick=lambda: None)
    assert 1 <= sum(len(r.task.labels) for r in committed) < 24
    assert not [t for t in threading.enumerate() if t.name.startswith("xcray-thread")]


@pytest.mark.parametrize("name", POOLS)
def test_a_stop_reaches_into_a_long_class(name, monkeypatch):
    """A class that would take minutes is given up within a slice."""
    monkeypatch.setattr("xcray.solvers.ppdsparse.SLICE", 2_000)
    solver, local, schedule = setting(k=2, eps=1e-300, C=1e9, tau=1e-6, max_sweeps=2**31 - 1)
    stop = StopFlag()
    timer = threading.Timer(0.3, stop.set)
    timer.start()
    started = time.monotonic()
    pool = POOLS[name](solver, local)
    if name == "serial":
        timer.cancel()
        threading.Timer(
            0.3, pool.stop
        ).start()  # the loop can't look while the one thread works: a handler or another thread stops it
    with pytest.raises(Stopped):
        drive(schedule, pool, commit=lambda _: None, stop=stop, tick=lambda: None)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("name", POOLS)
def test_what_a_task_raises_comes_out(name, monkeypatch):
    solver, local, schedule = setting()

    def broken(*_):
        raise ShapeMismatch("as if")

    monkeypatch.setattr(PPDSparseSolver, "solve", broken)
    monkeypatch.setattr(PPDSparseSolver, "warm_up", lambda _: None)
    with pytest.raises(ShapeMismatch, match="as if"):
        drive(schedule, POOLS[name](solver, local), commit=lambda _: None, stop=StopFlag(), tick=lambda: None)


class FragilePool(SerialPool):
    """A serial pool whose worker dies after every third batch, and whose dead workers answer late."""

    def __init__(self, solver, local):
        super().__init__(solver, local)
        self.life, self.late = 0, []

    def wait(self, seconds):
        """As the serial pool, with deaths."""
        reports = super().wait(seconds)
        out = [*self.late]
        self.late = []
        for report in reports:
            if isinstance(report, Result):
                self.life += 1
                if self.life % 3 == 0:
                    self.late.append(report)
                    self._tasks.clear()
                    out += [Lost(report.worker), Joined(f"again-{self.life}")]
                    continue
            out.append(report)
        return out


def test_lost_workers_and_late_answers_change_no_bit():
    solver, local, schedule = setting()
    results = []
    drive(schedule, FragilePool(solver, local), commit=results.append, stop=StopFlag(), tick=lambda: None)
    labels = [label for r in results for label in r.task.labels]
    assert sorted(labels) == list(range(24))
    assert (
        merge([r.block for r in results], 24, 80).digest() == solver.solve(local.sibling(), np.arange(24, dtype=np.int32)).digest()
    )


def test_a_batch_that_kills_every_worker_ends_with_a_reason():
    class Deadly(SerialPool):
        def wait(self, seconds):
            """Every submitted batch kills its worker."""
            if self._tasks:
                worker, _ = self._tasks.popleft()
                return [Lost(worker), Joined(worker + "+")]
            return super().wait(seconds)

    solver, local, schedule = setting()
    with pytest.raises(Unavailable, match="3 workers were lost"):
        drive(schedule, Deadly(solver, local), commit=lambda _: None, stop=StopFlag(), tick=lambda: None)


def test_nothing_to_solve_starts_nothing():
    solver, local, _ = setting()
    pool = SerialPool(solver, local)
    drive(Scatter([], []), pool, commit=lambda _: None, stop=StopFlag(), tick=lambda: None)
