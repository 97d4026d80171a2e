"""Contract of pools: one suite for the serial and the threaded pool, and the driver loop.

Ray's pool has its own file.
"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.observers import FunctionObserver, run_schedule
from tests.support.ppdsparse_problems import problem
from xcray.errors import ParameterError, ShapeMismatch, Stopped, Unavailable
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.schedule.events import Joined, Left, Lost, Task
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.solved_labels import concatenate, merge
from xcray.workers import driver
from xcray.workers import local_pool as local_pools
from xcray.workers.local_pool import SerialPool, ThreadPool
from xcray.workers.pool import Failed, Result, StopFlag, TaskCancelled

POOLS = {
    "serial": SerialPool,
    "one thread": lambda solver, local: ThreadPool(solver, local, 1),
    "three threads": lambda solver, local: ThreadPool(solver, local, 3),
}


# Seconds until a wait is given up; a slow machine may need to compile kernels.
PATIENCE = 300.0
# Classes that never end, with the hinge loss, which only coordinate descent solves.
LONG = {"k": 2, "loss": "hinge", "eps": 1e-300, "C": 1e9, "tau": 1e-6, "max_sweeps": 2**31 - 1}


def setting(k: int = 24, **parameters):
    """Return a solver, its local state, and a schedule of single labels and small batches."""
    X, Y = problem(21, n=300, d=80, k=k)
    solver = PPDSparseSolver(**parameters)
    local = solver.load(X, transpose(X), transpose_pattern(Y))
    costs = solver.cost_terms(X, local.problem.XT, local.problem.YT) @ solver.cost_rates
    return solver, local, LabelScheduler(range(k), costs / costs.sum() / 2)


def assert_solved(blocks, solver, local, k=24):
    """Check that blocks are all labels, with the bits of one solve."""
    whole = solver.solve(local.clone_for_thread(), np.arange(k, dtype=np.int32))
    assert merge(blocks, k, 80).digest() == whole.digest()


@pytest.mark.parametrize("name", POOLS)
def test_every_pool_gives_the_same_bits(name):
    solver, local, schedule = setting()
    results: list[Result] = []
    ticks = []
    run_schedule(
        schedule, POOLS[name](solver, local), commit=results.append, tick=lambda: ticks.append(1)
    )
    assert_solved([r.value for r in results], solver, local)
    assert len(results) > 4
    assert ticks
    assert all(r.seconds > 0 for r in results)


@pytest.mark.parametrize("name", POOLS)
def test_compilation_is_no_part_of_the_rate(name, monkeypatch):
    """The clock of the driver stands still, except that compilation takes 100 s."""
    solver, local, schedule = setting()
    now, reports = [0.0], []

    def warm_up(self, local):
        now[0] += 100.0

    monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(PPDSparseSolver, "warm_up", warm_up)
    observer = FunctionObserver(report=reports.append)
    driver.run_schedule(schedule, POOLS[name](solver, local), observer, stop=StopFlag())
    assert now[0] == 100.0
    assert reports[-1].done == 24
    assert {each.seconds for each in reports} == {0.0}


@pytest.mark.parametrize("name", POOLS)
def test_a_stop_keeps_what_was_committed_and_ends_threads(name):
    solver, local, schedule = setting()
    stop, committed = StopFlag(), []

    def commit(result: Result) -> None:
        committed.append(result)
        stop.set()

    with pytest.raises(Stopped):
        run_schedule(schedule, POOLS[name](solver, local), commit=commit, stop=stop)
    assert 1 <= sum(len(r.task.labels) for r in committed) < 24
    assert not [t for t in threading.enumerate() if t.name.startswith("xcray-thread")]


@pytest.mark.parametrize("name", POOLS)
def test_a_stop_reaches_into_a_long_class(name, monkeypatch):
    """A class that would never end is stopped within a slice."""
    monkeypatch.setattr("xcray.solvers.ppdsparse.SLICE_ENTRIES", 2_000)
    begun = task_start_event(monkeypatch)
    solver, local, schedule = setting(**LONG)
    stop = StopFlag()
    pool = POOLS[name](solver, local)
    # The serial pool's loop cannot poll while it works, so another thread stops it.
    end = pool.stop if name == "serial" else stop.set
    stopper = threading.Thread(target=lambda: begun.wait(PATIENCE) and end())
    stopper.start()
    with pytest.raises(Stopped):
        run_schedule(schedule, pool, stop=stop)
    stopper.join()
    assert begun.is_set()


def task_start_event(monkeypatch, thread=None):
    """Return an event that is set when a task starts, in any thread or in the named one."""
    begun, run = threading.Event(), local_pools._LocalExecutor.run_task

    def run_and_set(*args):
        if thread in (None, threading.current_thread().name):
            begun.set()
        return run(*args)

    monkeypatch.setattr(local_pools._LocalExecutor, "run_task", run_and_set)
    return begun


@pytest.mark.parametrize("name", POOLS)
def test_errors_of_a_task_are_raised(name, monkeypatch):
    solver, local, schedule = setting()

    def broken(*_):
        raise ShapeMismatch("as if")

    monkeypatch.setattr(PPDSparseSolver, "solve", broken)
    monkeypatch.setattr(PPDSparseSolver, "warm_up", lambda *_: None)
    with pytest.raises(ShapeMismatch, match="as if"):
        run_schedule(schedule, POOLS[name](solver, local))


class FragilePool(SerialPool):
    """A serial pool whose worker dies after every third batch, and whose results come late."""

    def __init__(self, solver, local):
        super().__init__(solver, local)
        self.life = 0
        self.late = []

    def wait(self, seconds):
        """Wait like the serial pool, with deaths."""
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


def test_lost_workers_and_late_answers_change_no_bit_and_are_recorded_as_lost_work():
    solver, local, schedule = setting()
    results, spans = [], []
    run_schedule(schedule, FragilePool(solver, local), commit=results.append, record=spans.append)
    assert {"done", "lost"} <= {span.outcome for span in spans}
    assert all(span.seconds >= 0.0 for span in spans)
    labels = [label for r in results for label in r.task.labels]
    assert sorted(labels) == list(range(24))
    assert_solved([r.value for r in results], solver, local)


def test_a_batch_that_kills_every_worker_ends_with_a_reason():
    class Deadly(SerialPool):
        def wait(self, seconds):
            """Report the death of a worker for every submitted batch."""
            if self._tasks:
                worker, _ = self._tasks.popleft()
                return [Lost(worker), Joined(worker + "+")]
            return super().wait(seconds)

    solver, local, schedule = setting()
    with pytest.raises(Unavailable, match="3 workers were lost"):
        run_schedule(schedule, Deadly(solver, local))


def test_nothing_to_solve_starts_nothing():
    solver, local, _ = setting()
    pool = SerialPool(solver, local)
    run_schedule(LabelScheduler([], []), pool)


def wait_for(pool, kind, seconds=PATIENCE):
    """Return the reports until one of `kind` is among them."""
    reports, ends = [], time.monotonic() + seconds
    while not any(isinstance(report, kind) for report in reports):
        assert time.monotonic() < ends, f"no {kind.__name__} in {reports}"
        reports += pool.wait(0.1)
    return reports


@pytest.mark.parametrize("name", ["one thread", "three threads"])
def test_a_cancelled_task_ends_and_its_worker_continues(name, monkeypatch):
    monkeypatch.setattr("xcray.solvers.ppdsparse.SLICE_ENTRIES", 2_000)
    solver, local, _ = setting(**LONG)
    pool = POOLS[name](solver, local)
    pool.open()
    try:
        (worker,) = {report.worker for report in wait_for(pool, Joined)[:1]}
        for number in range(3):
            pool.submit(worker, Task(number, (number % 2,), 1.0))
        pool.cancel(worker, 1)  # not started
        pool.cancel(worker, 0)  # running, or about to run
        first = [
            report for report in wait_for(pool, TaskCancelled) if isinstance(report, TaskCancelled)
        ]
        while len(first) < 2:
            first += [
                report
                for report in wait_for(pool, TaskCancelled)
                if isinstance(report, TaskCancelled)
            ]
        assert [report.task.id for report in first] == [0, 1]
        pool.cancel(worker, 2)
        assert [
            r.task.id for r in wait_for(pool, TaskCancelled) if isinstance(r, TaskCancelled)
        ] == [2]
    finally:
        pool.close()


def test_threads_join_and_leave_while_the_pool_runs():
    solver, local, schedule = setting(k=48)
    pool, results, values = ThreadPool(solver, local, 1), [], []

    def commit(result: Result) -> None:
        results.append(result)
        values.append(
            len({t.name for t in threading.enumerate() if t.name.startswith("xcray-thread")})
        )
        if len(results) == 2:
            pool.resize(3)
        if len(results) == 8:
            pool.resize(1)

    run_schedule(schedule, pool, commit=commit)
    assert sorted(label for r in results for label in r.task.labels) == list(range(48))
    assert max(values) == 3
    assert_solved([r.value for r in results], solver, local, 48)
    with pytest.raises(ParameterError, match="at least 1 worker"):
        pool.resize(0)


def test_a_leaving_thread_returns_its_waiting_tasks(monkeypatch):
    monkeypatch.setattr("xcray.solvers.ppdsparse.SLICE_ENTRIES", 2_000)
    begun = task_start_event(monkeypatch, "xcray-thread-1")
    solver, local, _ = setting(**LONG)
    pool = ThreadPool(solver, local, 2)
    pool.open()
    try:
        joined = wait_for(pool, Joined)
        while len(joined) < 2:
            joined += pool.wait(0.1)
        pool.submit("thread-1", Task(0, (0,), 1.0))
        pool.submit("thread-1", Task(1, (1,), 1.0))
        assert begun.wait(PATIENCE)
        pool.resize(1)
        pool.cancel("thread-1", 0)
        reports = wait_for(pool, Left)
        # Task 1 was never started, so the schedule takes it back.
        assert [type(report) for report in reports] == [
            TaskCancelled,
            Left,
        ]
        pool.submit("thread-1", Task(2, (1,), 1.0))  # no effect, because the worker has left
        pool.resize(2)
        assert wait_for(pool, Joined) == [Joined("thread-2")]  # a new name
    finally:
        pool.close()


@pytest.mark.parametrize("name", POOLS)
def test_tasks_are_stopped_and_results_kept_when_the_time_is_up(name, monkeypatch):
    """The loop's clock and its timer say that the time is up once a class is being solved."""
    monkeypatch.setattr("xcray.solvers.ppdsparse.SLICE_ENTRIES", 2_000)
    begun = task_start_event(monkeypatch)

    class DeadlineTimer(threading.Thread):
        """A timer that fires when there is something to stop."""

        def __init__(self, seconds, ring):
            assert seconds > 1e6
            super().__init__(target=lambda: begun.wait(PATIENCE) and ring(), daemon=True)

        def cancel(self):
            """Do nothing."""

    clock = SimpleNamespace(monotonic=lambda: 1e9 * begun.is_set())
    monkeypatch.setattr("xcray.workers.driver.time", clock)
    monkeypatch.setattr("xcray.workers.driver.Timer", DeadlineTimer)
    solver, local, _ = setting(**LONG)
    spans, results = [], []
    # This returns although the classes would never end.
    run_schedule(
        LabelScheduler([0, 1], [1.0, 1.0]),
        POOLS[name](solver, local),
        commit=results.append,
        seconds=1e6,
        record=spans.append,
    )
    assert results == []
    assert spans
    assert {span.outcome for span in spans} == {"stopped"}


