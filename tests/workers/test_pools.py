"""The driver loop on every pool: same bits, stops, losses, copies; serial, threads and Ray.

What all workers promise is in `test_workers.py`.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import ray as ray_module

from tests.support import shared_ray
from tests.support.observers import FunctionObserver, run_schedule
from xcray.errors import ParameterError, ShapeMismatch, Stopped, Unavailable
from xcray.schedule.events import Joined, Lost
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.solved_labels import merge
from xcray.workers import driver
from xcray.workers.local_group import SerialGroup, TaskFactory, ThreadGroup, local_pool
from xcray.workers.pool import Result, StopFlag
from xcray.workers.ray.pool import RayPool
from xcray.workers.solver_task import SolverTask, shared_arrays
from xcray.workers.worker_group import CallFailed, CallResult

THREADS = {"serial": None, "one thread": 1, "three threads": 3}
LOCAL = pytest.mark.parametrize("kind", THREADS)
ALL = pytest.mark.parametrize("kind", [*THREADS, pytest.param("ray", marks=pytest.mark.ray)])

# Seconds until a wait is given up; a slow machine may need to compile kernels.
PATIENCE = 300.0
# Classes that never end, with the hinge loss, which only coordinate descent solves.
LONG = {"loss": "hinge", "eps": 1e-300, "C": 1e9, "tau": 1e-6, "max_sweeps": 2**31 - 1}


class Job:
    """All labels of a data set: a schedule of small batches, and pools for it."""

    def __init__(self, dataset, workers: int = 2, **parameters) -> None:
        self.dataset, self.workers, self.results = dataset, workers, list[Result]()
        self.solver, t = PPDSparseSolver(**parameters), dataset.train
        self.work = SolverTask(self.solver, str(dataset.path), dataset.content_hash)
        costs = self.solver.cost_terms(t.X, t.XT, t.YT) @ self.solver.cost_rates
        self.schedule = LabelScheduler(
            range(dataset.n_labels), costs / costs.sum(), batch_seconds=0.01, workers=workers
        )

    def pool(self, kind: str):
        """Return a pool that is not open."""
        if kind == "ray":
            shared_ray.start()
            shared = partial(shared_arrays, self.dataset)
            return RayPool(self.work, self.workers, nullcontext(), "test", shared)
        return local_pool(self.work, self.work.open(), THREADS[kind])

    def group(self, group_class, workers: int = 1):
        """Return a local pool of a class with faults."""
        return group_class(TaskFactory(self.work, self.work.open()), workers)

    def run(self, pool, schedule=None, **how) -> None:
        """Run the schedule, or another one, and keep the results."""
        run_schedule(schedule or self.schedule, pool, **{"commit": self.results.append, **how})

    def assert_solved(self) -> None:
        """Check that the results are all labels, once each, with the bits of one solve."""
        K, D = self.dataset.n_labels, self.dataset.n_features
        labels = [label for result in self.results for label in result.task.labels]
        assert sorted(labels) == list(range(K))
        t = self.dataset.train
        alone = self.solver.solve(
            self.solver.load(t.X, t.XT, t.YT), np.arange(K, dtype=np.int32)
        ).digest()
        solved = [result.value for result in self.results]
        assert merge(solved, K, D).digest() == alone
        # a worker computed it, and it survived the way to the driver
        assert [block.checksum for block in solved] == [block.digest() for block in solved]


@pytest.fixture
def job(tiny):
    """Return the labels of the small data set."""
    return Job(tiny)


@pytest.fixture
def begun(monkeypatch):
    """Return an event that is set when a local worker begins a task, in slices of moments."""
    event, solve = threading.Event(), SolverTask.solve
    monkeypatch.setattr("xcray.solvers.ppdsparse.SLICE_ENTRIES", 2_000)
    monkeypatch.setattr(SolverTask, "solve", lambda *args: (event.set(), solve(*args))[1])
    return event


@ALL
def test_every_pool_gives_the_same_bits(job, kind):
    ticks = []
    job.run(job.pool(kind), tick=lambda: ticks.append(1))
    job.assert_solved()
    assert len(job.results) > 4
    assert ticks
    assert all(result.seconds > 0.0 for result in job.results)


@LOCAL
def test_compilation_is_no_part_of_the_rate(job, kind, monkeypatch):
    """The clock of the driver stands still, except that compilation takes 100 s."""
    now, reports = [0.0], []

    def warm_up(self, local):
        now[0] += 100.0

    monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(PPDSparseSolver, "warm_up", warm_up)
    observer = FunctionObserver(report=reports.append)
    driver.run_schedule(job.schedule, job.pool(kind), observer, stop=StopFlag())
    assert now[0] == 100.0
    assert reports[-1].done == job.dataset.n_labels
    assert {each.seconds for each in reports} == {0.0}


@ALL
def test_a_stop_keeps_what_was_committed_and_ends_the_workers(job, kind):
    stop, names, pool = StopFlag(), [], job.pool(kind)

    def commit(result: Result) -> None:
        job.results.append(result)
        names.extend(ray_module.util.list_named_actors() if kind == "ray" else ())
        stop.set()

    with pytest.raises(Stopped):
        job.run(pool, commit=commit, stop=stop)
    assert 1 <= sum(len(result.task.labels) for result in job.results) < job.dataset.n_labels
    assert not pool.available
    assert not [each for each in threading.enumerate() if each.name.startswith("xcray-worker")]
    # with a number while an actor of the test before still has the name
    assert any(name.startswith("xcray:test:worker-0") for name in names) == (kind == "ray")


@LOCAL
def test_a_stop_reaches_into_a_long_class(tiny, kind, begun):
    """A class that would never end is stopped within a slice."""
    job, stop = Job(tiny, **LONG), StopFlag()
    pool = job.pool(kind)
    # The serial pool's loop cannot poll while it works, so another thread stops it.
    end = pool.stop if kind == "serial" else stop.set
    stopper = threading.Thread(target=lambda: begun.wait(PATIENCE) and end())
    stopper.start()
    with pytest.raises(Stopped):
        job.run(pool, stop=stop)
    stopper.join()
    assert begun.is_set()


@LOCAL
def test_tasks_are_stopped_and_results_kept_when_the_time_is_up(tiny, kind, begun, monkeypatch):
    """The loop's clock and its timer say that the time is up once a class is being solved."""

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
    job, spans = Job(tiny, **LONG), []
    # This returns although the classes would never end.
    schedule = LabelScheduler([0, 1], [1.0, 1.0])
    job.run(job.pool(kind), schedule, seconds=1e6, record=spans.append)
    assert job.results == []
    assert {span.outcome for span in spans} == {"stopped"}


