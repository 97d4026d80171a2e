"""Ray's worker group: deaths of processes and nodes, silence, lifetimes of objects.

Tests that need several nodes are in the second half, and are drills.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace

import numpy as np
import pytest
import ray

from tests.support import shared_ray
from tests.support.ray_clusters import several_nodes, store_use
from tests.support.shard_toy import GRID, ToyStep, ToyWork
from tests.support.waiting import until
from tests.support.worker_group_toy import LARGE, Work, ask, replies, to
from xcray.errors import ParameterError, Unavailable
from xcray.schedule.autoscaling import ScalingPolicy
from xcray.schedule.events import Lost
from xcray.solvers.group_contract import Layout, PlacedBlock
from xcray.workers.call_queue import call_many, require_ref
from xcray.workers.calls import GroupCalls
from xcray.workers.parts import Parts
from xcray.workers.ray import actors as ray_actors
from xcray.workers.ray import workers as ray_workers
from xcray.workers.ray.worker_group import RayWorkerGroup
from xcray.workers.worker_group import OBJECT_LOST, CallFailed

pytestmark = pytest.mark.ray
BYTES = 4 * LARGE
WORK = Work()
WIDE = 50_000  # features of a block of 1.6 MB


@pytest.fixture(scope="module")
def cluster():
    """Yield two nodes of one CPU, and a driver's node without CPUs."""
    shared_ray.stop()
    with several_nodes(1, 1) as group:
        yield group


@pytest.fixture
def group(ray, request):
    """Yield an open group of two workers on the local Ray."""
    with opened(request.node.name[:40]) as group:
        yield group


@pytest.fixture
def spread_group(cluster, request):
    """Yield an open group of two workers, one per node."""
    with opened(request.node.name[:40]) as group:
        yield group


@contextmanager
def opened(job: str, workers: int = 2, work=WORK, **options):
    """Run an open worker group."""
    group = RayWorkerGroup(work, workers, nullcontext(), job, **options)
    group.open()
    try:
        yield group
    finally:
        group.close()


def pid_of(group, worker: str) -> int:
    """Return the process ID of a worker."""
    return ray.get(group._actors[worker].pid.remote(), timeout=300)


def places(handle) -> set[str]:
    """Return the nodes that have a copy of an object, as worker groups name them."""
    (result,) = ray.experimental.get_object_locations([handle.ref]).values()
    return {node[:12] for node in result["node_ids"]}


def node_of(group, worker: str) -> str:
    """Return the node of a worker, without its address."""
    return group.nodes[worker].split("/")[1]


