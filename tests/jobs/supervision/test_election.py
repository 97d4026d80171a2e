"""Leader election: who leads, how leadership changes, and that a former leader does no harm."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clocks import Clock
from tests.support.live_service import PATIENCE, settings_for
from xcray.errors import Conflict, Unavailable
from xcray.jobs.home import Home
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.supervision.election import LeaderElection
from xcray.service import constants
from xcray.service.datasets.builds import READY, Builder, NewDataset
from xcray.service.datasets.uploads import UploadStore
from xcray.service.maintenance import MaintenanceLoop
from xcray.service.observability.metrics import Metrics
from xcray.service.processes.home_lock import acquire_role

LEASE = 6.0


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def stores(home: Home, clock: Clock) -> Iterator[list[JobStore]]:
    """Yield two stores on one database, as two processes have them."""
    both = [JobStore(home.store_url, monotonic=clock) for _ in range(2)]
    yield both
    for store in both:
        store.close()


def posts(stores: list[JobStore], clock: Clock) -> list[LeaderElection]:
    return [
        LeaderElection(store.leader_leases, "maintenance", f"process {i}", LEASE, clock)
        for i, store in enumerate(stores)
    ]


def test_a_silent_leader_is_replaced_within_two_leases_and_steps_down(
    stores: list[JobStore], clock: Clock
) -> None:
    first, second = posts(stores, clock)
    assert first.acquire_or_renew()
    assert not second.acquire_or_renew()
    silent = clock.seconds
    while not second.acquire_or_renew():
        clock.seconds += LEASE / 10
    assert clock.seconds - silent <= 2 * LEASE
    assert not first.acquire_or_renew()
    assert second.term == 2


def test_a_leader_that_releases_is_replaced_at_once(stores: list[JobStore], clock: Clock) -> None:
    first, second = posts(stores, clock)
    assert first.acquire_or_renew()
    first.release()
    assert second.acquire_or_renew()


def test_a_leader_without_the_store_steps_down_before_it_can_be_replaced(
    stores: list[JobStore], clock: Clock
) -> None:
    class FailingStore:
        """A store that becomes unavailable."""

        def __init__(self) -> None:
            self.available = True

        def try_acquire(self, *_: Any) -> int:
            if not self.available:
                raise Unavailable("no connection")
            return 7

        def release(self, *_: Any) -> None:
            raise Unavailable("no connection")

    store = FailingStore()
    post = LeaderElection(store, "maintenance", "me", LEASE, clock)
    assert post.acquire_or_renew()
    store.available = False
    clock.seconds += LEASE / 2
    assert post.acquire_or_renew()
    clock.seconds += LEASE / 4
    assert not post.acquire_or_renew()
    store.available = True
    clock.seconds += LEASE
    assert post.acquire_or_renew()
    store.available = False
    post.release()  # logs the failure and raises nothing


STUB = """
import json, pathlib, sys, time
request = pathlib.Path(sys.argv[1])
request.with_name(request.name.replace("request", "begun")).touch()
while request.with_name(request.name.replace("request", "wait")).exists():
    time.sleep(0.01)
