"""A home, its job store on SQLite, and the clock of the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clocks import WallClock
from xcray.jobs.home import Home
from xcray.jobs.store.job_store import JobStore


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


@pytest.fixture
def store(home: Home, clock: WallClock) -> Iterator[JobStore]:
    """Yield a store whose clocks the test moves forward."""
    store = JobStore(home.store_url, now=clock, monotonic=clock, busy_seconds=300.0)
    yield store
    store.close()
