"""Contract of worker groups: one suite for the serial, the threaded and the Ray group.

Tests of Ray alone are in another file.
"""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.support import shared_ray
from tests.support.worker_group_toy import LARGE, Work, ask, replies, to
from xcray.errors import DataError, ParameterError, Stopped, Unavailable
from xcray.schedule.calls import ObjectHandle
from xcray.schedule.events import Lost
from xcray.workers.local_group import SerialGroup, ThreadGroup
from xcray.workers.ray.worker_group import RayWorkerGroup
from xcray.workers.worker_group import OBJECT_LOST, CallFailed, CallResult

WORK = Work()
GROUPS: dict[str, Any] = {
    "serial": SerialGroup,
    "threads": ThreadGroup,
    "ray": lambda work, workers: RayWorkerGroup(work, workers, nullcontext(), "contract"),
}


KINDS = [pytest.param("ray", marks=pytest.mark.ray), "serial", "threads"]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    """Return a kind of worker group; Ray has room for two groups."""
    if request.param == "ray":
        shared_ray.start()
    return request.param


@pytest.fixture
def build(kind):
    """Yield a function that creates groups of one kind; they are closed after the test."""
    results = []

    def make(workers: int = 2, work: Work = WORK) -> Any:
        group = GROUPS[kind](work, workers)
        results.append(group)
        return group

    yield make
    for group in results:
        group.close()


@pytest.fixture(scope="module")
def group(kind):
    """Yield an open group of two workers, which record their calls.

    It is for tests that do not change it.
    """
    with opened(kind) as cluster:
        yield cluster


@contextmanager
def opened(kind: str):
    """Run an open group of two workers."""
    group = GROUPS[kind](WORK, 2)
    group.open()
    try:
        yield group
    finally:
        group.close()


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


def test_an_error_is_returned_as_raised_and_the_worker_continues(group):
    failed = ask(group, "worker-1", "fail")
    assert isinstance(failed, CallFailed)
    assert type(failed.error) is DataError
    assert (failed.error.code, failed.error.line, failed.error.hint) == ("BAD_ROW", 7, "mend it")
    assert isinstance(ask(group, "worker-1", "slip").error, KeyError)
    assert ask(group, "worker-1", "make", 1.0).result == "worker-1"


def test_unknown_methods_and_workers_are_refused(group):
    for wrong in ("_private", "__init__", "a b", ""):
        with pytest.raises(ParameterError, match="is not a valid method name"):
            group.submit(to("worker-0", wrong))
    with pytest.raises(ParameterError, match="no worker 'worker-2'"):
        group.submit(to("worker-2", "make", 1.0))
    unknown = ask(group, "worker-0", "sing")
    assert isinstance(unknown.error, ParameterError)
    assert "RecordingWorker has no method 'sing'" in str(unknown.error)
    with pytest.raises(ParameterError, match="cannot be replaced"):
        group.replace("worker-0")


def test_a_worker_group_needs_a_worker(build):
    with pytest.raises(ParameterError, match="at least 1 worker"):
        build(0)


def test_waiting_for_nothing_takes_no_time(group):
    began = time.monotonic()
    assert group.wait(600.0) == []
    assert time.monotonic() - began < 300.0


def test_a_worker_that_cannot_be_created_is_reported_at_the_start(build):
    group = build(work=Work(broken="worker-1"))
    with pytest.raises(DataError, match="no such shard"):
        group.open()


def test_a_stop_ends_running_calls_and_starts_none(build):
    group = build()
    group.open()
    tickets = [group.submit(to("worker-0", "long")), group.submit(to("worker-0", "make", 1.0))]
    timer = threading.Timer(0.2, group.stop)
    timer.start()
    result = replies(group, 2)
    timer.join()
    assert [reply.ticket for reply in result] == tickets
    # A method that ran to its end would not raise Stopped.
    assert all(isinstance(reply.error, Stopped) for reply in result)


def test_an_interruption_ends_earlier_calls_only(group):
    tickets = [group.submit(to("worker-0", "long")), group.submit(to("worker-0", "make", 1.0))]
    timer = threading.Timer(0.2, group.interrupt)
    timer.start()
    result = replies(group, 2)
    timer.join()
    assert [reply.ticket for reply in result] == tickets
    assert all(isinstance(reply.error, Stopped) for reply in result)
    assert ask(group, "worker-0", "make", 2.0).result == "worker-0"


def test_close_can_be_called_twice_and_before_open(build):
    group, before = build(), set(threading.enumerate())
    group.close()
    group.open()
    assert ask(group, "worker-0", "make", 1.0).result == "worker-0"
    group.close()
    group.close()
    assert not [
        thread
        for thread in set(threading.enumerate()) - before
        if thread.name.startswith("xcray-worker")
    ]


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
