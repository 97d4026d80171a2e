"""Placement and autoscaling: pure decisions, also on a simulated clock."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cluster.growth import Cluster, Policy, grown
from benchmarks.cluster.simulation import heavy_tailed
from xcray.schedule.autoscaling import (
    IDLE_SECONDS,
    Forecast,
    ScalingPolicy,
    WorkerCounts,
    desired_workers,
    workers_to_release,
)
from xcray.schedule.events import Done, Finish, Joined, Lost, NodeLost, Run
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.schedule.placement import (
    ONE_CPU,
    Node,
    ResourceRequest,
    free_slots,
    group_by_node,
    place_workers,
)

NODES = st.lists(
    st.builds(
        Node,
        st.uuids().map(str),
        st.integers(0, 9).map(float),
        st.integers(0, 64).map(float),
        excluded=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda node: node.id,
)


@given(
    NODES,
    st.integers(1, 3),
    st.integers(0, 9),
    st.integers(0, 40),
    st.randoms(use_true_random=False),
)
def test_no_node_is_overfilled_or_opened_without_need(nodes, cpus, memory, count, random: Random):
    """No node is overfilled, and another node is opened only if the open ones are full."""
    need = ResourceRequest(float(cpus), float(memory))
    ours = {node.id: random.randrange(3) for node in nodes if random.random() < 0.3}
    seats = place_workers(nodes, need, count, placed=ours, driver_node=nodes[0].id if nodes else "")
    rooms, selection = {node.id: free_slots(node, need) for node in nodes}, Counter(seats)
    assert all(selection[node] <= rooms[node] for node in selection)
    assert len(seats) == min(count, sum(rooms.values()))
    assert sum(selection[node] < rooms[node] for node in selection) <= 1
    opened = [node for node in selection if not ours.get(node) and node != nodes[0].id]
    known = {node: rooms[node] for node in rooms if ours.get(node) or node == nodes[0].id}
    assert not opened or all(selection[node] == rooms[node] for node in known)
    left = len(seats) - sum(selection[node] for node in known)
    others = sorted((rooms[node] for node in rooms if node not in known), reverse=True)
    fewest = next((n for n in range(len(others) + 1) if sum(others[:n]) >= left), len(others))
    assert len(opened) == fewest


def test_workers_prefer_used_nodes_then_the_drivers_then_the_smallest():
    nodes = [Node("a", 4.0), Node("b", 2.0), Node("c", 16.0), Node("d", 3.0)]
    assert (
        place_workers(nodes, ONE_CPU, 8, placed={"b": 1}, driver_node="a")
        == ["b"] * 2 + ["a"] * 4 + ["d"] * 2
    )
    assert place_workers(
        [Node("head", 0.0), Node("a", 1.0)], ONE_CPU, 2, placed={}, driver_node="head"
    ) == ["a"]
    assert place_workers(
        [Node("a", 8.0, excluded=True), Node("b", 1.0)], ONE_CPU, 4, placed={"a": 3}
    ) == ["b"]


def test_memory_and_object_stores_limit_the_workers_of_a_node():
    big, small = Node("big", 8.0, 64.0, 10.0), Node("small", 8.0, 8.0, 10.0)
    assert Counter(
        place_workers([big, small], ResourceRequest(memory=4.0), 12, placed={"small": 1})
    ) == {
        "small": 2,
        "big": 8,
    }
    assert Counter(place_workers([big, small], ResourceRequest(store=2.0), 6, placed={})) == {
        "big": 5,
        "small": 1,
    }
    assert Counter(place_workers([big, small], ResourceRequest(store=2.0), 16, placed={})) == {
        "big": 8,
        "small": 8,
    }  # what does not fit is spilled to disk


def test_a_rotation_crosses_each_node_once():
    workers = [f"worker-{n}" for n in range(12)]
    nodes = {worker: f"node-{n % 3}" for n, worker in enumerate(workers)}

    def crossings(order):
        return sum(nodes[a] != nodes[b] for a, b in zip(order, [*order[1:], order[0]], strict=True))

    assert crossings(workers) == 12
    assert crossings(group_by_node(workers, nodes)) == 3
    assert group_by_node(workers, {}) == workers


@given(
    st.floats(0.0, 1e6),
    st.integers(0, 10**6),
    st.integers(0, 64),
    st.integers(0, 64),
    st.integers(0, 64),
    st.integers(1, 300),
)
def test_never_fewer_than_there_are_nor_more_than_have_work(
    seconds, labels, ready, query, free, most
):
    outlook, thrift = Forecast(seconds, labels, ready, ()), ScalingPolicy(1.0, 60.0)
    expected = desired_workers(outlook, WorkerCounts(ready, query, free), most, thrift)
    assert expected >= ready
    assert expected <= max(ready, min(most, ready + max(labels, not ready)))
    more = desired_workers(
        outlook._replace(seconds=seconds + 1000.0), WorkerCounts(ready, query, free), most, thrift
    )
    assert more >= expected
    if expected > ready + free and expected > 1:
        # A worker that needs a new node has at least a minute of work.
        assert seconds / expected >= 60.0


def test_the_first_worker_is_always_requested_and_late_ones_are_not():
    thrift = ScalingPolicy(1.0, 60.0)
    assert desired_workers(Forecast(0.01, 5, 0, ()), WorkerCounts(0, 0, 0), 8, thrift) == 1
    # Where there is room, one second of work is enough.
    assert desired_workers(Forecast(300.0, 5000, 4, ()), WorkerCounts(4, 0, 8), 100, thrift) == 12
    assert desired_workers(Forecast(3000.0, 5000, 4, ()), WorkerCounts(4, 0, 0), 100, thrift) == 46
    # Only three more workers have work.
    assert desired_workers(Forecast(3000.0, 3, 4, ()), WorkerCounts(4, 0, 0), 100, thrift) == 7
    # Pending requests are cancelled.
    assert (
        desired_workers(Forecast(250.0, 5000, 4, ()), WorkerCounts(4, 46, 0, 30.0), 100, thrift)
        == 4
    )


def test_whole_nodes_are_released_first_and_some_workers_stay():
    nodes = {f"{node}{n}": node for node in "abc" for n in range(4)}
    idle = ("a0", "b0", "b1", "b2", "b3", "c0", "c1")
    since, later = dict.fromkeys(idle, 0.0), 2 * IDLE_SECONDS
    assert workers_to_release(Forecast(9.0, 0, 5, idle), since, nodes, later) == [
        "b0",
        "b1",
        "b2",
        "b3",
        "c0",
        "c1",
    ]
    # A label is left to assign.
    assert workers_to_release(Forecast(9.0, 1, 5, idle), since, nodes, later) == []
    assert workers_to_release(Forecast(9.0, 0, 5, idle), since, nodes, IDLE_SECONDS / 2) == []
    # The others stay for copies of late batches.
    assert workers_to_release(Forecast(9.0, 0, 40, idle), since, nodes, later) == ["b0"]


def test_only_crashed_workers_count_as_failures_of_a_batch():
    """Workers lost with their nodes do not count; the third loss of a worker alone is final."""
    for node_went, end in ((True, None), (False, "3 workers were lost")):
        schedule, failed = LabelScheduler([7], [1.0]), None
        for n in range(4):
            (run,) = schedule.on(Joined(f"w{n}"))
            assert isinstance(run, Run)
            report = schedule.on(Lost(f"w{n}"))
            failed = next((each.reason for each in report if isinstance(each, Finish)), None)
            if failed is not None:
                break
            if node_went:
                schedule.on(NodeLost(f"w{n}"))
        assert (failed or "")[:18] == (end or "")[:18]
        if end is None:
            (run,) = schedule.on(Joined("last"))
            assert schedule.on(Done("last", run.task.id, 1.0)) == [Finish()]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_job_with_autoscaling_uses_few_extra_node_seconds(seed):
    """Nodes take a minute to start and are removed after an idle one; each works a minute."""
    cost, cluster = 60.0 * heavy_tailed(20_000, seed), Cluster(nodes=32, cpus=4, start=60.0)
    own, whole = grown(cost, cluster, Policy.THRIFT), grown(cost, cluster, Policy.ALL)
    assert sorted(own.committed) == sorted(whole.committed) == list(range(len(cost)))
    assert own.node_seconds < 0.3 * whole.node_seconds
    assert own.makespan < 2.0 * whole.makespan
    assert own.node_seconds < 3.0 * cost.sum() / cluster.cpus + 60.0


def test_overestimated_costs_request_no_extra_nodes():
    cost, cluster = 60.0 * heavy_tailed(5_000), Cluster(nodes=32, cpus=4, start=60.0)
    assert (
        grown(cost, cluster, Policy.THRIFT, guess=20.0).nodes
        == grown(cost, cluster, Policy.THRIFT).nodes
    )


def test_idle_nodes_are_released_while_one_label_is_solved():
    cost = [1200.0] + [1.0] * 5000
    cluster = Cluster(nodes=16, cpus=4, start=30.0, idle=30.0)
    own, whole = grown(cost, cluster, Policy.THRIFT), grown(cost, cluster, Policy.ALL)
    assert own.makespan == pytest.approx(whole.makespan, rel=0.02)
    assert own.node_seconds < 0.3 * whole.node_seconds
