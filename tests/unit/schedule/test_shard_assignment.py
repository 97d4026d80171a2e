"""Shard assignment by speed: no cut into consecutive shards is faster, by brute force."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcray.schedule.shard_assignment import assign_by_speed


def slowest(costs, speeds, homes):
    """Return the seconds until the last worker is done."""
    return max(
        sum(cost for cost, home in zip(costs, homes, strict=True) if home == name) / rate
        for name, rate in speeds.items()
    )


def least(costs, speeds):
    """Return the least seconds over all cuts."""
    inner = combinations_with_replacement(range(len(costs) + 1), len(speeds) - 1)
    ways = ([0, *cuts, len(costs)] for cuts in inner)
    rates = list(speeds.values())
    return min(
        max(sum(costs[a:b]) / rate for (a, b), rate in zip(pairwise(cuts), rates, strict=True))
        for cuts in ways
    )


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32))
def test_no_cut_is_better(n_shards, n_workers, seed):
    random = Random(seed)
    costs = [random.choice([1.0, 2.0, 0.0, random.random()]) for _ in range(n_shards)]
    costs[random.randrange(n_shards)] = 1.0
    speeds = {f"w{w}": random.choice([1.0, 0.25, 0.01 + random.random()]) for w in range(n_workers)}
    homes = assign_by_speed(costs, speeds)
    assert len(homes) == n_shards
    # Consecutive, in the order of `speeds`.
    assert [name for name in speeds if name in homes] == list(dict.fromkeys(homes))
    assert sum(a != b for a, b in pairwise(homes)) == len(set(homes)) - 1
    assert slowest(costs, speeds, homes) == pytest.approx(least(costs, speeds), rel=1e-9)


def test_alike_workers_share_alike():
    assert assign_by_speed([1.0] * 6, dict.fromkeys("abc", 2.0)) == tuple("aabbcc")
    # Not aabb, which would leave c without shards.
    assert assign_by_speed([1.0] * 4, dict.fromkeys("abc", 1.0)) == tuple("abbc")


def test_a_worker_four_times_slower_gets_a_quarter_of_the_shards():
    homes = assign_by_speed([1.0] * 26, {"a": 1.0, "slow": 0.25, "c": 1.0, "d": 1.0})
    assert [homes.count(name) for name in ("a", "slow", "c", "d")] == [8, 2, 8, 8]


def test_a_worker_that_would_hold_up_the_others_gets_nothing():
    assert assign_by_speed([1.0, 1.0], {"a": 1.0, "b": 0.25}) == ("a", "a")


def test_shards_of_unknown_cost_are_counted():
    assert assign_by_speed([0.0] * 4, {"a": 1.0, "b": 1.0}) == tuple("aabb")


def test_many_shards_and_workers_of_any_speed_come_near_the_ideal():
    random = Random(0)
    costs = [0.5 + random.random() for _ in range(4000)]
    speeds = {f"w{w}": 0.2 + random.random() for w in range(200)}
    assert slowest(costs, speeds, assign_by_speed(costs, speeds)) <= 1.05 * sum(costs) / sum(
        speeds.values()
    )