@ALL
def test_errors_of_a_task_are_raised(job, kind):
    with pytest.raises(ParameterError, match="label 1000000"):
        job.run(job.pool(kind), LabelScheduler([10**6], [1.0]))  # no such label


def test_nothing_to_solve_starts_nothing(job):
    job.run(job.pool("serial"), LabelScheduler([], []))
    assert job.results == []


def test_no_time_at_all_begins_nothing(job):
    job.run(job.pool("serial"), seconds=0.0)
    assert job.results == []


def dying(every: int) -> type[SerialGroup]:
    """Return a class of pools whose worker dies with every n-th result, which comes too late."""

    class Dying(SerialGroup):
        life, late = 0, ()

        def wait(self, seconds):
            """Wait with deaths; another worker joins."""
            replies, late = super().wait(seconds), self.late
            self.life += len(replies)
            if not replies or self.life % every:
                self.late = ()
                return [*late, *replies]
            self.late = replies
            self.simulate_loss(replies[0].worker)
            newcomer = f"again-{self.life}"
            self._start((newcomer,))
            return [*late, *super().wait(0.0), Joined(newcomer)]

    return Dying


def test_lost_workers_and_late_answers_change_no_bit_and_are_recorded_as_lost_work(job):
    spans = []
    job.run(job.group(dying(every=3)), record=spans.append)
    job.assert_solved()
    assert {"done", "lost"} <= {span.outcome for span in spans}
    assert all(span.seconds >= 0.0 for span in spans)


def test_a_batch_that_kills_every_worker_ends_with_a_reason(job):
    with pytest.raises(Unavailable, match="3 workers were lost"):
        job.run(job.group(dying(every=1)))


class DelayedResult(ThreadGroup):
    """Threads whose second one is late: its first result is held back until a copy is done."""

    def open(self):
        super().open()
        self.delayed, self.copied, self.cancelled = [], False, False

    def cancel(self, worker, ticket):
        """Record a cancellation, which comes too late."""
        self.cancelled = True

    def wait(self, seconds):
        out = []
        for reply in super().wait(seconds if self._pending else 0.01):
            late = reply.worker == "worker-1" and not self.delayed
            (self.delayed if late else out).append(reply)
        if self.cancelled and self.delayed != [None]:
            out += self.delayed
            self.delayed = [None]  # hold back no other result
        return out


