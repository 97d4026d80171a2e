"""Readiness reports each reason at once, even if checks hang; liveness has no dependencies."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tests.support.clocks import Clock
from tests.support.live_service import client_of, publish, settings_for
from xcray.errors import Unavailable
from xcray.jobs.database.migrations import HEAD
from xcray.jobs.database.schema import STORE_SCHEMA
from xcray.jobs.store.metric_deltas import QUEUE_POLLS
from xcray.jobs.store.statistics import StoreStatistics
from xcray.model.registry import Registry
from xcray.service import constants
from xcray.service.app import create_app
from xcray.service.models import preloading
from xcray.service.observability.readiness import HANG_SECONDS, STALE_SECONDS, Readiness
from xcray.service.readiness_checks import StalledQueueCheck

# Seconds until a wait is given up: a slow machine may have to compile kernels.
PATIENCE = 600.0


def read_readiness(http: httpx.Client) -> dict[str, Any]:
    """Return the body of /readyz after checking its status."""
    answer = http.get("/readyz")
    result = dict(answer.json())
    assert answer.status_code == (200 if result["ready"] else 503)
    assert result["ready"] == (not result["reasons"])
    return result


def eventually(http: httpx.Client, **expected: Any) -> None:
    """Wait until /readyz has these values.

    They must last once reached: a slow machine may never see a state that passes.
    """

    def stands(result: dict[str, Any]) -> bool:
        return all(result[name] == value for name, value in expected.items())

    eventually_stands(http, stands)


def eventually_stands(http: httpx.Client, stands: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the body of /readyz satisfies a condition."""
    ends = time.monotonic() + PATIENCE
    while not stands(result := read_readiness(http)):
        assert time.monotonic() < ends, result
        time.sleep(0.02)


def test_a_hanging_check_counts_as_failed_and_delays_nothing() -> None:
    clock, state, draining = Clock(), threading.Event(), [False]
    readiness = Readiness(
        {"STORE": lambda: state.wait(PATIENCE) and None},
        {"RAY": lambda: None},
        lambda: draining[0],
        clock,
    )
    while "RAY" in readiness.status().degraded:
        assert "STORE" in asyncio.run(readiness.refresh()).reasons  # not ready while unknown
    for _ in range(3):
        clock.seconds += HANG_SECONDS
        assert asyncio.run(readiness.refresh()).reasons == ["STORE"]
    assert sum(thread.name == "xcray-check-STORE" for thread in threading.enumerate()) == 1
    state.set()
    assert asyncio.run(readiness.refresh(PATIENCE)) == ([], [])  # and no check is running
    draining[0] = True
    assert readiness.status() == (["DRAINING"], [])
    clock.seconds += STALE_SECONDS  # the last results are too old to be valid
    assert readiness.status() == (["DRAINING", "STORE"], ["RAY"])
    assert readiness.failing_checks() == {"DRAINING": True, "STORE": True, "RAY": True}


def test_a_slow_check_keeps_its_last_result_for_a_while() -> None:
    clock, turn, fails = Clock(), threading.Semaphore(1), [False]

    def check() -> None:
        turn.acquire(timeout=PATIENCE)
        if fails[0]:
            raise Unavailable("no")

    readiness = Readiness({"STORE": check}, {}, lambda: False, clock)
    readiness.timeout = PATIENCE
    assert asyncio.run(readiness.refresh()).reasons == []
    readiness.timeout = 0.05
    fails[0] = True
    assert asyncio.run(readiness.refresh()).reasons == []  # running for less than HANG_SECONDS
    clock.seconds += HANG_SECONDS
    assert readiness.status().reasons == ["STORE"]
    fails[0] = False
    turn.release()
    while readiness.status().reasons:
        threading.Event().wait(0.01)


def test_a_hanging_store_affects_readiness_but_not_liveness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "KEYS_GRACE_SECONDS", 0.0)
    app = create_app(settings_for(tmp_path / "home"))
    store, state = app.state.app_state.store, threading.Event()
    with client_of(app) as http:
        assert read_readiness(http) == {"ready": True, "reasons": [], "degraded": []}
        app.state.app_state.readiness.timeout = 0.05
        ping, read_statistics = store.ping, store.statistics.read
        store.ping = store.statistics.read = lambda: state.wait(PATIENCE) and None
        # The presence of runners is unknown, too.
        eventually(http, reasons=["STORE"], degraded=["RUNNER"])
        assert http.get("/healthz").json()["status"] == "ok"
        assert http.get("/metrics").status_code == 200
        store.ping, store.statistics.read = ping, read_statistics
        state.set()
        eventually(http, ready=True, degraded=[])


