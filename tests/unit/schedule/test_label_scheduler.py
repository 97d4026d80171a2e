"""LabelScheduler: pure decisions, tested by hand and on a simulated clock."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster.simulation import Outcome, Simulation, heavy_tailed
from xcray.schedule.events import (
    Cancel,
    Cancelled,
    Done,
    Drain,
    Finish,
    Joined,
    Left,
    Lost,
    Run,
    Tick,
)
from xcray.schedule.label_scheduler import LabelScheduler

POWER_LAW = 0.1 / np.arange(1, 20_001) ** 0.9  # seconds


def runs(commands):
    """Return the worker and the labels of each task among the commands."""
    return [(c.worker, c.task.labels) for c in commands if isinstance(c, Run)]


def simulated(cost, speeds, *, guess=None, ends=(), joins=None, overhead=0.0, **options) -> Outcome:
    """Simulate workers of `speeds`, or as `joins` says, with `guess` as the estimated costs.

    By default the estimate is exact.
    """
    joins = joins or {f"w{n}": (0.0, speed) for n, speed in enumerate(speeds)}
    schedule = LabelScheduler(
        range(len(cost)), cost if guess is None else guess, workers=len(joins), **options
    )
    outcome = Simulation(schedule, cost, overhead).run(joins, ends)
    assert sorted(outcome.committed) == list(range(len(cost)))
    return outcome


def test_most_expensive_labels_first_ties_as_given():
    schedule = LabelScheduler([4, 5, 6, 7], [1.0, 9.0, 1.0, 3.0], depth=1)
    assert runs(schedule.on(Joined("a"))) == [("a", (5,))]
    assert runs(schedule.on(Done("a", 0, 9.0))) == [("a", (7,))]
    assert runs(schedule.on(Done("a", 1, 3.0))) == [("a", (4,))]
    assert runs(schedule.on(Done("a", 2, 1.0))) == [("a", (6,))]
    assert schedule.on(Done("a", 3, 1.0)) == [Finish()]
    assert schedule.done_labels == schedule.total_labels == 4
    assert schedule.done_cost == schedule.total_cost


def test_with_values_the_most_valuable_go_first_whatever_they_cost():
    schedule = LabelScheduler(
        [4, 5, 6, 7], [1.0, 9.0, 1.0, 3.0], values=[2.0, 1.0, 3.0, 2.0], depth=1
    )
    inputs, pending = [], schedule.on(Joined("a"))
    while not isinstance(command := pending.pop(0), Finish):
        inputs += command.task.labels
        pending += schedule.on(Done("a", command.task.id, 5.0))
    assert inputs == [6, 7, 4, 5]  # of equal value, the more expensive first


def test_a_worker_holds_two_batches_while_plenty_is_left_and_one_in_the_tail():
    schedule = LabelScheduler(range(400), [1.0] * 400, batch_seconds=1.0)
    assert len(runs(schedule.on(Joined("a")))) == 1
    items = [len(runs(schedule.on(Done("a", task_id, 1.0)))) for task_id in range(400)]
    assert items[0] == 2
    assert set(items[1:390]) == {1}
    assert items[-6:].count(0) >= 1


def test_batches_grow_with_the_measured_rate_and_end_in_single_labels():
    schedule = LabelScheduler(range(1000), [0.02] * 1000, batch_seconds=1.0)
    sizes, pending = [], schedule.on(Joined("a"))
    while not isinstance(command := pending.pop(0), Finish):
        sizes.append(len(command.task.labels))
        pending += schedule.on(Done("a", command.task.id, len(command.task.labels) / 100.0))
    assert sizes[0] == 12  # a quarter of the estimated size, until a batch is measured
    assert max(sizes) > 80
    assert sizes[-1] <= 2
    assert sum(sizes) == 1000


def test_batches_of_cheap_labels_have_a_minimum_size():
    outcome = simulated(np.full(50_000, 1e-3), [1.0] * 4)
    assert len(outcome.batches) < 4 * 50 + 200  # four times 12.5 s in batches of 0.25 s, and a tail
    assert outcome.makespan <= 1.01 * 50.0 / 4


@pytest.mark.parametrize(
    ("workers", "seconds", "valued"),
    [
        (1, 4.0, 0.25),
        (10, 2.0, 0.25),
        (64, 0.64, 0.64),
        (200, 2.0, 1.0),
        (1000, 2.5, 1.0),
    ],
)
@pytest.mark.parametrize("by_value", [False, True])
def test_much_work_and_many_workers_get_longer_batches(workers, seconds, valued, by_value):
    n = 100_000
    values, seconds = (np.arange(n), valued) if by_value else (None, seconds)
    schedule = LabelScheduler(range(n), np.full(n, 0.1), workers=workers, depth=1, values=values)
    first = schedule.on(Joined("a"))[0].task
    task = schedule.on(Done("a", 0, first.cost))[0].task
    assert task.cost == pytest.approx(seconds, abs=0.11)


def test_a_lost_workers_batches_run_again_first():
    schedule = LabelScheduler(range(6), [6, 5, 4, 3, 2, 1], depth=1)
    schedule.on(Joined("a"))
    assert runs(schedule.on(Joined("b"))) == [("b", (1,))]
    assert schedule.on(Lost("a")) == []
    again = schedule.on(Done("b", 1, 1.0))
    assert runs(again) == [("b", (0,))]
    assert again[0].task.attempt == 2
    assert not schedule.is_expected("a", 0)
    assert schedule.on(Done("a", 0, 1.0)) == []  # a result of a lost worker has no effect


def test_a_batch_that_loses_three_workers_fails():
    schedule = LabelScheduler([0], [1.0])
    for worker in "abc":
        schedule.on(Joined(worker))
        last = schedule.on(Lost(worker))
    assert "3 workers were lost on the batch of labels 0..0" in last[0].reason


def test_a_loss_counts_only_for_the_running_batch():
    schedule = LabelScheduler(range(400), [1.0] * 400, batch_seconds=1.0, max_attempts=2)
    schedule.on(Joined("a"))
    assert len(runs(schedule.on(Done("a", 0, 1.0)))) == 2  # 1 is running, 2 waits
    schedule.on(Joined("b"))
    schedule.on(Lost("a"))
    values = [
        c.task.id
        for done in (3, 4, 1)
        for c in schedule.on(Done("b", done, 1.0))
        if isinstance(c, Run)
    ]
    assert values == [1, 2, 5]
    # 2 was running; this is its first loss.
    assert not any(isinstance(c, Finish) for c in schedule.on(Lost("b")))


def test_a_worker_that_left_counts_as_no_failure():
    schedule = LabelScheduler([0], [1.0], max_attempts=1)
    for worker in "abcd":
        assert runs(schedule.on(Joined(worker))) == [(worker, (0,))]
        assert schedule.on(Left(worker)) == []


def test_unknown_workers_and_late_joins():
    schedule = LabelScheduler([0], [1.0])
    assert schedule.on(Lost("nobody")) == []
    assert schedule.on(Left("nobody")) == []
    assert schedule.on(Cancelled("nobody", 0)) == []
    schedule.on(Joined("a"))
    assert schedule.on(Joined("a")) == []
    assert schedule.on(Joined("b")) == []
    assert runs(schedule.on(Lost("a"))) == [("b", (0,))]  # idle b gets it at once
    assert schedule.on(Joined("c")) == []


def test_nothing_to_do_finishes():
    assert LabelScheduler([], []).on(Joined("a")) == [Finish()]


def test_drain_assigns_no_task_and_waits_for_those_in_flight():
    schedule = LabelScheduler(range(6), [6, 5, 4, 3, 2, 1], depth=1)
    schedule.on(Joined("a"))
    schedule.on(Joined("b"))
    assert schedule.on(Drain()) == []
    assert schedule.on(Done("a", 0, 6.0)) == []
    assert schedule.on(Joined("c")) == []
    assert schedule.on(Lost("b")) == [Finish()]  # its batch stays unfinished
    assert schedule.done_labels == 1


def slow_task():
    """Return a schedule in which b is late with its second task while a is idle.

    At first b is as fast as a, and a has finished all other tasks.
    """
    schedule = LabelScheduler(range(4), [1.0] * 4, depth=1)
    schedule.on(Joined("a"), 0.0)
    schedule.on(Joined("b"), 0.0)
    schedule.on(Done("a", 0, 1.0), 1.0)
    schedule.on(Done("b", 1, 1.0), 1.0)
    assert schedule.on(Done("a", 2, 1.0), 2.0) == []
    return schedule


def test_a_task_that_is_late_is_copied_once_and_the_first_result_counts():
    schedule = slow_task()
    assert schedule.on(Tick(), 2.9) == []
    copy = schedule.on(Tick(), 3.2)  # more than twice its expected time
    assert runs(copy) == [("a", (3,))]
    assert (copy[0].task.id, copy[0].task.attempt) == (3, 2)
    schedule.on(Joined("c"), 3.3)
    assert schedule.on(Tick(), 9.0) == []  # one copy is enough
    assert schedule.is_expected("a", 3)
    assert schedule.is_expected("b", 3)
    assert schedule.on(Done("a", 3, 1.0), 9.1) == [Cancel("b", 3), Finish()]
    assert not schedule.is_expected("b", 3)
    assert schedule.done_labels == 4


def test_the_fastest_idle_worker_copies_a_late_task():
    schedule = LabelScheduler(range(6), [1.0] * 6, depth=1)
    for worker in "abc":
        schedule.on(Joined(worker), 0.0)
    for task, end in ((2, 0.5), (3, 1.0), (4, 1.5)):
        schedule.on(Done("c", task, 0.5), end)
    assert schedule.on(Done("a", 0, 2.0), 2.0) == []  # a took four times as long as c
    assert runs(schedule.on(Done("c", 5, 0.5), 2.05)) == [("c", (1,))]  # b is late with it


def test_a_copy_of_a_lost_worker_costs_nothing_and_can_be_repeated():
    schedule = slow_task()
    schedule.on(Tick(), 3.2)
    assert schedule.on(Lost("a"), 3.3) == []
    assert runs(schedule.on(Joined("c"), 3.4)) == [("c", (3,))]
    assert schedule.on(Lost("b"), 4.1) == []  # the copy counts as the original now
    assert schedule.on(Done("c", 3, 1.0), 5.0) == [Finish()]


def test_a_cancelled_worker_is_free_when_it_reports():
    schedule = LabelScheduler(range(5), [1.0, 1.0, 1.0, 1.0, 10.0], depth=1)
    values = [runs(schedule.on(Joined(worker), 0.0)) for worker in "abc"]
    assert values == [[("a", (4,))], [("b", (0,))], [("c", (1,))]]
    assert runs(schedule.on(Done("b", 1, 1.0), 1.0)) == [("b", (2,))]
    assert runs(schedule.on(Done("b", 3, 1.0), 2.0)) == [("b", (3,))]
    assert runs(schedule.on(Done("b", 4, 1.0), 3.0)) == [("b", (1,))]  # a copy, because c is late
    assert schedule.on(Done("b", 2, 1.0), 4.0) == [Cancel("c", 2)]
    assert schedule.on(Joined("c"), 4.1) == []  # no effect: c still works on it
    # The result of c crosses the cancellation, so it comes too late, and c is idle.
    assert schedule.on(Done("c", 2, 4.2), 4.2) == []
    assert schedule.done_labels == 4
    assert runs(schedule.on(Lost("b"), 4.3)) == []
    assert runs(schedule.on(Lost("a"), 4.3)) == [("c", (4,))]
    assert schedule.on(Done("c", 0, 1.0), 14.4) == [Finish()]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=60),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_every_label_is_solved_once_under_random_events(costs, n_workers, by_value, seed):
    """Every label is done exactly once under random joins, losses and cancellations.

    No batch is in more than two places, and while labels are left, a worker solves some of them.
    """
    random, done, names = Random(seed), [], iter(range(10**9))
    values = [random.random() for _ in costs] if by_value else None
    schedule = LabelScheduler(
        range(len(costs)), costs, values=values, max_attempts=10**9, workers=random.randint(1, 8)
    )
    entries, off, now, commands = {}, set(), 0.0, []

    def join():
        name = f"w{next(names)}"
        entries[name] = {}
        return schedule.on(Joined(name), now)

    for _ in range(n_workers):
        commands += join()
    while not any(isinstance(c, Finish) for c in commands):
        for c in commands:
            if isinstance(c, Run):
                if c.worker in entries:
                    assert c.task.id not in entries[c.worker]
                    entries[c.worker][c.task.id] = c.task
            else:
                off.add((c.worker, c.task_id))
        expected = [
            label
            for w in entries
            for t in entries[w].values()
            if schedule.is_expected(w, t.id)
            for label in t.labels
        ]
        assert all(expected.count(label) <= 2 for label in expected)
        assert not set(expected) & set(done)
        assert expected, "labels and workers are left, and no worker is busy"
        now += random.random() * 3
        worker, fate = random.choice(sorted(entries)), random.random()
        if fate < 0.1:
            del entries[worker]
            commands = schedule.on(random.choice([Lost, Left])(worker), now) + (
                join() if not entries or fate < 0.07 else []
            )
        elif fate < 0.15:
            commands = join()
        elif fate < 0.2:
            commands = schedule.on(Tick(), now)
        elif entries[worker]:
            task = entries[worker].pop(random.choice(sorted(entries[worker])))
            if (worker, task.id) in off and random.random() < 0.5:
                commands = schedule.on(Cancelled(worker, task.id), now)
            else:
                done += task.labels if schedule.is_expected(worker, task.id) else ()
                commands = schedule.on(Done(worker, task.id, random.random()), now)
        else:
            commands = []
    assert sorted(done) == list(range(len(costs)))
    assert schedule.done_labels == schedule.total_labels


@pytest.mark.parametrize("n_workers", [1, 2, 8, 64])
def test_makespan_is_near_ideal_on_power_law_costs(n_workers):
    outcome = simulated(POWER_LAW, [1.0] * n_workers)
    assert outcome.makespan <= 1.05 * max(POWER_LAW.sum() / n_workers, POWER_LAW.max())


@pytest.mark.parametrize("seed", range(3))
def test_makespan_is_near_ideal_when_costs_are_guessed(seed):
    """The estimate is three times too high overall, and off by a factor of e^0.4 per label."""
    rng = np.random.default_rng(seed)
    cost = heavy_tailed(20_000, seed)
    outcome = simulated(
        cost, [1.0] * 8, guess=3.0 * cost * np.exp(0.4 * rng.normal(size=len(cost))), overhead=1e-3
    )
    assert outcome.makespan <= 1.05 * cost.sum() / 8


@pytest.mark.parametrize("seed", range(3))
def test_one_slow_worker_does_not_hold_the_others(seed):
    rng = np.random.default_rng(seed)
    cost = heavy_tailed(20_000, seed)
    speeds = [1.0] * 7 + [0.25]
    outcome = simulated(
        cost, speeds, guess=cost * np.exp(0.4 * rng.normal(size=len(cost))), overhead=1e-3
    )
    assert outcome.makespan <= 1.1 * cost.sum() / sum(speeds)


def test_a_worker_four_times_slower_gets_smaller_batches():
    schedule = LabelScheduler(range(10_000), [0.01] * 10_000, batch_seconds=1.0, depth=1, workers=2)
    sizes = {"fast": [], "slow": []}
    tasks = {c.worker: c.task for name in sizes for c in schedule.on(Joined(name))}
    for turn in range(40):
        name = "slow" if turn % 5 == 4 else "fast"
        seconds = len(tasks[name].labels) * (0.04 if name == "slow" else 0.01)
        tasks |= {
            c.worker: c.task
            for c in schedule.on(Done(name, tasks[name].id, seconds))
            if isinstance(c, Run)
        }
        sizes[name].append(len(tasks[name].labels))
    assert 3.0 < sizes["fast"][-1] / sizes["slow"][-1] < 5.0


def test_a_very_slow_worker_gets_no_label_that_would_outlast_the_job():
    """One label takes 10 of the job's 40 seconds; at a tenth of the speed it would take 100."""
    cost = np.array([10.0] + [0.01] * 3000)
    outcome = simulated(
        cost,
        [1.0] * 3 + [0.1],
        joins={"slow": (0.5, 0.1), **{f"w{n}": (0.0, 1.0) for n in range(3)}},
    )
    assert outcome.makespan <= 1.1 * cost.sum() / 3.1


