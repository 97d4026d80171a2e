"""RotationSchedule: passes run in any order that workers allow, compared with nested loops."""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcray.schedule.nomad import Nomad
from xcray.schedule.rotation import ORDERS, RotationSchedule


class World:
    """Simulated workers that run their passes in order; each pass ends at any time.

    Shards and blocks hold numbers that depend on the order in which they meet. All events are
    recorded.
    """

    def __init__(self, homes, blocks, sweeps, *, ahead=2, **options):
        self.homes = homes
        self.blocks = blocks
        self.sweeps = sweeps
        self.ahead = ahead
        self.schedule = RotationSchedule(homes, blocks, sweeps, max_in_flight=ahead, **options)
        self.is_free = options.get("order") in ("uniform", "shortest") and not options.get("nodes")
        self.queues = {worker: deque() for worker in homes}
        self.by_shard = [[] for _ in homes]
        self.by_block = [[] for _ in range(blocks)]  # (partner, sweep), in order
        self.shard_values, self.block_values = start(len(homes), blocks)
        self.issued = []
        self.obey(self.schedule.start())

    @property
    def finished(self):
        return self.schedule.done_cells == self.schedule.total_cells

    def obey(self, commands):
        """Queue passes, and check each of them."""
        for command in commands:
            assert not any(
                command.block == other.block for queue in self.queues.values() for other in queue
            )
            assert {self.homes[shard] for shard in command.shards} == {command.worker}
            assert all(a + 1 == b for a, b in pairwise(command.shards))
            self.queues[command.worker].append(command)
            self.issued.append(command)
            assert len(self.queues[command.worker]) <= self.ahead
        if self.is_free:
            self.check_waits()

    def check_waits(self):
        """Check that no block waits for a worker that has room, in the sweep of both."""
        running = {visit.block for visit in self.running()}
        taken = Counter(visit.worker for visit in self.issued)
        passed = Counter(visit.block for visit in self.issued)
        pairs = {(visit.worker, visit.block, visit.sweep) for visit in self.issued}
        for worker in (worker for worker, queue in self.queues.items() if len(queue) < self.ahead):
            sweep = taken[worker] // self.blocks
            for block in set(range(self.blocks)) - running:
                same = sweep == passed[block] // len(self.queues) < self.sweeps
                assert not same or (worker, block, sweep) in pairs

    def running(self):
        """Return the passes that were issued and are not done, by worker."""
        return [visit for queue in self.queues.values() for visit in queue]

    def run_one(self, worker):
        """Finish the oldest pass of a worker, and check each cell against all earlier ones."""
        visit = self.queues[worker].popleft()
        for shard in visit.shards:
            # All blocks have passed the shard in the sweeps before.
            assert len(self.by_shard[shard]) // self.blocks == visit.sweep
            assert len(self.by_block[visit.block]) // len(self.homes) == visit.sweep
            assert (visit.block, visit.sweep) not in self.by_shard[shard]
            self.by_shard[shard].append((visit.block, visit.sweep))
            self.by_block[visit.block].append((shard, visit.sweep))
            meet(self.shard_values, self.block_values, shard, visit.block)
        self.obey(self.schedule.complete(worker, visit.id))
        return visit

    def run(self, choose):
        """Run to the end; `choose` selects the next of the busy workers."""
        while not self.finished:
            busy = [worker for worker, queue in self.queues.items() if queue]
            assert busy, "nobody works, and not all is done"
            self.run_one(choose(busy))
        assert not any(self.queues.values())
        every = sorted(
            (block, sweep) for block in range(self.blocks) for sweep in range(self.sweeps)
        )
        assert all(sorted(met) == every for met in self.by_shard)
        assert (
            self.schedule.done_cells
            == self.schedule.total_cells
            == len(self.homes) * self.blocks * self.sweeps
        )
        return self


def start(shards, blocks):
    """Return the initial numbers of shards and of blocks."""
    return [1.0 + 0.1 * shard for shard in range(shards)], [
        2.0 + 0.3 * block for block in range(blocks)
    ]


def meet(shard_values, block_values, shard, block):
    """Compute one cell: change the numbers of a shard and of a block.

    Two cells of one shard or of one block give other bits in the other order.
    """
    old = shard_values[shard]
    shard_values[shard] = (0.7 * old + 1.1 * block_values[block]) % 3.0
    block_values[block] = (0.9 * block_values[block] + 1.3 * old) % 5.0