@pytest.mark.parametrize("grace", [0.0, 2 * PATIENCE])
def test_a_store_upgraded_by_another_release(
    tmp_path: Path, grace: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "KEYS_GRACE_SECONDS", grace)
    app = create_app(settings_for(tmp_path / "home"))
    engine = sa.create_engine(app.state.app_state.store.url)

    def at(revision: int, oldest: int) -> None:
        with engine.begin() as connection:
            connection.execute(sa.update(STORE_SCHEMA).values(revision=revision, oldest=oldest))

    def is_unsupported(result: dict[str, Any]) -> bool:
        # During the grace period, predictions are answered for cached keys.
        required, others = ([], {"SCHEMA"}) if grace else (["SCHEMA"], set())
        # RUNNER reads the same store and may fail too, earlier or later.
        return result["reasons"] == required and set(result["degraded"]) - {"RUNNER"} == others

    with client_of(app) as http:
        as_it_was = {"ready": True, "reasons": [], "degraded": []}
        assert read_readiness(http) == as_it_was
        at(9999, HEAD)  # an addition is compatible
        assert read_readiness(http) == as_it_was
        for another in (9999, HEAD - 1):
            at(another, another)
            eventually_stands(http, is_unsupported)
        at(HEAD, HEAD)
        eventually(http, **as_it_was)
    engine.dispose()


def test_a_check_with_a_grace_period_degrades_first_and_fails_later() -> None:
    clock, fails = Clock(), [True]

    def check() -> None:
        if fails[0]:
            raise Unavailable("no")

    def stands() -> tuple[list[str], list[str]]:
        reasons, degraded = asyncio.run(readiness.refresh(PATIENCE))
        return reasons, degraded

    readiness = Readiness(
        {"STORE": check, "DISK": check},
        {"RAY": check},
        lambda: False,
        clock,
        graces={"STORE": 60.0},
    )
    # the store never worked, so there is no grace period
    assert stands() == (["STORE", "DISK"], ["RAY"])
    for _ in range(2):
        fails[0] = False
        assert stands() == ([], [])
        fails[0] = True
        assert stands() == (["DISK"], ["STORE", "RAY"])
        clock.seconds += 59.0
        assert stands() == (["DISK"], ["STORE", "RAY"])
        assert readiness.failing_checks() == {
            "DRAINING": False,
            "STORE": True,
            "DISK": True,
            "RAY": True,
        }
        clock.seconds += 1.0
        assert stands() == (["STORE", "DISK"], ["RAY"])


def test_the_service_is_ready_once_preloaded_models_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preloading, "RETRY_SECONDS", 0.02)
    registry = Registry(tmp_path / "home" / "models")
    publish(registry, "first", tmp_path / "a")
    app = create_app(settings_for(tmp_path / "home", preload=("first", "second:1")))
    with client_of(app) as http:
        eventually(http, reasons=["MODELS"])
        publish(registry, "second", tmp_path / "b", seed=1)
        eventually(http, ready=True)
        assert {
            name
            for name, _ in app.state.app_state.prediction.model_cache.loaded_versions("default")
        } == {
            "first",
            "second",
        }


def test_pending_jobs_without_a_polling_runner() -> None:
    clock, looks, waiting = Clock(), [0.0], [5.0]
    idle = StalledQueueCheck(
        lambda: StoreStatistics({}, waiting[0], (), ((QUEUE_POLLS, {}, looks[0]),)), 60.0, clock
    )
    idle.check()
    clock.seconds += 59.0
    idle.check()
    clock.seconds += 2.0
    with pytest.raises(Unavailable, match="xcray runner"):
        idle.check()
    looks[0] += 1.0  # a runner polled the queue
    idle.check()
    clock.seconds += 61.0
    waiting[0] = 0.0  # an empty queue needs no runner
    idle.check()


def test_data_sets_without_a_builder(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home", build_seconds=600))
    with client_of(app) as http:
        folder = tmp_path / "home" / "builds" / "ds_old"
        folder.mkdir()
        assert read_readiness(http)["degraded"] == []
        os.utime(folder, (1.0, 1.0))
        # A check that began before may still be running.
        eventually(http, ready=True, reasons=[], degraded=["BUILDER"])
