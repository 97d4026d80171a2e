"""Ray pool: same bits as serial for any number of workers, through deaths, without shared files."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import ray as ray_module

from tests.support.observers import run_schedule
from tests.support.shared_ray import NUM_CPUS
from xcray.errors import ParameterError, Stopped
from xcray.schedule.events import Task
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.solved_labels import merge
from xcray.workers.pool import Result, StopFlag, TaskCancelled

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray")]


def pool_and_schedule(dataset, workers=2, **parameters):
    """Return a solver, a pool in the test's own Ray, and a schedule of small batches."""
    from xcray.workers.ray.pool import RayPool
    from xcray.workers.solver_task import SolverTask, shared_arrays

    solver, t = PPDSparseSolver(**parameters), dataset.train
    costs = solver.cost_terms(t.X, t.XT, t.YT) @ solver.cost_rates
    schedule = LabelScheduler(
        range(dataset.n_labels), costs / costs.sum(), batch_seconds=0.01, workers=workers
    )
    work = SolverTask(solver, str(dataset.path), dataset.content_hash)
    return (
        solver,
        RayPool(work, workers, nullcontext(), "test", lambda: shared_arrays(dataset)),
        schedule,
    )


def solve_all(solver, dataset):
    """Solve all labels in this process."""
    t = dataset.train
    return solver.solve(solver.load(t.X, t.XT, t.YT), np.arange(dataset.n_labels, dtype=np.int32))


def test_kill_minus_nine_of_a_worker_changes_no_bit(tiny):
    """One worker is killed after the first result, with its batches in flight."""
    solver, pool, schedule = pool_and_schedule(tiny)
    results: list[Result] = []

    def commit(result: Result) -> None:
        results.append(result)
        if len(results) == 1:
            victim = pool._actors[result.worker]
            os.kill(ray_module.get(victim.pid.remote()), signal.SIGKILL)

    run_schedule(schedule, pool, commit=commit)
    assert sorted(label for r in results for label in r.task.labels) == list(range(tiny.n_labels))
    assert len({r.worker for r in results}) >= 2
    assert (
        merge([r.value for r in results], tiny.n_labels, tiny.n_features).digest()
        == solve_all(solver, tiny).digest()
    )


def test_a_worker_that_holds_two_batches_solves_one_at_a_time(tiny):
    """Batches of one worker share scratch memory, so two at once would corrupt each other."""
    solver, pool, _ = pool_and_schedule(tiny, workers=1, eps=1e-6)
    reports, labels = [], tuple(range(tiny.n_labels))
    pool.open()
    try:
        while not reports:
            reports = pool.wait(0.5)
        for task_id in range(4):
            pool.submit(reports[0].worker, Task(task_id, labels, 1.0))
        results = []
        while len(results) < 4:
            results += pool.wait(0.5)
    finally:
        pool.close()
    assert {r.value.digest() for r in results} == {solve_all(solver, tiny).digest()}
    spans = sorted((r.started, r.started + r.seconds) for r in results)
    assert all(earlier[1] <= later[0] + 1e-3 for earlier, later in pairwise(spans))


@pytest.mark.drill
def test_a_node_that_does_not_see_the_data_gets_it_from_the_object_store(tiny):
    solver, pool, schedule = pool_and_schedule(replace(tiny, path=Path("/nowhere/to/be/found")))
    results: list[Result] = []
    run_schedule(schedule, pool, commit=results.append)
    assert (
        merge([r.value for r in results], tiny.n_labels, tiny.n_features).digest()
        == solve_all(solver, tiny).digest()
    )


def test_a_stop_keeps_finished_batches_and_ends_the_actors(tiny):
    _, pool, schedule = pool_and_schedule(tiny)
    stop, committed, names = StopFlag(), [], []

    def commit(result: Result) -> None:
        committed.append(result)
        names.extend(ray_module.util.list_named_actors())
        stop.set()

    with pytest.raises(Stopped):
        run_schedule(schedule, pool, commit=commit, stop=stop)
    assert committed
    assert "xcray:test:worker-0" in names
    assert not pool._actors


@pytest.mark.drill
def test_errors_of_a_worker_are_raised_at_the_driver(tiny):
    _, pool, _ = pool_and_schedule(tiny)
    schedule = LabelScheduler([10**6], [1.0])  # no such label
    with pytest.raises(ParameterError, match="label 1000000"):
        run_schedule(schedule, pool)


def test_a_cancelled_batch_ends_and_its_actor_continues(tiny):
    _, pool, _ = pool_and_schedule(
        tiny, workers=1, loss="hinge", eps=1e-300, C=1e9, tau=1e-6, max_sweeps=2**31 - 1
    )
    reports = []
    pool.open()
    try:
        while not reports:
            reports = pool.wait(0.5)
        for task_id in range(2):
            pool.submit(reports[0].worker, Task(task_id, (0,), 1.0))
        pool.cancel(reports[0].worker, 1)
        pool.cancel(reports[0].worker, 0)
        given_up = []
        while len(given_up) < 2:
            given_up += pool.wait(0.5)
        pool.submit(reports[0].worker, Task(2, (1,), 1.0))
        pool.cancel(reports[0].worker, 2)
        while len(given_up) < 3:
            given_up += pool.wait(0.5)
    finally:
        pool.close()
    assert [(type(r), r.task.id) for r in given_up] == [
        (TaskCancelled, 0),
        (TaskCancelled, 1),
        (TaskCancelled, 2),
    ]
    assert given_up[0].worker == given_up[2].worker == "worker-0"


def outlast(pool, worker: str) -> None:
    """Hold back results until a worker has joined and finished its first batch.

    The job lasts until then.
    """
    wait, selection = pool.wait, []

    def delayed_wait(seconds: float):
        result = wait(seconds)
        late = [isinstance(each, Result) and each.worker != worker for each in result]
        selection.extend(each for each, is_late in zip(result, late, strict=True) if is_late)
        others = [each for each, is_late in zip(result, late, strict=True) if not is_late]
        if any(isinstance(each, Result) for each in others):
            pool.wait = wait
            return others + selection
        return others

    pool.wait = delayed_wait


@pytest.mark.drill
def test_workers_join_when_there_is_room_and_leave_on_resize(tiny):
    """All CPUs but one are taken; the second worker joins when they are free again."""

    class CpuHolder:
        """An actor that holds CPUs."""

        def ready(self) -> bool:
            """Return True as soon as the actor runs."""
            return True

    solver, pool, schedule = pool_and_schedule(tiny, workers=2)
    selection = ray_module.remote(num_cpus=NUM_CPUS - 1)(CpuHolder).remote()
    ray_module.get(selection.ready.remote())
    results, workers = [], []

    def commit(result: Result) -> None:
        results.append(result)
        workers.append(result.worker)
        if len(results) == 1:
            ray_module.kill(selection)
            outlast(pool, "worker-1")
        elif len(set(workers)) == 2 and len(pool._actors) == 2:
            pool.resize(1)

    run_schedule(schedule, pool, commit=commit)
    assert workers[0] == "worker-0"
    assert set(workers) == {"worker-0", "worker-1"}
    assert (
        merge([r.value for r in results], tiny.n_labels, tiny.n_features).digest()
        == solve_all(solver, tiny).digest()
    )
