"""Contract of workers: one suite for pools and groups, serial, on threads and on Ray.

What the driver of a pool does with them is in `test_pools.py`, tests of Ray alone in `ray`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from tests.support import shared_ray
from tests.support.waiting import until
from tests.support.worker_group_toy import LARGE, PATIENCE, Tasks, Work, ask, replies, to
from xcray.errors import DataError, ParameterError, Stopped, Unavailable
from xcray.schedule.calls import ObjectHandle
from xcray.schedule.events import Joined, Left, Lost
from xcray.workers.local_group import SerialGroup, TaskFactory, ThreadGroup
from xcray.workers.ray.pool import RayPool
from xcray.workers.ray.worker_group import RayWorkerGroup
from xcray.workers.worker_group import OBJECT_LOST, CallCancelled, CallFailed, CallResult

WORK = Work()
# what each form of workers is asked: arguments of its method
ASKED = {
    "pool": {"work": ("solve", np.array([2, 3])), "long": ("solve", np.array([4, 1]))}
    | {"fail": ("solve", np.array([0]))},
    "group": {"work": ("total", [np.array([5.0])]), "long": ("long",), "fail": ("fail",)},
}
KINDS = [pytest.param("ray", marks=pytest.mark.ray), "serial", "threads"]


def made(kind: str, form: str = "group", workers: int = 2, work: Any = WORK) -> Any:
    """Return a pool or a group that is not open; Ray has room for two of two workers."""
    if kind == "ray":
        shared_ray.start()
        if form == "pool":
            return RayPool(Tasks(), workers, nullcontext(), "contract", tuple)
        return RayWorkerGroup(work, workers, nullcontext(), "contract")
    factory = TaskFactory(Tasks(), Tasks()) if form == "pool" else work
    return {"serial": SerialGroup, "threads": ThreadGroup}[kind](factory, workers)


@contextmanager
def opened(*how: Any) -> Iterator[Any]:
    """Run a pool or a group, and wait until both workers are there."""
    workers = made(*how)
    workers.open()
    try:
        ends = time.monotonic() + PATIENCE
        while len(workers.available) < 2:
            assert all(isinstance(each, Joined) for each in workers.wait(0.1))
            assert time.monotonic() < ends
        yield workers
    finally:
        workers.close()


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    """Return a kind of workers."""
    return request.param


@pytest.fixture(scope="module", params=["pool", "group"])
def form(request):
    """Return a form of workers: any can do any task, or each has its own state."""
    return request.param


@pytest.fixture(scope="module")
def workers(kind, form):
    """Yield two open workers of a kind and a form, for tests that do not end them."""
    with opened(kind, form) as each:
        yield each


@pytest.fixture(scope="module")
def group(kind):
    """Yield an open group of two workers, for tests that do not end it."""
    with opened(kind) as each:
        yield each


def test_both_workers_are_there(workers, kind):
    assert workers.available == ("worker-0", "worker-1")
    assert workers.status()[:2] == (2, 2)
    assert workers.status().lost == 0
    if kind == "ray":
        seen = dict[str, int]()
        until(lambda: seen.update(workers.memory_usage()) or len(seen) == 2)
        assert all(n_bytes > 10 << 20 for n_bytes in seen.values())
    else:
        assert workers.memory_usage() == {}


def test_calls_of_a_worker_are_done_one_after_the_other(workers, form):
    """They share scratch memory, so two at once would corrupt each other."""
    calls = [to("worker-0", *ASKED[form]["work"]) for _ in range(4)]
    tickets = [workers.submit(call) for call in calls]
    results = replies(workers, 4)
    assert [reply.ticket for reply in results] == tickets
    assert {(reply.worker, reply.result, reply.ref) for reply in results} == {("worker-0", 5, None)}
    assert all(0.0 <= reply.cpu_seconds <= reply.seconds + 0.01 for reply in results)
    ends = [reply.started + reply.seconds for reply in results]
    assert all(end <= later.started + 0.01 for end, later in zip(ends, results[1:], strict=False))
    assert ends[-1] <= workers.now() + 60.0  # of two clocks that are not read at once


def test_an_error_is_returned_as_raised_and_the_worker_continues(workers, form):
    failed = ask(workers, "worker-1", *ASKED[form]["fail"])
    assert type(failed) is CallFailed
    assert type(failed.error) is DataError
    assert (failed.error.code, failed.error.line, failed.error.hint) == ("BAD_ROW", 7, "mend it")
    assert ask(workers, "worker-1", *ASKED[form]["work"]).result == 5


def test_a_cancelled_call_ends_and_its_worker_continues(workers, form):
    """One call is cancelled while it runs, one before it starts, the last one not."""
    verbs = ("long", "work", "work")
    tickets = [workers.submit(to("worker-0", *ASKED[form][verb])) for verb in verbs]
    workers.cancel("worker-0", tickets[1])
    timer = threading.Timer(0.2, workers.cancel, ["worker-0", tickets[0]])
    timer.start()
    results = replies(workers, 3)
    timer.join()
    assert [reply.ticket for reply in results] == tickets
    assert [type(reply) for reply in results] == [CallCancelled, CallCancelled, CallResult]
    assert all(reply.seconds >= 0.0 and reply.started >= 0.0 for reply in results)
    workers.cancel("worker-0", tickets[2])  # too late
    workers.cancel("nobody", 7)
    assert ask(workers, "worker-0", *ASKED[form]["work"]).result == 5


def test_a_stop_ends_running_calls_and_starts_none(kind, form):
    with opened(kind, form) as workers:
        verbs = ("long", "work")
        tickets = [workers.submit(to("worker-0", *ASKED[form][verb])) for verb in verbs]
        timer = threading.Timer(0.2, workers.stop)
        timer.start()
        result = replies(workers, 2)
        timer.join()
        assert [reply.ticket for reply in result] == tickets
        # A method that ran to its end would not raise Stopped.
        assert all(isinstance(reply.error, Stopped) for reply in result)
        assert not any(isinstance(reply, CallCancelled) for reply in result)


def test_close_can_be_called_twice_and_before_open_and_leaves_nothing(kind, form):
    before = set(threading.enumerate())
    made(kind, form).close()
    with opened(kind, form) as workers:
        assert ask(workers, "worker-0", *ASKED[form]["work"]).result == 5
        pids = list[int]()
        if kind == "ray":
            pids += ray.get([actor.pid.remote() for actor in workers._actors.values()])
        workers.close()
        assert workers.available == ()
    left = set(threading.enumerate()) - before
    assert not [each for each in left if each.name.startswith("xcray-worker")]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_a_lost_worker_is_one_loss_and_the_other_goes_on(kind, form):
    """It is lost with a call that runs and one that waits, and neither is reported later."""
    with opened(kind, form) as workers:
        for verb in ("long", "work"):
            workers.submit(to("worker-0", *ASKED[form][verb]))
        if kind == "ray":
            pid = ray.get(workers._actors["worker-0"].pid.remote(), timeout=PATIENCE)
            os.kill(pid, signal.SIGKILL)
        else:
            workers.simulate_loss("worker-0")
        assert replies(workers, 1) == [Lost("worker-0")]
        assert workers.available == ("worker-1",)
        other = workers.submit(to("worker-1", *ASKED[form]["work"]))
        assert [reply.ticket for reply in replies(workers, 1)] == [other]


@pytest.mark.ray
def test_a_leaving_worker_ends_its_call_and_gives_waiting_ones_back():
    """A pool does this on draining nodes, and when idle workers are not needed any more."""
    with opened("ray", "pool") as pool:
        calls = {verb: to("worker-0", *ASKED["pool"][verb]) for verb in ("long", "work")}
        tickets = [pool.submit(call) for call in calls.values()]
        assert pool._release("worker-0") == []
        pool.submit(calls["work"])  # no effect, because the worker leaves
        pool.cancel("worker-0", tickets[0])
        seen = list[Any]()
        until(lambda: seen.extend(pool.wait(0.1)) or Left("worker-0") in seen)
        seen = [each for each in seen if each.worker == "worker-0"]
        assert [type(each) for each in seen] == [CallCancelled, CallCancelled, Left]
        assert [each.ticket for each in seen[:2]] == tickets
        assert "worker-0" not in pool.available


def test_workers_have_names_and_places(group):
    assert group.workers == ("worker-0", "worker-1")
    assert set(group.nodes) == {"worker-0", "worker-1"}
    assert len(set(group.nodes.values())) == 1


def test_an_object_passes_between_workers_and_results_are_returned(group):
    first = ask(group, "worker-0", "make", 3.0)
    assert isinstance(first, CallResult)
    assert (first.worker, first.result) == ("worker-0", "worker-0")
    assert isinstance(first.ref, ObjectHandle)
    second = ask(group, "worker-1", "add", first.ref, 2.0)
    assert second.result == 6.0
    assert 0.0 <= first.started <= second.started
    assert min(first.seconds, second.seconds) >= 0.0
    np.testing.assert_array_equal(group.fetch(second.ref), np.full(LARGE, 5.0, np.float32))
    np.testing.assert_array_equal(group.fetch(first.ref), np.full(LARGE, 3.0, np.float32))
    assert not group.fetch(first.ref).flags.writeable


def test_objects_can_be_passed_in_lists_and_put_by_the_driver(group):
    handles = [group.put(np.full(LARGE, 1.0, np.float32)), ask(group, "worker-0", "make", 2.0).ref]
    assert ask(group, "worker-1", "total", handles, 10.0).result == 30.0
    assert ask(group, "worker-1", "total", tuple(handles)).result == 3.0
    assert ask(group, "worker-0", "kind", 1, "a", None, [1], (2,), handles[0]).result == [
        *("int", "str", "NoneType", "list", "tuple", "ndarray")
    ]


def test_a_method_without_an_object_has_no_handle(group):
    assert ask(group, "worker-0", "history").ref is None


def test_calls_of_a_worker_run_in_order(group):
    before, others = (ask(group, worker, "history").result for worker in group.workers)
    block = ask(group, "worker-0", "make", 0.0).ref
    tickets = [
        group.submit(to("worker-0", *(("add", block, 1.0) if n % 2 else ("make", 1.0))))
        for n in range(6)
    ]
    result = replies(group, 6)
    assert [reply.ticket for reply in result] == tickets
    assert all(
        earlier.started + earlier.seconds <= later.started + 0.01
        for earlier, later in pairwise(result)
    )
    assert ask(group, "worker-0", "history").result == [*before, "make", *["make", "add"] * 3]
    assert ask(group, "worker-1", "history").result == others


def test_unknown_workers_are_refused(group):
    with pytest.raises(ParameterError, match="no worker 'worker-2'"):
        group.submit(to("worker-2", "make", 1.0))
    slip = ask(group, "worker-1", "slip")
    assert isinstance(slip.error, KeyError)


def test_waiting_for_nothing_takes_no_time(group):
    began = time.monotonic()
    assert group.wait(600.0) == []
    assert time.monotonic() - began < 300.0


def test_a_worker_that_cannot_be_created_is_reported_at_the_start(kind):
    group = made(kind, work=Work(broken="worker-1"))
    with pytest.raises(DataError, match="no such shard"):
        group.open()
    group.close()


def test_an_interruption_ends_earlier_calls_only(group):
    tickets = [group.submit(to("worker-0", "long")), group.submit(to("worker-0", "make", 1.0))]
    timer = threading.Timer(0.2, group.interrupt)
    timer.start()
    result = replies(group, 2)
    timer.join()
    assert [reply.ticket for reply in result] == tickets
    assert all(isinstance(reply.error, Stopped) for reply in result)
    assert ask(group, "worker-0", "make", 2.0).result == "worker-0"


LOCAL = pytest.mark.parametrize("local", ["serial", "threads"])


@LOCAL
def test_a_simulated_loss_is_a_loss(local):
    """A simulated loss is reported once, with its calls, and no late result arrives.

    A new worker of the same name starts without state.
    """
    with opened(local) as group:
        response = ask(group, "worker-0", "make", 4.0).ref
        group.submit(to("worker-0", "long"))
        group.submit(to("worker-0", "make", 1.0))
        group.simulate_loss("worker-0")
        assert replies(group, 1) == [Lost("worker-0")]
        with pytest.raises(ParameterError, match="it was lost and not replaced"):
            group.submit(to("worker-0", "make", 1.0))
        group.replace("worker-0")
        assert group.fetch(response)[0] == 4.0
        assert ask(group, "worker-0", "history").result == []
        assert group.wait(0.1) == []


@LOCAL
def test_a_simulated_loss_of_a_node_loses_its_objects(local):
    with opened(local) as group:
        mine, others = (
            ask(group, "worker-0", "make", 1.0).ref,
            ask(group, "worker-1", "make", 2.0).ref,
        )
        group.simulate_loss("worker-0", with_objects=True)
        assert replies(group, 1) == [Lost("worker-0")]
        assert ask(group, "worker-1", "total", [others]).result == 2.0
        error = ask(group, "worker-1", "total", [others, mine]).error
        assert isinstance(error, Unavailable)
        assert error.code == OBJECT_LOST
        with pytest.raises(Unavailable, match="last checkpoint"):
            group.fetch(mine)


@LOCAL
def test_an_object_is_freed_with_its_last_handle(local):
    class WeakReferenced:
        """An object that supports weak references."""

    with opened(local) as group:
        thing = WeakReferenced()
        gone, handle = weakref.ref(thing), group.put(thing)
        del thing
        assert ask(group, "worker-0", "kind", handle).result == ["WeakReferenced"]
        assert gone() is not None
        del handle
        assert gone() is None