def test_workers_come_go_and_die_during_the_job():
    rng = np.random.default_rng(5)
    cost = 3.0 * heavy_tailed(20_000)
    joins = {f"w{n}": (float(rng.uniform(0, 2)), 1.0) for n in range(12)}
    ends = [(float(rng.uniform(2, 4)), f"w{n}", "lost" if n % 2 else "left") for n in range(6)]
    outcome = simulated(cost, [], joins=joins, ends=ends)
    assert len(outcome.lost) == 3
    assert all(seconds <= 0.5 for seconds in outcome.lost)
    assert outcome.wasted <= sum(outcome.lost) + 1.0


def test_the_fit_reorders_the_remaining_labels():
    """Labels from 500 on cost more than the others once their second term is measured.

    The initial estimate of this term is a hundred times too low.
    """
    terms = np.zeros((1000, 2))
    terms[:500, 0], terms[500:, 1] = np.linspace(1.0, 2.0, 500), np.linspace(1.0, 2.0, 500)
    truth = terms @ [0.01, 1.0]
    schedule = LabelScheduler(range(1000), terms, [0.01, 0.01], batch_seconds=0.5)
    inputs, pending = [], schedule.on(Joined("a"))
    while not isinstance(command := pending.pop(0), Finish):
        inputs += command.task.labels
        pending += schedule.on(Done("a", command.task.id, truth[list(command.task.labels)].sum()))
    middle = inputs[100:500]
    assert np.mean(np.array(middle) >= 500) > 0.9


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), float("nan")])
def test_invalid_seconds_are_ignored(wrong):
    schedule = LabelScheduler(range(10), [1.0] * 10, depth=1)
    schedule.on(Joined("a"))
    schedule.on(Done("a", 0, wrong))
    assert schedule.total_cost == 10.0