def nested_loops(shards, blocks, sweeps):
    """Run ring and sync as nested loops over sweeps, steps and blocks.

    Returns the partners of each shard and of each block, and their final numbers.
    """
    by_shard, by_block = [[] for _ in range(shards)], [[] for _ in range(blocks)]
    shard_values, block_values = start(shards, blocks)
    for sweep in range(sweeps):
        for step in range(shards):
            for block in range(blocks):
                shard = (block * shards // blocks + step) % shards
                by_shard[shard].append((block, sweep))
                by_block[block].append((shard, sweep))
                meet(shard_values, block_values, shard, block)
    return by_shard, by_block, shard_values, block_values


def homes_of(shards, workers, random=None):
    """Return consecutive shards for each worker, in equal numbers or with random cuts."""
    cuts = [shards * w // workers for w in range(workers + 1)]
    if random is not None:
        cuts = [0, *sorted(random.sample(range(1, shards), workers - 1)), shards]
    return [f"w{w}" for w in range(workers) for _ in range(cuts[w], cuts[w + 1])]


@st.composite
def grids(draw):
    """Draw a small grid on workers and nodes, and a generator for all other choices."""
    random = Random(draw(st.integers(0, 2**32)))
    shards = draw(st.integers(1, 9))
    workers = draw(st.integers(1, shards))
    homes = homes_of(shards, workers, random)
    n_nodes = draw(st.integers(0, 3))
    nodes = {f"w{w}": f"n{random.randrange(n_nodes)}" for w in range(workers)} if n_nodes else None
    shape = {
        "blocks": draw(st.integers(1, 12)),
        "sweeps": draw(st.integers(1, 3)),
        "ahead": draw(st.integers(1, 3)),
    }
    return homes, {**shape, "nodes": nodes, "seed": draw(st.integers(0, 99))}, random


def any_worker(random):
    """Return a random choice among busy workers, in which some workers are rare."""
    weight = {}
    return lambda busy: random.choices(
        busy, [weight.setdefault(w, random.choice([0.01, 1.0, 1.0])) for w in busy]
    )[0]


@settings(max_examples=120, deadline=None)
@given(grids(), st.sampled_from(ORDERS))
def test_every_cell_is_passed_once_per_sweep_in_any_order_of_events(grid, order):
    """World asserts the invariants at every event, and the schedule always ends."""
    homes, options, random = grid
    World(homes, order=order, **options).run(any_worker(random))


@settings(max_examples=80, deadline=None)
@given(grids(), st.sampled_from(["ring", "sync"]))
def test_ring_and_sync_are_the_nested_loops_to_the_bit(grid, order):
    homes, options, random = grid
    world = World(homes, order=order, **options).run(any_worker(random))
    by_shard, by_block, shard_values, block_values = nested_loops(
        len(homes), options["blocks"], options["sweeps"]
    )
    assert world.by_shard == by_shard
    assert world.by_block == by_block
    assert (world.shard_values, world.block_values) == (shard_values, block_values)


def test_the_simulated_numbers_depend_on_the_order():
    homes = homes_of(4, 4)
    ends = {
        repr(World(homes, 5, 2, order="uniform", seed=seed).run(Random(seed).choice).shard_values)
        for seed in range(6)
    }
    assert len(ends) == 6


@settings(max_examples=60, deadline=None)
@given(grids())
def test_sync_issues_no_step_before_all_have_made_the_one_before(grid):
    homes, options, random = grid
    world, n, blocks = World(homes, order="sync", **options), len(homes), options["blocks"]
    choose = any_worker(random)
    while not world.finished:
        for queue in world.queues.values():
            for visit in queue:
                assert len(visit.shards) == 1
                step = len(world.by_block[visit.block])
                assert sum(map(len, world.by_block)) // blocks == step
                assert visit.sweep == step // n
        world.run_one(choose([worker for worker, queue in world.queues.items() if queue]))


def test_ring_goes_on_past_a_worker_that_is_late():
    """While w3 does nothing, the other three workers pass all blocks that do not need it.

    Each worker starts with two blocks.
    """
    world = World(homes_of(4, 4), 8, 1, order="ring")
    while busy := [worker for worker, queue in world.queues.items() if queue and worker != "w3"]:
        world.run_one(busy[0])
    met = [len(each) for each in world.by_shard]
    # Each worker passes its own two blocks and those of the workers between w3 and it.
    assert met == [
        2 * 1,
        2 * 2,
        2 * 3,
        0,
    ]
    sync = World(homes_of(4, 4), 8, 1, order="sync")
    while busy := [worker for worker, queue in sync.queues.items() if queue and worker != "w3"]:
        sync.run_one(busy[0])
    assert [len(each) for each in sync.by_shard] == [2, 2, 2, 0]


def test_blocks_do_not_queue_up_at_a_slow_worker():
    """No worker holds more than 3 x 4 + 2 of 32 blocks, though w5 only works if all others wait.

    The share of each of the eight workers is 4 blocks. Blocks that have left a worker and have not
    yet passed the next one count as held.
    """
    world, most = World(homes_of(8, 8), 32, 3, order="ring"), Counter()
    while not world.finished:
        busy = [worker for worker, queue in world.queues.items() if queue]
        world.run_one(next((worker for worker in reversed(busy) if worker != "w5"), "w5"))
        last = Counter(f"w{met[-1][0]}" for met in world.by_block if met)
        most |= last + Counter(visit.worker for visit in world.running())
    assert max(most.values()) == most["w4"] == 3 * 4 + 2
    assert world.by_shard == nested_loops(8, 32, 3)[0]


def test_a_pass_covers_the_shards_of_a_worker():
    """A block passes all four shards of a worker at once, except the blocks that start there."""
    world = World(homes_of(16, 4), 16, 3, order="ring").run(lambda busy: busy[0])
    lengths = Counter(len(visit.shards) for visit in world.issued if visit.sweep == 1)
    assert lengths[4] >= 3 * 16
    assert sum(lengths.values()) <= 5 * 16


@settings(max_examples=80, deadline=None)
@given(grids(), st.sampled_from(["uniform", "shortest"]))
def test_with_nodes_a_block_passes_all_workers_of_a_node_before_the_next(grid, order):
    homes, options, random = grid
    world = World(homes, order=order, **options).run(any_worker(random))
    node = (lambda worker: options["nodes"][worker]) if options["nodes"] else (lambda worker: "all")
    for block in range(options["blocks"]):
        for sweep in range(options["sweeps"]):
            tour = [node(v.worker) for v in world.issued if (v.block, v.sweep) == (block, sweep)]
            moves = 1 + sum(a != b for a, b in pairwise(tour))
            assert moves == len(set(tour)) == len({node(worker) for worker in homes})


def test_tours_of_a_node_are_in_random_order():
    """Over 200 blocks, all six orders of three workers occur, and none in half of the cases."""
    nodes = {"w0": "a", "w1": "a", "w2": "a", "w3": "b"}
    world = World(homes_of(4, 4), 200, 1, order="uniform", nodes=nodes).run(Random(1).choice)
    tours = Counter(tuple(shard for shard, _ in met if shard != 3) for met in world.by_block)
    assert len(tours) == 6
    assert max(tours.values()) < 100


def test_without_free_workers_a_block_waits_for_the_first_free_one():
    schedule = RotationSchedule(homes_of(2, 2), 5, 1, order="uniform", max_in_flight=1)
    first = schedule.start()
    assert sorted(visit.worker for visit in first) == ["w0", "w1"]
    (second,) = schedule.complete("w0", first[0].id)
    # w0 gets a block that waited, and the finished block waits for w1.
    assert second.worker == "w0"
    (third,) = schedule.complete("w1", first[1].id)
    assert third.worker == "w1"
    assert third.block not in {first[1].block, second.block}


def test_full_queues_are_skipped_and_the_shortest_is_preferred():
    """Six workers have room for three passes each and loads of 3 (full), 2, 1, 1, 2 and 1.

    The block has just passed w5.
    """
    goals = {}
    for shortest in (False, True):
        counts = Counter()
        for seed in range(300):
            nomad = Nomad(
                homes_of(6, 6), 20, 1, max_in_flight=3, shortest=shortest, seed=seed, nodes=None
            )
            selection = [
                nomad.next_pass(f"w{w}", 0)
                for w, load in enumerate([3, 2, 1, 1, 2, 1])
                for _ in range(load)
            ]
            counts[nomad.complete_pass(selection[-1])[0]] += 1
        goals[shortest] = counts
    assert set(goals[True]) == {"w2", "w3"}
    assert set(goals[False]) == {"w1", "w2", "w3", "w4"}
    assert all(45 <= count <= 110 for count in goals[False].values())  # 75 each on average
    assert all(110 <= count <= 190 for count in goals[True].values())


@pytest.mark.parametrize("order", ["uniform", "shortest"])
def test_the_same_seed_and_events_give_the_same_passes(order):
    def issued(seed):
        return World(homes_of(5, 5), 9, 2, order=order, seed=seed).run(Random(3).choice).issued

    assert issued(7) == issued(7)
    assert issued(7) != issued(8)


def test_workers_are_busy_while_blocks_are_available():
    """With equal workers, a sweep takes little more than blocks x shards / workers rounds."""
    world = World(homes_of(8, 8), 32, 1, order="shortest")
    rounds = 0
    while not world.finished:
        for worker in [worker for worker, queue in world.queues.items() if queue]:
            if not world.finished:
                world.run_one(worker)
        rounds += 1
    assert 32 <= rounds <= 40


@pytest.mark.parametrize("order", ORDERS)
def test_unknown_events_change_nothing(order):
    world = World(homes_of(4, 2), 4, 1, order=order)
    schedule, visit = world.schedule, world.running()[0]
    other = "w1" if visit.worker == "w0" else "w0"
    assert schedule.complete("nobody", visit.id) == []
    assert schedule.complete(other, visit.id) == []
    assert schedule.complete(visit.worker, 999) == []
    assert schedule.done_cells == 0
    world.run(lambda busy: busy[-1])
    assert schedule.complete(visit.worker, visit.id) == []  # reported twice


def test_no_sweeps_are_over_before_they_begin():
    schedule = RotationSchedule(["a"], 3, 0)
    assert schedule.start() == []
    assert schedule.complete("a", 0) == []
