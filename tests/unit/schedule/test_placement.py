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
def test_a_node_takes_no_more_than_it_has_and_none_is_opened_without_need(
    nodes, cpus, memory, count, random: Random
):
    """No node is overfilled; workers go where there is room while there is; all but the last opened
    are full.
    """
    need = ResourceRequest(float(cpus), float(memory))
    ours = {node.id: random.randrange(3) for node in nodes if random.random() < 0.3}
    seats = place_workers(nodes, need, count, placed=ours, driver_node=nodes[0].id if nodes else "")
    rooms, taken = {node.id: free_slots(node, need) for node in nodes}, Counter(seats)
    assert all(taken[node] <= rooms[node] for node in taken)
    assert len(seats) == min(count, sum(rooms.values()))
    assert sum(taken[node] < rooms[node] for node in taken) <= 1
    opened = [node for node in taken if not ours.get(node) and node != nodes[0].id]
    known = {node: rooms[node] for node in rooms if ours.get(node) or node == nodes[0].id}
    assert not opened or all(taken[node] == rooms[node] for node in known)
    left = len(seats) - sum(taken[node] for node in known)
    others = sorted((rooms[node] for node in rooms if node not in known), reverse=True)
    fewest = next((n for n in range(len(others) + 1) if sum(others[:n]) >= left), len(others))
    assert len(opened) == fewest


def test_workers_go_where_others_are_then_to_the_drivers_node_then_to_the_smallest_that_takes_them():
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


def test_memory_opens_another_node_and_so_do_object_stores_while_there_are_others():
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
    }  # what does not fit is written


def test_what_goes_round_crosses_nodes_no_more_often_than_there_are_nodes():
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
    seconds, labels, ready, asked, free, most
):
    outlook, thrift = Forecast(seconds, labels, ready, ()), ScalingPolicy(1.0, 60.0)
    wanted = desired_workers(outlook, WorkerCounts(ready, asked, free), most, thrift)
    assert wanted >= ready
    assert wanted <= max(ready, min(most, ready + max(labels, not ready)))
    more = desired_workers(
        outlook._replace(seconds=seconds + 1000.0), WorkerCounts(ready, asked, free), most, thrift
    )
    assert more >= wanted
    if wanted > ready + free and wanted > 1:
        assert seconds / wanted >= 60.0  # who makes a node come works for a minute


def test_the_first_is_asked_for_whatever_the_job_is_and_those_that_would_come_too_late_are_not():
    thrift = ScalingPolicy(1.0, 60.0)
    assert desired_workers(Forecast(0.01, 5, 0, ()), WorkerCounts(0, 0, 0), 8, thrift) == 1
    assert (
        desired_workers(Forecast(300.0, 5000, 4, ()), WorkerCounts(4, 0, 8), 100, thrift) == 12
    )  # there is room: a second pays
    assert desired_workers(Forecast(3000.0, 5000, 4, ()), WorkerCounts(4, 0, 0), 100, thrift) == 46
    assert (
        desired_workers(Forecast(3000.0, 3, 4, ()), WorkerCounts(4, 0, 0), 100, thrift) == 7
    )  # nobody but three has anything to do
    assert (
        desired_workers(Forecast(250.0, 5000, 4, ()), WorkerCounts(4, 46, 0, 30.0), 100, thrift)
        == 4
    )  # those asked for are called off


def test_whole_nodes_are_given_back_first_and_some_stay_for_copies():
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
    assert (
        workers_to_release(Forecast(9.0, 1, 5, idle), since, nodes, later) == []
    )  # something is left to give out
    assert workers_to_release(Forecast(9.0, 0, 5, idle), since, nodes, IDLE_SECONDS / 2) == []
    assert workers_to_release(Forecast(9.0, 0, 40, idle), since, nodes, later) == [
        "b0"
    ]  # late batches may be copied


def test_a_batch_is_not_to_blame_for_nodes_that_vanish_but_for_workers_that_crash():
    """Its holder is lost four times: with its node, and it goes on; alone, and the third time ends
    it.
    """
    for node_went, end in ((True, None), (False, "3 workers were lost")):
        schedule, failed = LabelScheduler([7], [1.0]), None
        for n in range(4):
            (run,) = schedule.on(Joined(f"w{n}"))
            assert isinstance(run, Run)
            told = schedule.on(Lost(f"w{n}"))
            failed = next((each.reason for each in told if isinstance(each, Finish)), None)
            if failed is not None:
                break
            if node_went:
                schedule.on(NodeLost(f"w{n}"))
        assert (failed or "")[:18] == (end or "")[:18]
        if end is None:
            (run,) = schedule.on(Joined("last"))
            assert schedule.on(Done("last", run.task.id, 1.0)) == [Finish()]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_job_pays_for_few_more_node_seconds_than_it_must_and_ends_nearly_as_soon(seed):
    """Of nodes that take a minute to come and are idle for one before they go, each works for a
    minute at least.
    """
    cost, cluster = 60.0 * heavy_tailed(20_000, seed), Cluster(nodes=32, cpus=4, start=60.0)
    own, whole = grown(cost, cluster, Policy.THRIFT), grown(cost, cluster, Policy.ALL)
    assert sorted(own.committed) == sorted(whole.committed) == list(range(len(cost)))
    assert own.node_seconds < 0.3 * whole.node_seconds
    assert own.makespan < 2.0 * whole.makespan
    assert own.node_seconds < 3.0 * cost.sum() / cluster.cpus + 60.0


def test_costs_thought_too_dear_ask_for_no_nodes_before_something_is_measured():
    cost, cluster = 60.0 * heavy_tailed(5_000), Cluster(nodes=32, cpus=4, start=60.0)
    assert (
        grown(cost, cluster, Policy.THRIFT, guess=20.0).nodes
        == grown(cost, cluster, Policy.THRIFT).nodes
    )


def test_while_one_dear_label_is_solved_the_other_nodes_are_given_back():
    cost = [1200.0] + [1.0] * 5000
    cluster = Cluster(nodes=16, cpus=4, start=30.0, idle=30.0)
    own, whole = grown(cost, cluster, Policy.THRIFT), grown(cost, cluster, Policy.ALL)
    assert own.makespan == pytest.approx(whole.makespan, rel=0.02)
    assert own.node_seconds < 0.3 * whole.node_seconds
