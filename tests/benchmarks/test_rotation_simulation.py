"""The simulated cluster of the scaling study, compared with results calculated by hand."""

from __future__ import annotations

import pytest

from benchmarks.multinomial import scaling
from benchmarks.multinomial.simulated_rotation import Circulation, Cluster
from xcray.schedule.rotation import ORDERS, RotationSchedule

CELL, TRAVEL = 3.0, 1.0  # seconds per cell, and seconds per block sent between nodes


def simulated(
    nodes, blocks, laps, order, *, cell=CELL, travel=TRAVEL, shards=None, ahead=2, **cluster
):
    """Simulate one interval; `nodes` is the node of each worker."""
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
    assert (outcome.bytes_sent, outcome.most_sent, outcome.driver) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("order", ORDERS)
def test_two_nodes_with_one_block_each_wait_for_transfers(order):
    """Both nodes compute, and their blocks swap places.

    With "ring" and "sync" they do so after each of the six steps except the last. In other orders
    a block can begin a sweep where it ended the previous one.
    """
    outcome = simulated("ab", 2, 3, order)
    assert outcome.busy == 12 * CELL
    if order in ("ring", "sync"):
        assert outcome.makespan == 6 * CELL + 5 * TRAVEL
        assert outcome.bytes_sent == 2 * outcome.most_sent == 2 * 5 * 10.0
    assert 6 * CELL + 3 * TRAVEL <= outcome.makespan <= 6 * CELL + 5 * TRAVEL


def test_with_two_blocks_per_node_a_ring_overlaps_transfers_and_sync_within_steps():
    """A ring never waits; sync waits for a block after each of its 3 barriers."""
    assert simulated("ab", 4, 2, "ring").makespan == 8 * CELL
    assert simulated("ab", 4, 2, "sync").makespan == 8 * CELL + 3 * TRAVEL


def test_slow_transfers_determine_the_time():
    """Each node receives two blocks per step, one after the other, and computes the last one."""
    outcome = simulated("ab", 4, 1, "ring", travel=10.0)
    assert outcome.makespan == CELL + 2 * 10.0 + CELL


def test_no_transfer_within_a_node_and_one_crossing_per_node_in_a_ring():
    assert simulated("aa", 4, 2, "ring").bytes_sent == 0.0
    # Blocks that start at a node's second worker return to it.
    assert simulated("aabb", 8, 1, "ring").bytes_sent == 8 * 10.0 + 4 * 10.0
    assert simulated("abab", 8, 1, "ring").bytes_sent == 8 * 3 * 10.0


def test_messages_and_the_driver_take_time():
    """One worker computes one block on 4 shards; each visit costs a message and driver time."""
    outcome = simulated("a", 1, 1, "sync", shards=4, latency=0.5, driver=0.25)
    assert outcome.makespan == 4 * (0.25 + 0.5 + CELL)
    assert outcome.driver == 4 * 0.25
    busy = simulated("abcd", 8, 2, "ring", cell=0.001, travel=0.001, driver=1.0)
    # A slow driver determines the whole time.
    assert busy.makespan == pytest.approx(busy.visits * 1.0, abs=0.1)


def test_number_of_blocks_held_by_a_node():
    """A single worker holds all blocks, and briefly the old and new version of one block.

    Each of two nodes holds its own blocks, those received, and those sent until their visit is
    reported.
    """
    assert simulated("a", 4, 2, "ring").most_blocks == 4 + 1
    assert 2 <= simulated("ab", 4, 2, "ring").most_blocks <= 5


@pytest.mark.parametrize("order", ORDERS)
def test_a_slow_worker_delays_a_sweep_by_its_work(order):
    """A sweep ends only when the slowest worker has computed its blocks, in all orders."""
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


def test_the_study_of_one_node_equals_manual_calculation():
    """Two sweeps of two blocks over one shard on four threads; the driver handles four visits."""
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


def test_twice_the_nodes_halve_the_cell_time_and_crossings_are_found():
    plans = [scaling.Plan(nodes, 1, 1, 2, gbit=0.001) for nodes in (4, 8)]
    few, many = (scaling.simulate(PROBLEM, RATES, plan) for plan in plans)
    assert few["cell_seconds"] == pytest.approx(2 * many["cell_seconds"])
    # Each node sends all blocks twice.
    assert few["sent_by_a_node_gb"] == pytest.approx(many["sent_by_a_node_gb"], rel=0.15)
    (nodes,) = scaling.crossings(PROBLEM, RATES, 1, [0.001]).values()
    cells = 1000 * 400 * (20 * 4e-6 + 3e-5)
    assert nodes == pytest.approx(cells / (2 * 500 * 400 * 4 * 8 / 1e6))


def test_a_slow_node_costs_all_orders_the_same_without_moving_shards():
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
    # The nodes are slow in turns: in lockstep, blocks would move between neighbours only.
    base = scaling.Plan(nodes=4, workers=4, threads=4, blocks=2, gbit=100.0, slow="turns")
    anywhere, by_node = (
        scaling.simulate(PROBLEM, RATES, base._replace(order=order))
        for order in ("uniform", "uniform by node")
    )
    assert by_node["sent_gb"] < 0.5 * anywhere["sent_gb"]


def test_rates_are_measured_with_the_solver(monkeypatch):
    monkeypatch.setattr(
        scaling, "PROBE", {"rows": 60, "features": 300, "labels": 32, "nonzeros": (5, 50)}
    )
    rates = scaling.measured(repeats=3)
    assert all(rates.cells(PROBLEM, verb) > 0.0 for verb in scaling.VERBS)
    assert rates.copy > 0.0