def test_no_time_at_all_begins_nothing():
    solver, local, schedule = setting()
    results = []
    run_schedule(schedule, SerialPool(solver, local), commit=results.append, seconds=0.0)
    assert results == []


class DelayedResultPool(ThreadPool):
    """Two threads; the first result of `thread-1` is held back until a copy has finished."""

    def __init__(self, solver, local):
        super().__init__(solver, local, 2)
        self.delayed = []
        self.cancelled = []
        self.copied = False

    def open(self):
        """Wait for both threads, so that neither finishes all work before the other starts."""
        super().open()
        self.ready = []
        while len(self.ready) < 2:
            self.ready += super().wait(0.1)

    def submit(self, worker, task):
        """Record whether a copy was submitted."""
        self.copied |= task.attempt > 1
        super().submit(worker, task)

    def cancel(self, worker, task_id):
        """Record a cancellation, which comes too late."""
        self.cancelled.append((worker, task_id))

    def wait(self, seconds):
        """Wait like the threads, but hold back one result."""
        out, self.ready = self.ready, []
        if out:
            return out
        for report in super().wait(seconds):
            (
                self.delayed
                if isinstance(report, Result) and report.worker == "thread-1" and self.delayed == []
                else out
            ).append(report)
        if self.cancelled and self.delayed:
            out += self.delayed
            self.delayed = [None]  # hold back no other result
        return out


