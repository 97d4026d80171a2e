"""The simulated cluster of the scaling study, against what can be reckoned by hand."""

from __future__ import annotations

import pytest

from benchmarks.multinomial import scaling
from benchmarks.multinomial.simulated_rotation import Circulation, Cluster
from xcray.schedule.rotation import ORDERS, RotationSchedule

CELL, TRAVEL = 3.0, 1.0  # seconds of a cell at its worker, and of a block between two nodes


def simulated(
    nodes, blocks, laps, order, *, cell=CELL, travel=TRAVEL, shards=None, ahead=2, **cluster
):
    """A stretch: `nodes` names the node of each worker."""
    names = [f"w{w}" for w in range(len(nodes))]
    homes = [names[s * len(names) // (shards or len(names))] for s in range(shards or len(names))]
    schedule = RotationSchedule(homes, blocks, laps, order=order, max_in_flight=ahead)
    where = Cluster(
        dict(zip(names, nodes, strict=True)), block=10.0, bandwidth=10.0 / travel, **cluster
    )
    return Circulation(schedule, where, lambda visit: cell * len(visit.shards)).run()


@pytest.mark.parametrize("order", ORDERS)
def test_one_worker_only_computes(order):
    outcome = simulated("a", 5, 2, order, shards=3)
    assert outcome.makespan == outcome.busy == 5 * 2 * 3 * CELL
    assert (outcome.sent, outcome.most_sent, outcome.driver) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("order", ORDERS)
def test_two_nodes_and_a_block_each_wait_for_what_travels(order):
    """Both compute, both blocks change places: in a ring after each of the six steps but the last.
    Elsewhere a block may begin a lap where it ended the one before.
    """
    outcome = simulated("ab", 2, 3, order)
    assert outcome.busy == 12 * CELL
    if order in ("ring", "sync"):
        assert outcome.makespan == 6 * CELL + 5 * TRAVEL
        assert outcome.sent == 2 * outcome.most_sent == 2 * 5 * 10.0
    assert 6 * CELL + 3 * TRAVEL <= outcome.makespan <= 6 * CELL + 5 * TRAVEL


def test_with_two_blocks_each_the_ring_travels_while_it_computes_and_sync_does_so_within_a_step():
    """Ring: never waits. Sync, two blocks a worker and step: after each of the 3 barriers the first
    block of the step is still to come.
    """
    assert simulated("ab", 4, 2, "ring").makespan == 8 * CELL
    assert simulated("ab", 4, 2, "sync").makespan == 8 * CELL + 3 * TRAVEL


def test_where_travel_is_dearer_than_work_the_network_is_what_counts():
    """Two blocks a node and step: each node receives two blocks a step, one after the other, and
    computes the last of them.
    """
    outcome = simulated("ab", 4, 1, "ring", travel=10.0)
    assert outcome.makespan == CELL + 2 * 10.0 + CELL


def test_within_a_node_nothing_travels_and_a_ring_crosses_once_a_node():
    assert simulated("aa", 4, 2, "ring").sent == 0.0
    assert (
        simulated("aabb", 8, 1, "ring").sent == 8 * 10.0 + 4 * 10.0
    )  # those that start in a node's middle come back to it
    assert simulated("abab", 8, 1, "ring").sent == 8 * 3 * 10.0


def test_messages_and_the_driver_take_their_time():
    """One worker, one block, one lap past 4 shards, one at a time: each visit is told of, and then
    done.
    """
    outcome = simulated("a", 1, 1, "sync", shards=4, latency=0.5, driver=0.25)
    assert outcome.makespan == 4 * (0.25 + 0.5 + CELL)
    assert outcome.driver == 4 * 0.25
    busy = simulated("abcd", 8, 2, "ring", cell=0.001, travel=0.001, driver=1.0)
    assert busy.makespan == pytest.approx(
        busy.visits * 1.0, abs=0.1
    )  # a driver that is too slow is all there is


def test_what_a_node_holds():
    """A worker alone holds all blocks, and for a moment the one it has made beside the one it was
    made of. Of two nodes each holds its own, those that came, and those that have gone until their
    visit is reported.
    """
    assert simulated("a", 4, 2, "ring").held == 4 + 1
    assert 2 <= simulated("ab", 4, 2, "ring").held <= 5


@pytest.mark.parametrize("order", ORDERS)
def test_a_slow_worker_holds_up_a_lap_by_what_it_has_to_do(order):
    """All orders are strict in laps: no lap is over before the slowest has passed its blocks."""
    names = ["w0", "w1", "w2", "w3"]
    schedule = RotationSchedule(names, 16, 2, order=order)
    cluster = Cluster({name: name for name in names}, block=1.0, bandwidth=1e9)
    outcome = Circulation(
        schedule, cluster, lambda visit: 4.0 if visit.worker == "w0" else 1.0
    ).run()
    assert outcome.makespan >= 2 * 16 * 4.0
    assert outcome.makespan <= 1.15 * 2 * 16 * 4.0


PROBLEM = scaling.Problem("small", rows=1000, features=500, classes=400, nonzeros=20.0)
RATES = scaling.Rates(update=(3e-6, 1e-5), sum=(1e-6, 2e-5), both=(3e-6, 2e-5), copy=1e-9)


def test_the_study_reckons_one_node_by_hand():
    """Two laps of two blocks past one shard, on four threads; nothing travels, four visits are told
    of one at a time or waited for.
    """
    row = scaling.simulate(
        PROBLEM, RATES, scaling.Plan(nodes=1, workers=1, threads=4, blocks=2, gbit=10.0)
    )
    cells = 1000 * 400 * (20 * 3e-6 + 1e-5 + 20 * 1e-6 + 2e-5) / 4
    copies = (500 * 400 * 4 + 2 * 500 * 2 * 4) * (1e-9 + scaling.HAND_OVER)
    assert row["cell_seconds"] == pytest.approx(cells)
    assert row["copy_seconds"] == pytest.approx(copies)
    assert row["network_seconds"] == row["sent_gb"] == 0.0
    assert row["epoch_seconds"] == pytest.approx(cells + copies, abs=4 * 2e-3)
    assert row["memory_of_a_node_gb"] == pytest.approx(
        1e-9 * (1000 * (20 * 8 + 48) + 3 * (500 * 200 * 4 + 500 * 8))
    )


def test_the_study_halves_the_cells_with_twice_the_nodes_and_tells_where_the_network_takes_over():
    plans = [scaling.Plan(nodes, 1, 1, 2, gbit=0.001) for nodes in (4, 8)]
    few, many = (scaling.simulate(PROBLEM, RATES, plan) for plan in plans)
    assert few["cell_seconds"] == pytest.approx(2 * many["cell_seconds"])
    assert few["sent_by_a_node_gb"] == pytest.approx(
        many["sent_by_a_node_gb"], rel=0.15
    )  # all blocks, twice
    (nodes,) = scaling.crossings(PROBLEM, RATES, 1, [0.001]).values()
    cells = 1000 * 400 * (20 * 4e-6 + 3e-5)
    assert nodes == pytest.approx(cells / (2 * 500 * 400 * 4 * 8 / 1e6))


def test_a_slow_node_costs_all_orders_the_same_until_shards_are_moved():
    base = scaling.Plan(nodes=4, workers=1, threads=1, blocks=4, gbit=100.0)
    even, one, moved = (
        scaling.simulate(PROBLEM, RATES, base._replace(slow=slow))
        for slow in ("nobody", "one", "moved")
    )
    assert one["epoch_seconds"] == pytest.approx(4 * even["epoch_seconds"], rel=0.05)
    assert moved["epoch_seconds"] < 1.5 * even["epoch_seconds"]
    turns = [
        scaling.simulate(PROBLEM, RATES, base._replace(slow="turns", order=order))
        for order in ("sync", "ring")
    ]
    assert turns[1]["epoch_seconds"] < 0.8 * turns[0]["epoch_seconds"]


def test_routing_by_node_sends_less():
    base = scaling.Plan(
        nodes=4, workers=4, threads=4, blocks=2, gbit=100.0, slow="turns"
    )  # in step, neighbours change blocks
    anywhere, by_node = (
        scaling.simulate(PROBLEM, RATES, base._replace(order=order))
        for order in ("uniform", "uniform by node")
    )
    assert by_node["sent_gb"] < 0.5 * anywhere["sent_gb"]


def test_rates_are_measured_by_the_solver_itself(monkeypatch):
    monkeypatch.setattr(
        scaling, "PROBE", {"rows": 60, "features": 300, "labels": 32, "nonzeros": (5, 50)}
    )
    rates = scaling.measured(repeats=3)
    assert all(rates.cells(PROBLEM, verb) > 0.0 for verb in scaling.VERBS)
    assert rates.copy > 0.0
