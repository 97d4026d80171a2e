"""The local Ray of a test process, started by the first test that needs it and then shared.

A start takes seconds and the processor time of a hundred other tests.
"""

from __future__ import annotations

from contextlib import ExitStack

from tests.support.ray_clusters import named_once
from xcray.workers.ray.local_cluster import local_ray

NUM_CPUS = 4  # room for two groups of two workers, or for four workers
_RUNNING = ExitStack()
_ADDRESSES: list[str] = []


def start() -> str:
    """Return the address of the local Ray, which is started if it does not run."""
    if not _ADDRESSES:
        _RUNNING.enter_context(named_once())
        _ADDRESSES.append(_RUNNING.enter_context(local_ray(NUM_CPUS)))
    return _ADDRESSES[0]


def stop() -> None:
    """End the local Ray, if it runs."""
    _ADDRESSES.clear()
    _RUNNING.close()
