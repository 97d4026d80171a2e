"""The launcher of Ray jobs: a failed poll of the cluster is followed by another poll."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from xcray.jobs.home import Home
from xcray.jobs.supervision import ray_launch
from xcray.jobs.supervision.launch import RunnerId
from xcray.jobs.supervision.ray_launch import RayJobLauncher
from xcray.workers.ray.local_cluster import ExternalRay


def poll_to_end(launcher: RayJobLauncher) -> list[RunnerId]:
    """Poll once and return the result of the poll, or raise its error."""
    launcher._polled_at = float("-inf")
    launcher.poll()
    assert launcher._poll_future is not None
    while not launcher._poll_future.done():
        time.sleep(0.01)
    return launcher.poll()


def test_a_full_disk_while_a_log_is_copied_does_not_end_polling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The end of a runner is reported once there is space to copy its log.

    The error of one poll must not be raised again by every later poll.
    """
    launcher = RayJobLauncher(Home(tmp_path), ExternalRay("127.0.0.1:1", "http://127.0.0.1:1"))
    runner, full = RunnerId("job_0", 1), [True]

    def keep(*_: Any) -> None:
        if full:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(launcher, "_ensure_cluster", lambda: None)
    monkeypatch.setattr(ray_launch, "_job_status", lambda *_: "FAILED")
    monkeypatch.setattr(ray_launch, "_copy_ray_log", keep)
    launcher._runners[runner] = "xcray-job"
    with pytest.raises(OSError, match="No space"):
        poll_to_end(launcher)
    full.clear()
    assert poll_to_end(launcher) == [runner]
    assert launcher.list_runners() == []
