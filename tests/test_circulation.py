"""The simulated cluster of the scaling study, against what can be reckoned by hand."""

from __future__ import annotations

import pytest

from benchmarks.circulation import Circulation, Cluster
from xcray.schedule.circulate import ORDERS, Circulate

CELL, TRAVEL = 3.0, 1.0  # seconds of a cell at its worker, and of a block between two nodes


def simulated(nodes, blocks, laps, order, *, cell=CELL, travel=TRAVEL, shards=None, ahead=2, **cluster):
    """A stretch: `nodes` names the node of each worker."""
    names = [f"w{w}" for w in range(len(nodes))]
    homes = [names[s * len(names) // (shards or len(names))] for s in range(shards or len(names))]
    schedule = Circulate(homes, blocks, laps, order=order, ahead=ahead)
    where = Cluster(dict(zip(names, nodes, strict=True)), block=10.0, bandwidth=10.0 / travel, **cluster)
    return Circulation(schedule, where, lambda visit: cell * len(visit.shards)).run()


@pytest.mark.parametrize("order", ORDERS)
def test_one_worker_only_computes(order):
    outcome = simulated("a", 5, 2, order, shards=3)
    assert outcome.makespan == outcome.busy == 5 * 2 * 3 * CELL
    assert (outcome.sent, outcome.most_sent, outcome.driver) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("order", ORDERS)
def test_two_nodes_and_a_block_each_wait_for_what_travels(order):
    """Both compute, both blocks change places: in a ring after each of the six steps but the last. Elsewhere a block may begin a
    lap where it ended the one before."""
    outcome = simulated("ab", 2, 3, order)
    assert outcome.busy == 12 * CELL
    if order in ("ring", "sync"):
        assert outcome.makespan == 6 * CELL + 5 * TRAVEL
        assert outcome.sent == 2 * outcome.most_sent == 2 * 5 * 10.0
    assert 6 * CELL + 3 * TRAVEL <= outcome.makespan <= 6 * CELL + 5 * TRAVEL


def test_with_two_blocks_each_the_ring_travels_while_it_computes_and_sync_does_so_within_a_step():
    """Ring: never waits. Sync, two blocks a worker and step: after each of the 3 barriers the first block of the step is still
    to come."""
    assert simulated("ab", 4, 2, "ring").makespan == 8 * CELL
    assert simulated("ab", 4, 2, "sync").makespan == 8 * CELL + 3 * TRAVEL


def test_where_travel_is_dearer_than_work_the_network_is_what_counts():
    """Two blocks a node and step: each node receives two blocks a step, one after the other, and computes the last of them."""
    outcome = simulated("ab", 4, 1, "ring", travel=10.0)
    assert outcome.makespan == CELL + 2 * 10.0 + CELL


def test_within_a_node_nothing_travels_and_a_ring_crosses_once_a_node():
    assert simulated("aa", 4, 2, "ring").sent == 0.0
    assert simulated("aabb", 8, 1, "ring").sent == 8 * 10.0 + 4 * 10.0  # those that start in a node's middle come back to it
    assert simulated("abab", 8, 1, "ring").sent == 8 * 3 * 10.0


def test_messages_and_the_driver_take_their_time():
    """One worker, one block, one lap past 4 shards, one at a time: each visit is told of, and then done."""
    outcome = simulated("a", 1, 1, "sync", shards=4, latency=0.5, driver=0.25)
    assert outcome.makespan == 4 * (0.25 + 0.5 + CELL)
    assert outcome.driver == 4 * 0.25
    busy = simulated("abcd", 8, 2, "ring", cell=0.001, travel=0.001, driver=1.0)
    assert busy.makespan == pytest.approx(busy.visits * 1.0, abs=0.1)  # a driver that is too slow is all there is


def test_what_a_node_holds():
    """A worker alone holds all blocks, and for a moment the one it has made beside the one it was made of. Of two nodes each
    holds its own, those that came, and those that have gone until their visit is reported."""
    assert simulated("a", 4, 2, "ring").held == 4 + 1
    assert 2 <= simulated("ab", 4, 2, "ring").held <= 5


@pytest.mark.parametrize("order", ORDERS)
def test_a_slow_worker_holds_up_a_lap_by_what_it_has_to_do(order):
    """All orders are strict in laps: no lap is over before the slowest has passed its blocks."""
    names = ["w0", "w1", "w2", "w3"]
    schedule = Circulate(names, 16, 2, order=order)
    cluster = Cluster({name: name for name in names}, block=1.0, bandwidth=1e9)
    outcome = Circulation(schedule, cluster, lambda visit: 4.0 if visit.worker == "w0" else 1.0).run()
    assert outcome.makespan >= 2 * 16 * 4.0
    assert outcome.makespan <= 1.15 * 2 * 16 * 4.0