def test_a_late_batch_is_copied_its_result_committed_once_and_its_double_recorded(job):
    spans = []
    job.run(job.group(DelayedResult, 2), record=spans.append)
    job.assert_solved()
    done = [(span.task.id, span.worker) for span in spans if span.outcome == "done"]
    assert len(done) == len(job.results) == len({task for task, _ in done})
    assert any(span.task.copy for span in spans)
    twice = [span for span in spans if span.outcome in ("duplicate", "stopped")]
    assert "worker-1" in {span.worker for span in twice}  # a slow machine copies others, too


def test_reports_are_handled_before_outdated_commands_are_executed(job):
    """One wait reports a result of a worker, and its loss: it must get no further task."""

    class LosesSecond(SerialGroup):
        lost = False

        def wait(self, seconds):
            """Lose the second worker right after its first result."""
            replies = super().wait(seconds)
            if not self.lost and replies and replies[0].worker == "worker-1":
                self.lost = True
                self.simulate_loss("worker-1")
                replies += super().wait(0.0)
                assert [type(each) for each in replies] == [CallResult, Lost]
            return replies

    pool = job.group(LosesSecond, 2)  # it refuses calls of lost workers
    job.run(pool)
    assert pool.lost
    job.assert_solved()


def test_results_of_a_wait_are_passed_to_sync_before_new_tasks_start(job):
    class Watched(ThreadGroup):
        def submit(self, call):
            assert not pending, "a task was begun while results were not durable"
            return super().submit(call)

    pending = []

    def sync():
        job.results.extend(pending)
        pending.clear()

    job.run(job.group(Watched, 3), commit=pending.append, sync=sync)
    job.assert_solved()


def test_results_that_came_with_an_error_are_synced(job):
    class OneFails(SerialGroup):
        def wait(self, seconds):
            replies = super().wait(seconds)
            errors = [
                CallFailed(each.ticket, each.worker, ShapeMismatch("as if")) for each in replies
            ]
            return [*replies, *errors]

    durable = []
    with pytest.raises(ShapeMismatch):
        job.run(job.group(OneFails), sync=lambda: durable.extend(job.results))
    assert len(durable) == 1


@pytest.mark.usefixtures("ray")
def test_kill_minus_nine_of_an_actor_changes_no_bit(job):
    """One worker is killed after the first result, with its batches in flight."""
    pool = job.pool("ray")

    def commit(result: Result) -> None:
        job.results.append(result)
        if len(job.results) == 1:
            victim = pool._actors[result.worker]
            os.kill(ray_module.get(victim.pid.remote()), signal.SIGKILL)

    job.run(pool, commit=commit)
    job.assert_solved()
    assert len({result.worker for result in job.results}) >= 2


@pytest.mark.drill
@pytest.mark.usefixtures("ray")
def test_a_node_that_does_not_see_the_data_gets_it_from_the_object_store(tiny):
    job = Job(replace(tiny, path=Path("/nowhere/to/be/found")))
    job.run(job.pool("ray"))
    job.assert_solved()


def outlast(pool, first: str) -> None:
    """Hold back results of the first worker until another one has finished a batch."""
    wait, held = pool.wait, []

    def delayed_wait(seconds: float):
        others = []
        for each in wait(seconds):
            late = isinstance(each, CallResult) and each.worker == first
            (held if late else others).append(each)
        if any(isinstance(each, CallResult) for each in others):
            pool.wait = wait
            return others + held
        return others

    pool.wait = delayed_wait


@pytest.mark.drill
@pytest.mark.usefixtures("ray")
def test_workers_join_when_there_is_room(job):
    """All CPUs but one are taken; another worker joins when they are free again."""

    class CpuHolder:
        """An actor that holds CPUs."""

        def ready(self) -> bool:
            """Return True as soon as the actor runs."""
            return True

    holder = ray_module.remote(num_cpus=shared_ray.NUM_CPUS - 1)(CpuHolder).remote()
    ray_module.get(holder.ready.remote())
    pool = job.pool("ray")

    def commit(result: Result) -> None:
        job.results.append(result)
        if len(job.results) == 1:
            ray_module.kill(holder)
            outlast(pool, result.worker)

    job.run(pool, commit=commit)
    job.assert_solved()
    assert len({result.worker for result in job.results}) >= 2
