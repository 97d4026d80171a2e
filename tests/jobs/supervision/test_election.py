"""Leader election: who leads, how leadership moves, and that a former leader does no harm."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_service import PATIENCE, settings_for
from xcray.errors import Unavailable
from xcray.jobs.home import Home
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.supervision.election import AlwaysLeader, LeaderElection
from xcray.service.datasets.builds import READY, Builder
from xcray.service.datasets.uploads import UploadStore
from xcray.service.maintenance import MaintenanceLoop
from xcray.service.observability.metrics import Metrics
from xcray.service.processes.home_lock import acquire_role

LEASE = 6.0


class Clock:
    """Seconds that the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def stores(home: Home, clock: Clock) -> Iterator[list[JobStore]]:
    """A store as two processes see it."""
    both = [JobStore(home.store_url, monotonic=clock) for _ in range(2)]
    yield both
    for store in both:
        store.close()


def posts(stores: list[JobStore], clock: Clock) -> list[LeaderElection]:
    return [
        LeaderElection(store, "maintenance", f"process {i}", LEASE, clock)
        for i, store in enumerate(stores)
    ]


def test_one_of_two_has_a_duty_and_keeps_it(stores: list[JobStore], clock: Clock) -> None:
    first, second = posts(stores, clock)
    for _ in range(20):
        assert (first.acquire_or_renew(), second.acquire_or_renew()) == (True, False)
        clock.seconds += LEASE / 4
    assert (first.term, second.term) == (1, None)


def test_a_silent_holder_is_followed_within_two_leases_and_knows_it_itself(
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


def test_who_leaves_is_followed_at_once(stores: list[JobStore], clock: Clock) -> None:
    first, second = posts(stores, clock)
    assert first.acquire_or_renew()
    first.release()
    assert second.acquire_or_renew()


def test_who_cannot_reach_the_store_counts_itself_out_before_others_may(
    stores: list[JobStore], clock: Clock
) -> None:
    class Away:
        """A store that is there once."""

        def __init__(self) -> None:
            self.there = True

        def try_acquire_leadership(self, *_: Any) -> int:
            if not self.there:
                raise Unavailable("no connection")
            return 7

        def release_leadership(self, *_: Any) -> None:
            raise Unavailable("no connection")

    store = Away()
    post = LeaderElection(store, "maintenance", "me", LEASE, clock)
    assert post.acquire_or_renew()
    store.there = False
    clock.seconds += LEASE / 2
    assert post.acquire_or_renew()
    clock.seconds += LEASE / 4
    assert not post.acquire_or_renew()
    store.there = True
    clock.seconds += LEASE
    assert post.acquire_or_renew()
    store.there = False
    post.release()  # says so in the log, and is silent


STUB = """
import json, pathlib, sys, time
asked = pathlib.Path(sys.argv[1])
waits = (asked.parent / "wait").exists()  # looked at first: whoever sees that it has begun may take the word away
asked.with_name(asked.name.replace("request", "begun")).touch()
if waits:
    time.sleep(600)
asked.with_name(asked.name.replace("request", "outcome")).write_text('{"stats": {"by": "%s"}}' % asked.name)
"""


class House:
    """A process of a home that builds data sets, as far as it may."""

    def __init__(
        self, home: Home, store: JobStore, post: Any, stub: Path, *, alone: bool = False
    ) -> None:
        settings = settings_for(home.path)
        self.builder = Builder(
            home, store, settings, Metrics(), (sys.executable, str(stub)), leadership=post
        )
        self.swept = 0
        uploads = UploadStore(home.path / "uploads", settings)
        self.keeper = MaintenanceLoop(
            self.builder, uploads, post, exclusive_home=alone, sweep=self._sweep
        )

    def _sweep(self) -> None:
        self.swept += 1


async def until(wish: Callable[[], Any], *turn: House) -> None:
    """Let houses turn until a wish comes true."""
    deadline = time.monotonic() + PATIENCE
    while not wish():
        assert time.monotonic() < deadline, "in vain"
        for house in turn:
            await house.keeper.tick()
        await asyncio.sleep(0.02)


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    path = tmp_path / "stub.py"
    path.write_text(STUB)
    return path


def test_a_build_passes_to_the_next_leader_and_what_the_old_one_finds_is_dropped(
    stores: list[JobStore], clock: Clock, home: Home, stub: Path
) -> None:
    async def story() -> None:
        first, second = (
            House(home, store, post, stub)
            for store, post in zip(stores, posts(stores, clock), strict=True)
        )
        record, _ = second.builder.accept("default", "a", "pydocs", {}, {}, move_sources=True)
        folder = home.path / "builds" / record.id
        (folder / "wait").touch()
        await until(
            (folder / "begun-1.json").exists, first, second
        )  # only the first one has the post
        assert not (folder / "begun-2.json").exists()
        (folder / "wait").unlink()  # the second one's build ends at once
        clock.seconds += LEASE + 1  # the first one stands still
        for _ in range(2):
            await second.keeper.tick()
            clock.seconds += LEASE + 1
        await until(lambda: stores[1].get_dataset(record.id).status == READY, second)
        assert stores[1].get_dataset(record.id).stats["by"] == "request-2.json"
        await asyncio.to_thread(
            first.builder._record,
            record.id,
            "default",
            {"problem": {"code": "OLD", "message": "late"}},
        )
        assert (
            stores[1].get_dataset(record.id).status == READY
        )  # it woke up, and saw that it has no say
        await first.keeper.tick()
        assert first.builder._tasks == {}  # its child was ended
        for house in (first, second):
            await house.keeper.close()

    asyncio.run(story())


def test_who_keeps_the_house_alone_takes_up_what_was_left_and_sweeps(
    stores: list[JobStore], home: Home, stub: Path
) -> None:
    async def story() -> None:
        before = House(home, stores[0], AlwaysLeader(), stub)
        record, _ = before.builder.accept(
            "default", "a", "pydocs", {}, {}, move_sources=True
        )  # and the process dies
        (home.path / "uploads" / ".upl_half.part").mkdir()
        house = House(home, stores[1], AlwaysLeader(), stub, alone=True)
        await until(lambda: stores[1].get_dataset(record.id).status == READY, house)
        await until(lambda: house.swept == 1, house)
        assert not list((home.path / "uploads").iterdir())
        await house.keeper.close()

    asyncio.run(story())


def test_uploads_of_other_processes_are_left_alone_while_bytes_may_come(
    stores: list[JobStore], home: Home, stub: Path
) -> None:
    settings = settings_for(home.path)
    desk = UploadStore(home.path / "uploads", settings)
    part = home.path / "uploads" / ".upl_half.part"
    part.mkdir()
    (part / "body").write_bytes(b"half")
    now = time.time()
    assert desk.sweep(now + 9 * settings.body_idle_timeout_seconds, exclusive=False) == 0
    assert desk.sweep(now + 11 * settings.body_idle_timeout_seconds, exclusive=False) == 1


def test_places_of_a_shared_store_do_not_fight_over_their_files(tmp_path: Path) -> None:
    home = Home(tmp_path)
    shared = settings_for(tmp_path, store="postgresql://db/xcray")
    with acquire_role(shared, home, "serve") as one, acquire_role(shared, home, "serve") as two:
        assert (one.info_path.name, one.metrics_dir.name) == ("serve.json", "metrics")
        assert two.info_path != one.info_path
        assert two.metrics_dir != one.metrics_dir
        for place in (one, two):
            place.info_path.write_text(json.dumps({"name": place.name}))
    assert not list(tmp_path.glob("*.json"))
