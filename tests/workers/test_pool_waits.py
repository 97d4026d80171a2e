"""A pool never waits forever for a worker: real pool and schedule on a simulated Ray."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.observers import run_schedule
from tests.support.simulated_ray import Happening, SimulatedRun, played
from xcray.errors import ParameterError, Unavailable
from xcray.schedule.autoscaling import ScalingPolicy
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.schedule.placement_timeouts import (
    REPORT_AFTER_SECONDS,
    STUCK_SECONDS,
    SURPLUS_SECONDS,
    PlacementWatchdog,
)
from xcray.workers.ray import actors
from xcray.workers.ray import pool as ray_pool
from xcray.workers.ray.actors import node_seconds, start_seconds
from xcray.workers.ray.pool import GATHER_SECONDS, RayPool

WORK = SimpleNamespace(
    warm_up=lambda *_: None, decode_result=lambda block: block, counter=("n", "n")
)


def job(
    play: SimulatedRun, workers: int = 6, thrift: ScalingPolicy | None = None
) -> tuple[float, list[str]]:
    """Run a job on a simulated Ray; return its seconds and the reasons for waiting."""
    done, output = list[int](), list[str]()
    schedule = LabelScheduler(range(len(play.costs)), play.costs, workers=workers)
    with played(play):
        pool = RayPool(WORK, workers, nullcontext(), "play", tuple, policy=thrift)

        def look() -> None:
            output.append(pool.status().waiting_for)

        run_schedule(
            schedule, pool, commit=lambda result: done.extend(result.task.labels), tick=look
        )
    assert sorted(done) == list(range(len(play.costs)))
    return play.now - play.began, [word for word in dict.fromkeys(output) if word]


def test_a_job_without_problems_reports_no_wait():
    seconds, output = job(
        SimulatedRun([1.0] * 60, [Happening(0.0, "node", 4)]),
        thrift=ScalingPolicy(node_seconds=10.0),
    )
    assert seconds < 30.0
    assert output == []


@pytest.mark.parametrize("thrift", [None, ScalingPolicy(node_seconds=10.0)], ids=["all", "thrift"])
def test_a_lost_request_is_repeated(thrift):
    """Ray never places the first three actors, although a node has room from the start."""
    seconds, output = job(
        SimulatedRun([1.0] * 60, [Happening(0.0, "node", 2)], lost=frozenset({0, 1, 2})), 2, thrift
    )
    assert seconds < 30.0 + 3 * (STUCK_SECONDS + 5.0)
    assert any("had room" in word and "placed no worker" in word for word in output)


def test_a_worker_whose_message_was_lost_leaves_its_place_to_another():
    """The actor lives on after the error, and holds the CPU that the next worker needs."""
    play = SimulatedRun([1.0] * 60, [Happening(0.0, "node", 2), Happening(12.0, "message", 1)])
    seconds, output = job(play, 2)
    assert seconds < 60.0
    assert output == []


def test_a_node_that_places_no_worker_is_avoided_and_another_requested():
    """The node reports room but takes no actor, so the autoscaler must add another node."""
    play = SimulatedRun([1.0] * 60, [Happening(0.0, "deaf", 2)], grows=2)
    seconds, _ = job(play, 4, ScalingPolicy(node_seconds=10.0))
    assert seconds < 120.0


@pytest.mark.parametrize("at", [2.25, 12.0], ids=["placed", "ready"])
def test_a_node_whose_workers_are_lost_before_it_is_known_as_dead_counts_as_no_crash(at):
    """It has all workers, more than the crashes that one worker may have."""
    play = SimulatedRun(
        [1.0] * 200,
        [Happening(0.0, "node", 8), Happening(at, "reset"), Happening(14.0, "node", 8)],
    )
    seconds, _ = job(play, 8)
    assert seconds < 90.0


def test_a_job_without_workers_ends_after_the_start_timeout(monkeypatch):
    """The only node dies and no other starts: the job ends with the reason for its wait."""
    monkeypatch.setenv("XCRAY_RAY_START_SECONDS", "60")
    play = SimulatedRun([1.0] * 500, [Happening(0.0, "node", 2), Happening(20.0, "kill")])
    with pytest.raises(
        Unavailable,
        match=r"ready after 60 s \(\d workers? waits? for a place: no node has room\).*ray status",
    ) as caught:
        job(play, 2, ScalingPolicy(node_seconds=10.0))
    assert caught.value.code == "RAY_NO_CPU"
    assert play.now - play.began < 20.0 + play.notice + 60.0 + 20.0


def test_a_clock_that_is_set_back_has_no_effect():
    """The pool polls the forecast by a monotonic clock; else it would request no workers."""
    play = SimulatedRun([1.0] * 60, [Happening(0.0, "node", 4)])
    wall = SimpleNamespace(monotonic=lambda: play.now, time=lambda: -play.now, sleep=play.pass_time)
    with played(play), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_pool, "time", wall)
        pool, done = (
            RayPool(WORK, 4, nullcontext(), "play", tuple, policy=ScalingPolicy(node_seconds=10.0)),
            list[int](),
        )
        schedule = LabelScheduler(range(60), play.costs, workers=4)
        run_schedule(schedule, pool, commit=lambda result: done.extend(result.task.labels))
        assert pool.status().peak == 4
    assert len(done) == 60


HAPPENINGS = st.lists(
    st.builds(
        Happening,
        st.floats(1.0, 120.0),
        st.sampled_from(["node", "deaf", "kill", "drain", "crash"]),
        st.integers(1, 3),
    ),
    max_size=6,
)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    HAPPENINGS,
    st.frozensets(st.integers(0, 9), max_size=5),
    st.floats(0.0, 3.0),
    st.booleans(),
    st.integers(0, 3),
)
def test_all_labels_are_done_in_time_under_random_events(happenings, lost, lag, thrifty, grows):
    """Nodes start, die, drain or ignore requests, actors crash, and status reports are late.

    From 150 s on, one node is healthy.
    """
    play = SimulatedRun(
        [0.5] * 120,
        [*happenings, Happening(0.0, "node", 2), Happening(150.0, "node", 3)],
        lost=lost,
        lag=lag,
        grows=grows,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XCRAY_RAY_START_SECONDS", "600")
        seconds, _ = job(play, 5, ScalingPolicy(node_seconds=10.0) if thrifty else None)
    assert seconds < 150.0 + 60.0 + (2 + len(lost)) * (STUCK_SECONDS + 10.0) + 30.0 * len(
        happenings
    )


def test_the_reason_for_a_wait_is_reported_after_a_while():
    patience = PlacementWatchdog()
    assert patience.check(0.0, {"a": 0.0}, 1, [], 60.0).reason == ""
    assert (
        patience.check(REPORT_AFTER_SECONDS, {"a": 0.0, "b": 5.0}, 1, [], 60.0).reason
        == "2 workers wait for a place: no node has room"
    )
    assert patience.check(REPORT_AFTER_SECONDS, {"a": 0.0}, 1, ["n"], 60.0).reason.startswith(
        "1 worker waits for a place: 1 node had room for 0 s"
    )
    assert not patience.check(100.0, {}, 1, ["n"], 60.0).reason


def test_a_stuck_request_is_repeated_and_then_the_node_is_avoided():
    patience, now = PlacementWatchdog(), 0.0
    ways = []
    for turn in range(2):
        request = {f"w{turn}": now}
        for _ in range(int(STUCK_SECONDS) + 1):
            way = patience.check(now, request, 1, ["deaf"], 600.0)
            if way.retry:
                ways.append(way)
                break
            now += 1.0
    assert [(way.retry, way.avoid) for way in ways] == [(("w0",), ()), (("w1",), ("deaf",))]


def test_a_new_worker_resets_the_timeout_and_surplus_requests_are_cancelled():
    patience = PlacementWatchdog()
    for now in range(int(STUCK_SECONDS)):
        assert not patience.check(float(now), {"a": 0.0, "b": 0.0}, 1, ["n"], 600.0).retry
    assert not patience.check(STUCK_SECONDS, {"b": 0.0}, 2, ["n"], 600.0).retry
    assert [
        patience.surplus_to_cancel(now, many)
        for now, many in ((0.0, 2), (1.0, 0), (2.0, 3), (2.0 + SURPLUS_SECONDS, 1))
    ] == [0, 0, 0, 1]


@pytest.mark.parametrize("read", [node_seconds, start_seconds])
def test_seconds_of_the_environment_are_read_when_they_are_used(read, monkeypatch):
    name = f"XCRAY_RAY_{read.__name__.partition('_')[0].upper()}_SECONDS"
    monkeypatch.setenv(name, "7.5")
    assert read() == 7.5
    monkeypatch.setenv(name, "soon")
    with pytest.raises(ParameterError, match=name):
        read()


def test_a_wait_gathers_results_for_longer_the_more_calls_are_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeouts = []

    def wait(pending: list[str], num_returns: int, timeout: float, **_: object) -> Any:
        timeouts.append(timeout)
        return pending[:1], pending[1:]

    monkeypatch.setattr(actors.ray, "wait", wait)
    assert actors.ready_refs(["a", "b"], 0.2, 2000 * GATHER_SECONDS) == ["a"]
    assert timeouts == [0.2, 0.04]