request.with_name(request.name.replace("request", "outcome")).write_text('{"stats": {"by": "%s"}}' % request.name)
"""


class MaintenanceProcess:
    """The maintenance loop and the data set builder of one process of a home."""

    def __init__(self, home: Home, store: JobStore, post: Any, stub: Path) -> None:
        settings = settings_for(home.path)
        self.builder = Builder(
            home, store.datasets, settings, Metrics(), (sys.executable, str(stub)), leadership=post
        )
        self.swept = 0
        uploads = UploadStore(home.path / "uploads", settings)
        self.keeper = MaintenanceLoop(
            self.builder, uploads, post, exclusive_home=False, sweep=self._sweep
        )

    def _sweep(self) -> None:
        self.swept += 1


async def until(wish: Callable[[], Any], *turn: MaintenanceProcess) -> None:
    """Run the maintenance loops of the processes until a condition is true."""
    deadline = time.monotonic() + PATIENCE
    while not wish():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        for process in turn:
            await process.keeper.tick()
        await asyncio.sleep(0.02)


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    path = tmp_path / "stub.py"
    path.write_text(STUB)
    return path


def test_a_build_passes_to_the_next_leader_and_the_old_outcome_is_dropped(
    stores: list[JobStore], clock: Clock, home: Home, stub: Path
) -> None:
    async def story() -> None:
        first, second = (
            MaintenanceProcess(home, store, post, stub)
            for store, post in zip(stores, posts(stores, clock), strict=True)
        )
        record, _ = second.builder.accept(NewDataset("default", "a", "pydocs", {}, None, None), {})
        folder = home.path / "builds" / record.id
        (folder / "wait-1.json").touch()  # the build of the second process does not wait
        # Only the first process is the leader.
        await until((folder / "begun-1.json").exists, first, second)
        assert not (folder / "begun-2.json").exists()
        clock.seconds += LEASE + 1  # the first process is suspended
        for _ in range(2):
            await second.keeper.tick()
            clock.seconds += LEASE + 1
        await until(lambda: stores[1].datasets.get(record.id).status == READY, second)
        assert stores[1].datasets.get(record.id).stats["by"] == "request-2.json"
        await until(lambda: second.swept == 1, second)
        await asyncio.to_thread(
            first.builder._record,
            record.id,
            "default",
            {"problem": {"code": "OLD", "message": "late"}},
        )
        # The first process resumed and found that it is not the leader any more.
        assert stores[1].datasets.get(record.id).status == READY
        await first.keeper.tick()
        assert first.builder._tasks == {}  # its child process was ended
        for process in (first, second):
            await process.keeper.close()

    asyncio.run(story())


def test_a_build_says_that_it_waits_for_another(
    stores: list[JobStore], clock: Clock, home: Home, stub: Path
) -> None:
    async def story() -> None:
        process = MaintenanceProcess(home, stores[0], posts(stores, clock)[0], stub)
        new = NewDataset("default", "a", "pydocs", {}, None, None)
        first, second = (process.builder.accept(new, {})[0] for _ in range(2))
        for each in (first, second):
            (home.path / "builds" / each.id / "wait-1.json").touch()

        def stats() -> list[Any]:
            records = [stores[1].datasets.get(each.id) for each in (first, second)]
            return [each.stats.get("waiting", False) for each in records if each.status != READY]

        await until(lambda: True in stats(), process)
        assert sorted(stats()) == [False, True]
        for each in (first, second):
            (home.path / "builds" / each.id / "wait-1.json").unlink()
        await until(lambda: stats() == [], process)
        assert all(
            "waiting" not in stores[1].datasets.get(each.id).stats for each in (first, second)
        )
        await process.keeper.close()

    asyncio.run(story())


def test_recent_uploads_of_other_processes_are_kept(
    stores: list[JobStore], home: Home, stub: Path
) -> None:
    settings = settings_for(home.path)
    desk = UploadStore(home.path / "uploads", settings)
    part = home.path / "uploads" / ".upl_half.part"
    part.mkdir()
    (part / "body").write_bytes(b"half")
    now = time.time()
    assert desk.sweep(now + 9 * constants.BODY_IDLE_SECONDS, exclusive=False) == 0
    assert desk.sweep(now + 11 * constants.BODY_IDLE_SECONDS, exclusive=False) == 1


def test_only_processes_with_a_shared_store_share_a_home(tmp_path: Path) -> None:
    home, alone = Home(tmp_path), settings_for(tmp_path)
    with (
        acquire_role(alone, home, "serve"),
        pytest.raises(Conflict, match="another xcray serve holds the home"),
        acquire_role(alone, home, "serve"),
    ):
        pass
    shared = settings_for(tmp_path, store="postgresql://db/xcray")
    with acquire_role(shared, home, "serve") as one, acquire_role(shared, home, "serve") as two:
        assert (one.info_path.name, one.metrics_dir.name) == ("serve.json", "metrics")
        assert two.info_path != one.info_path
        assert two.metrics_dir != one.metrics_dir
        for place in (one, two):
            place.info_path.write_text(json.dumps({"name": place.name}))
    assert not list(tmp_path.glob("*.json"))
