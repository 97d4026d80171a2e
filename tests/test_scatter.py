"""Scatter: decisions only, driven by hand and by a simulated clock."""

from __future__ import annotations

import heapq
import json
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcray.schedule.messages import Done, Finish, Joined, Lost, Run
from xcray.schedule.scatter import Scatter


def runs(commands):
    """The tasks among commands, by worker."""
    return [(c.worker, c.task.labels) for c in commands if isinstance(c, Run)]


def simulate(costs, speeds, **options):
    """Workers with `speeds` in cost units a second, on a virtual clock: (makespan, order of starts, labels solved)."""
    schedule = Scatter(range(len(costs)), costs, workers=len(speeds), **options)
    costs = np.asarray(costs)
    clock, queue, backlog = 0.0, [], {f"w{n}": [] for n in range(len(speeds))}
    speed = {f"w{n}": s for n, s in enumerate(speeds)}
    solved, finished = [], False

    def begin(worker):
        task = backlog[worker][0]
        seconds = costs[list(task.labels)].sum() / speed[worker]
        heapq.heappush(queue, (clock + seconds, worker, task.id, seconds))

    def take(commands):
        nonlocal finished
        for c in commands:
            if isinstance(c, Finish):
                assert c.reason is None
                finished = True
            else:
                backlog[c.worker].append(c.task)
                solved.extend(c.task.labels)
                if len(backlog[c.worker]) == 1:
                    begin(c.worker)

    for worker in backlog:
        take(schedule.on(Joined(worker)))
    while queue:
        clock, worker, task_id, seconds = heapq.heappop(queue)
        backlog[worker].pop(0)
        if backlog[worker]:
            begin(worker)
        take(schedule.on(Done(worker, task_id, seconds)))
    assert finished
    return clock, solved


def test_dearest_first_ties_by_label():
    schedule = Scatter([4, 5, 6, 7], [1.0, 9.0, 1.0, 3.0], depth=1)
    assert runs(schedule.on(Joined("a"))) == [("a", (5,))]
    assert runs(schedule.on(Done("a", 0, 9.0))) == [("a", (7,))]
    assert runs(schedule.on(Done("a", 1, 3.0))) == [("a", (4,))]
    assert runs(schedule.on(Done("a", 2, 1.0))) == [("a", (6,))]
    assert schedule.on(Done("a", 3, 1.0)) == [Finish()]
    assert schedule.done_labels == schedule.total_labels == 4


def test_a_worker_holds_two_batches_while_plenty_is_left_and_one_in_the_tail():
    schedule = Scatter(range(100), [1.0] * 100, batch_seconds=1.0, rate=1.0)
    assert len(runs(schedule.on(Joined("a")))) == 1
    held = [len(runs(schedule.on(Done("a", 0, 1.0))))]
    held += [len(runs(schedule.on(Done("a", task_id, 1.0)))) for task_id in range(1, 100)]
    assert held[0] == 2
    assert set(held[1:90]) == {1}
    assert held[-6:].count(0) >= 1


def test_batches_grow_with_the_measured_rate_and_end_in_single_labels():
    costs = [1.0] * 1000
    schedule = Scatter(range(1000), costs, batch_seconds=1.0, rate=50.0)
    sizes, pending = [], schedule.on(Joined("a"))
    while not isinstance(command := pending.pop(0), Finish):
        sizes.append(len(command.task.labels))
        pending += schedule.on(Done("a", command.task.id, len(command.task.labels) / 100.0))
    assert sizes[0] == 50
    assert max(sizes) > 80
    assert sizes[-1] == 1
    assert sum(sizes) == 1000


def test_a_lost_workers_batches_run_again_first():
    schedule = Scatter(range(6), [6, 5, 4, 3, 2, 1], depth=1)
    schedule.on(Joined("a"))
    assert runs(schedule.on(Joined("b"))) == [("b", (1,))]
    assert schedule.on(Lost("a")) == []
    again = schedule.on(Done("b", 1, 1.0))
    assert runs(again) == [("b", (0,))]
    assert again[0].task.attempt == 2
    assert not schedule.expects("a", 0)
    assert schedule.on(Done("a", 0, 1.0)) == []  # a result from the dead changes nothing


def test_a_batch_that_loses_three_workers_fails():
    schedule = Scatter([0], [1.0])
    for worker in "abc":
        schedule.on(Joined(worker))
        last = schedule.on(Lost(worker))
    assert "3 workers were lost on the batch of labels 0..0" in last[0].reason


def test_unknown_workers_and_late_joins():
    schedule = Scatter([0], [1.0])
    assert schedule.on(Lost("nobody")) == []
    schedule.on(Joined("a"))
    assert schedule.on(Joined("b")) == []
    assert runs(schedule.on(Lost("a"))) == [("b", (0,))]  # b, which was idle, has it at once
    assert schedule.on(Joined("c")) == []


def test_nothing_to_do_finishes():
    assert Scatter([], []).on(Joined("a")) == [Finish()]


def test_state_is_json_and_restores_what_is_left():
    schedule = Scatter(range(8), range(8), rate=3.0)
    first = schedule.on(Joined("a"))
    schedule.on(Done("a", first[0].task.id, 1.0))
    state = json.loads(json.dumps(schedule.state()))
    assert sorted(state["labels"]) == sorted(set(range(8)) - set(first[0].task.labels))
    again = Scatter.restore(state)
    assert again.total_labels == 8 - len(first[0].task.labels)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=60), st.integers(1, 5), st.integers(0, 2**32))
def test_every_label_once_whatever_happens(costs, n_workers, seed):
    """Random joins, losses and completions: every label ends done exactly once, none is in two places."""
    random = Random(seed)
    schedule = Scatter(range(len(costs)), costs, max_attempts=10_000)
    held, done, name = {}, [], 0
    commands = []
    for _ in range(n_workers):
        held[f"w{name}"] = []
        commands += schedule.on(Joined(f"w{name}"))
        name += 1
    while not (commands and isinstance(commands[-1], Finish)):
        for c in commands:
            held[c.worker].append(c.task)
        flat = [label for tasks in held.values() for t in tasks for label in t.labels]
        assert len(flat) == len(set(flat))
        assert not set(flat) & set(done)
        worker = random.choice(sorted(w for w in held if held[w]) or sorted(held))
        if random.random() < 0.15 or not held[worker]:
            del held[worker]
            commands = schedule.on(Lost(worker))
            held[f"w{name}"] = []
            commands += schedule.on(Joined(f"w{name}"))
            name += 1
        else:
            task = held[worker].pop(random.randrange(len(held[worker])))
            done += task.labels
            commands = schedule.on(Done(worker, task.id, random.random()))
    assert sorted(done) == list(range(len(costs)))


@pytest.mark.parametrize("n_workers", [1, 2, 8, 64])
def test_makespan_is_near_ideal_on_power_law_costs(n_workers):
    costs = 1e6 / np.arange(1, 20_001) ** 0.9
    makespan, solved = simulate(costs, [1e7] * n_workers, rate=1e7)
    ideal = max(costs.sum() / 1e7 / n_workers, costs.max() / 1e7)
    assert sorted(solved) == list(range(20_000))
    assert makespan <= 1.05 * ideal


def test_one_slow_worker_does_not_hold_the_others():
    costs = 1e6 / np.arange(1, 20_001) ** 0.9
    speeds = [1e7] * 7 + [2.5e6]
    makespan, _ = simulate(costs, speeds, rate=1e7)
    assert makespan <= 1.1 * costs.sum() / sum(speeds)