def alive(pid: int) -> bool:
    """Return whether a process of this machine runs."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_worker_is_one_loss_and_its_results_are_kept(group):
    """The process dies with one call running and one waiting, and neither returns a result.

    A new worker gets its name, which says the job and the worker.
    """
    name = f"xcray:{group._job}:worker-0"
    assert name in ray.util.list_named_actors()
    response = ask(group, "worker-0", "make", 5.0).ref
    for verb in ("long", "history"):
        group.submit(to("worker-0", verb))
    other = group.submit(to("worker-1", "add", response, 1.0))
    os.kill(pid_of(group, "worker-0"), signal.SIGKILL)
    result = replies(group, 2)
    assert [reply for reply in result if isinstance(reply, Lost)] == [Lost("worker-0")]
    assert [reply.ticket for reply in result if not isinstance(reply, Lost)] == [other]
    with pytest.raises(ParameterError, match="not replaced"):
        group.submit(to("worker-0", "history"))
    group.replace("worker-0")
    assert ask(group, "worker-0", "history").result == []
    until(  # the killed one is on the list for a moment
        lambda: (
            [each for each in ray.util.list_named_actors() if each.startswith(name)]
            in ([name], [f"{name}.2"])
        )
    )
    assert ask(group, "worker-0", "add", response, 1.0).result == 10.0
    np.testing.assert_array_equal(group.fetch(response), np.full(LARGE, 5.0, np.float32))
    assert group.wait(0.1) == []


@pytest.mark.usefixtures("ray")
def test_the_death_of_an_idle_worker_is_detected(monkeypatch):
    monkeypatch.setattr(ray_actors, "PROBE_SECONDS", 0.1)
    with opened("idle") as group:
        os.kill(pid_of(group, "worker-1"), signal.SIGKILL)
        assert replies(group, 1) == [Lost("worker-1")]
        assert ask(group, "worker-0", "history").result == []


@pytest.mark.usefixtures("ray")
def test_too_few_cpus_are_reported_and_nothing_is_left(monkeypatch):
    monkeypatch.setenv("XCRAY_RAY_START_SECONDS", "2")
    with pytest.raises(Unavailable, match="free CPU for each worker") as caught:
        with opened("crowd", workers=shared_ray.NUM_CPUS + 1):
            raise AssertionError("more workers than CPUs")
    assert caught.value.code == "RAY_NO_CPU"
    until(
        lambda: (
            not [name for name in ray.util.list_named_actors() if name.startswith("xcray:crowd:")]
        )
    )


@pytest.mark.drill
@pytest.mark.usefixtures("ray")
def test_a_silent_worker_is_lost_and_its_late_answer_ignored(monkeypatch, tmp_path):
    """A stopped process raises nothing, so it is given up, killed and replaced."""
    ahead = [0.0]
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr(ray_actors, "time", clock)
    with opened("silent", silent_seconds=3600.0) as group:
        group.submit(to("worker-0", "pass_gate", str(tmp_path / "gate")))
        pid = pid_of(group, "worker-0")
        os.kill(pid, signal.SIGSTOP)
        while not (result := group.wait(0.1)):
            other, _ = group._liveness._pending.get("worker-1", (ray.put(None), 0.0))
            # The other worker has replied before the clock advances.
            assert ray.wait([other], timeout=300)[0]
            ahead[0] += 2000.0
        assert result == [Lost("worker-0")]
        (tmp_path / "gate").touch()
        group.replace("worker-0")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        assert ask(group, "worker-0", "history").result == []
        until(lambda: not alive(pid))
        assert group.wait(0.1) == []


@pytest.mark.drill
@pytest.mark.usefixtures("ray")
def test_workers_that_keep_dying_end_it_with_a_reason(monkeypatch):
    monkeypatch.setattr(ray_workers, "REPLACEMENTS_PER_WORKER", 1)
    with opened("doomed") as group:
        for _ in range(2):
            group.submit(to("worker-0", "long"))
            ray.kill(group._actors["worker-0"])
            assert replies(group, 1) == [Lost("worker-0")]
            group.replace("worker-0")
        group.submit(to("worker-0", "long"))
        ray.kill(group._actors["worker-0"])
        with pytest.raises(
            Unavailable, match="3 Ray workers were lost one after the other"
        ) as caught:
            replies(group, 1)
        assert caught.value.code == "WORKERS_LOST"
        assert "died" in caught.value.hint


@pytest.mark.drill
def test_the_next_argument_is_fetched_while_a_worker_is_busy(spread_group, tmp_path):
    """While a gate holds worker-1, the argument of its next call moves to its node."""
    assert len(set(spread_group.nodes.values())) == 2
    thing = ask(spread_group, "worker-0", "make", 3.0).ref
    until(lambda: places(thing) == {node_of(spread_group, "worker-0")})
    first = spread_group.submit(to("worker-1", "pass_gate", str(tmp_path / "gate")))
    second = spread_group.submit(to("worker-1", "add", thing, 1.0))
    until(lambda: node_of(spread_group, "worker-1") in places(thing))
    assert spread_group.wait(0.0) == []
    (tmp_path / "gate").touch()
    answers = replies(spread_group, 2)
    assert [answer.ticket for answer in answers] == [first, second]
    assert answers[1].result == 6.0
    assert places(thing) == {node_of(spread_group, worker) for worker in spread_group.workers}
    until(lambda: places(answers[1].ref) == {node_of(spread_group, "worker-1")})


@pytest.mark.drill
def test_an_object_is_freed_on_all_nodes_with_its_handle(spread_group):
    """After objects were passed between nodes and freed, each node's store is empty."""
    until(lambda: not any(store_use().values()))  # of those of the tests before
    things = [ask(spread_group, "worker-0", "make", float(n)).ref for n in range(4)]
    for turn in range(4):
        things = [
            ask(spread_group, f"worker-{(turn + 1) % 2}", "add", thing, 1.0).ref for thing in things
        ]
    assert sum(store_use().values()) >= 4 * BYTES
    # Results of earlier turns are freed.
    until(lambda: sum(store_use().values()) < 5 * BYTES)
    assert [float(spread_group.fetch(thing)[0]) for thing in things] == [4.0, 5.0, 6.0, 7.0]
    del things
    until(lambda: not any(store_use().values()))


