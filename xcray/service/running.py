"""Who runs the queued jobs of an embedded service: a supervisor in a thread, runners in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from xcray.jobs.home import Home
from xcray.jobs.store import JobStore
from xcray.service.settings import Settings
from xcray.service.state import Supervising

Checks: TypeAlias = Mapping[str, Callable[[], None]]


@contextmanager
def supervision(settings: Settings, home: Home, store: JobStore) -> Iterator[tuple[Supervising | None, Checks]]:
    """The supervisor for a service, and the checks that readiness reports as degraded."""
    yield None, {}
