"""The launcher of Ray jobs: a look at the cluster that fails is followed by another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from xcray.jobs.home import Home
from xcray.jobs.supervision import launch
from xcray.jobs.supervision.launch import Ended, RayJobLauncher
from xcray.workers.ray.local_cluster import JoinedCluster


def told(launcher: RayJobLauncher) -> list[Ended]:
    """What a look found, once it is over; raises what it raised."""
    launcher._looked = float("-inf")
    launcher.tend()
    assert launcher._look is not None
    while not launcher._look.done():
        time.sleep(0.01)
    return launcher.tend()


def test_a_disk_that_was_full_while_a_log_was_kept_does_not_end_the_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The end of a runner is told once there is room again: a supervisor that hears the same error for ever does nothing else."""
    launcher = RayJobLauncher(Home(tmp_path), JoinedCluster("127.0.0.1:1", "http://127.0.0.1:1"))
    runner, full = Ended("job_0", 1), [True]

    def keep(*_: Any) -> None:
        if full:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(launcher, "_ensured", lambda: None)
    monkeypatch.setattr(launch, "_status", lambda *_: "FAILED")
    monkeypatch.setattr(launch, "_keep_log", keep)
    launcher._started[runner] = "xcray-job"
    with pytest.raises(OSError, match="No space"):
        told(launcher)
    full.clear()
    assert told(launcher) == [runner]
    assert launcher.runners() == []