@pytest.mark.drill
def test_objects_of_a_lost_node_are_reported_as_lost(cluster, monkeypatch):
    """Objects on a lost node are reported as lost by calls and by `fetch`.

    Without a free CPU, a worker cannot be replaced.
    """
    with opened("node") as group:
        victim = next(
            node
            for node in cluster.worker_nodes
            if node.node_id.startswith(node_of(group, "worker-0"))
        )
        lost, selection = (
            ask(group, "worker-0", "make", 1.0).ref,
            ask(group, "worker-1", "make", 2.0).ref,
        )
        before = group.nodes
        group.submit(to("worker-0", "long"))
        cluster.remove_node(victim, allow_graceful=False)
        try:
            ticket = group.submit(to("worker-1", "total", [selection, lost]))
            results = sorted(replies(group, 2), key=lambda reply: isinstance(reply, Lost))
            assert results[1] == Lost("worker-0")
            assert isinstance(results[0], CallFailed)
            assert (results[0].ticket, results[0].error.code) == (ticket, OBJECT_LOST)
            with pytest.raises(Unavailable, match="last checkpoint") as caught:
                group.fetch(lost)
            assert caught.value.code == OBJECT_LOST
            assert ask(group, "worker-1", "total", [selection]).result == 2.0
            with monkeypatch.context() as patch:
                patch.setenv("XCRAY_RAY_NODE_SECONDS", "1")
                with pytest.raises(
                    Unavailable, match=r"1 of 2 Ray workers \(worker-0\) were not ready"
                ):
                    group.replace("worker-0")
            # It does not wait for a new node, because others can continue.
            with pytest.raises(Unavailable, match="no node has room"):
                group.replace("worker-0", at_once=True)
            assert group.poll_new_workers() == []
            assert group.available == ("worker-1",)
        finally:
            cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
        # It starts by itself once there is room.
        until(lambda: group.poll_new_workers() == ["worker-0"])
        assert group.available == ("worker-0", "worker-1")
        assert group.nodes["worker-0"] not in before.values()
        assert group.nodes["worker-1"] == before["worker-1"]
        assert ask(group, "worker-0", "total", [selection]).result == 2.0


@pytest.mark.drill
def test_no_copies_of_blocks_stay_where_they_only_passed(cluster):
    """After update, sum and evaluation sweeps, each block is on one node only.

    The stores hold no more than the blocks.
    """
    work = ToyWork(n_features=WIDE)
    with opened("rotation", work=work) as group:
        asks = [
            to(group.workers[b % 2], "create_block", 4 * b, 4 * b + 4) for b in range(GRID.blocks)
        ]
        homes = [group.workers[0]] * 2 + [group.workers[1]] * 2
        list(
            call_many(
                group,
                [
                    to(worker, "hold_shards", [s for s in range(4) if homes[s] == worker])
                    for worker in group.workers
                ],
            )
        )
        before = sum(store_use().values())
        blocks = [
            PlacedBlock(answer.worker, require_ref(answer.ref)) for answer in call_many(group, asks)
        ]
        steps = [ToyStep(verb, 1, 1.0) for verb in ("update", "sum", "observe")]
        parts = Parts(group, GRID.shards)
        parts.owners = tuple(homes)
        calls = GroupCalls(group, parts=parts, layout=Layout(2, grid=GRID))
        result = calls.rotate(blocks, steps, order="ring", seed=0, epochs=1)
        del blocks
        until(
            lambda: all(
                places(block) == {node_of(group, worker)} for worker, block in result.blocks
            )
        )
        # W and state of 4 labels, in float32.
        until(lambda: sum(store_use().values()) - before < 1.01 * GRID.blocks * 2 * 4 * WIDE * 4)


@pytest.mark.parametrize(
    ("seconds_left", "requested"), [(None, 0), (50.0, 0), (200.0, 2), (1e4, 6)]
)
def test_workers_without_a_place_are_requested_while_work_is_left(
    monkeypatch, seconds_left, requested
):
    """Two of eight workers are there, no node has room, and a node takes 60 s to start."""
    policy = ScalingPolicy(node_seconds=60.0)
    group = RayWorkerGroup(Work(), 8, nullcontext(), "growing", initial=2, policy=policy)
    group._actors = {"worker-0": None, "worker-1": None}
    asked = []
    monkeypatch.setattr(group, "_request_workers", asked.extend)
    monkeypatch.setattr(group, "_poll_starts", lambda seconds: [])
    monkeypatch.setattr(group._cluster, "refresh", lambda seconds=0.0: None)
    assert group.poll_new_workers(seconds_left) == []
    assert asked == [f"worker-{number}" for number in range(2, 2 + requested)]