def test_a_late_batch_is_copied_its_result_committed_once_and_its_double_recorded():
    solver, local, schedule = setting()
    pool, results, spans = DelayedResultPool(solver, local), [], []
    run_schedule(schedule, pool, commit=results.append, record=spans.append)
    assert pool.copied
    assert sorted(label for r in results for label in r.task.labels) == list(range(24))
    done = [(s.task.id, s.worker) for s in spans if s.outcome == "done"]
    assert len(done) == len(results) == len({task for task, _ in done})
    twice = [s for s in spans if s.outcome in ("duplicate", "stopped")]
    assert {s.worker for s in twice} == {"thread-1"}
    assert_solved([r.value for r in results], solver, local)


def test_reports_are_handled_before_outdated_commands_are_executed():
    """One wait reports a result that gives b work, and the loss of b, which must get no task."""

    class Both(SerialPool):
        def __init__(self, solver, local):
            super().__init__(solver, local)
            self.alive = {"serial", "b"}
            self.turn = 0

        def submit(self, worker, task):
            assert worker in self.alive
            super().submit(worker, task)

        def wait(self, seconds):
            self.turn += 1
            if self.turn == 2:
                return [Joined("b")]
            reports = super().wait(seconds)
            if self.turn == 4:
                self.alive.remove("b")
                for item in [item for item in self._tasks if item[0] == "b"]:
                    self._tasks.remove(item)
                reports = [*reports, Lost("b")]
            return reports

    solver, local, schedule = setting()
    labels = []
    run_schedule(schedule, Both(solver, local), commit=lambda r: labels.extend(r.task.labels))
    assert sorted(labels) == list(range(24))


def test_results_of_one_wait_are_synced_once_before_new_tasks_start():
    class Watched(ThreadPool):
        def submit(self, worker, task):
            assert not pending, "a task was begun while results were not durable"
            super().submit(worker, task)

    solver, local, schedule = setting()
    pending, durable = [], []

    def sync():
        durable.extend(pending)
        pending.clear()

    run_schedule(schedule, Watched(solver, local, 3), commit=pending.append, sync=sync)
    assert sorted(label for r in durable for label in r.task.labels) == list(range(24))
    block = concatenate([r.value for r in durable])
    assert_solved([block], solver, local)


def test_results_that_came_with_an_error_are_synced():
    class OneFails(SerialPool):
        def wait(self, seconds):
            reports = super().wait(seconds)
            return [
                *reports,
                *(
                    Failed(r.worker, r.task, ShapeMismatch("as if"))
                    for r in reports
                    if isinstance(r, Result)
                ),
            ]

    solver, local, schedule = setting()
    pending, durable = [], []
    with pytest.raises(ShapeMismatch):
        run_schedule(
            schedule,
            OneFails(solver, local),
            commit=pending.append,
            sync=lambda: durable.extend(pending),
        )
    assert len(durable) == 1
