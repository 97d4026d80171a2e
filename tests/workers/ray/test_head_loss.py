"""A Ray whose head or node ends under a training: a named error, and nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.waiting import until
from xcray.errors import Unavailable
from xcray.system.processes import descendants
from xcray.workers.ray import cluster_state

ENDLESS = ["--solver", "dsmlr", "-p", "epochs=1000000", "-p", "tolerance=0"]


def test_a_head_can_restart_but_neither_it_nor_the_own_node_can_be_gone(monkeypatch):
    now, node = [0.0], {"NodeID": "a", "NodeManagerAddress": "h", "NodeManagerPort": 2}
    back, gone = {"h:1": 15.0, "h:2": 0.0}, set()
    state = SimpleNamespace(available_resources_per_node=dict, get_draining_nodes=dict)
    ray = SimpleNamespace(
        get_runtime_context=lambda: SimpleNamespace(gcs_address="h:1", get_node_id=lambda: "a"),
        nodes=lambda: [{**node, "Alive": True, "Resources": {}}],
    )
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: now.append(now.pop() + 1.0))
    monkeypatch.setattr(cluster_state, "ray", ray)
    monkeypatch.setattr(cluster_state, "state", SimpleNamespace(state=state))
    monkeypatch.setattr(cluster_state, "time", clock)
    monkeypatch.setattr(
        cluster_state, "is_reachable", lambda at: at not in gone and now[0] >= back[at]
    )
    cluster = cluster_state.ClusterView()
    cluster.refresh()
    assert (now, cluster.alive) == ([15.0], {"a": "h"})
    gone.add("h:2")
    with pytest.raises(Unavailable, match="Ray has ended on this machine") as caught:
        cluster.refresh()
    assert (caught.value.code, now) == ("RAY_ENDED", [15.0])
    gone.symmetric_difference_update({"h:1", "h:2"})
    with pytest.raises(Unavailable, match="head at h:1 has ended or cannot be reached") as caught:
        cluster.refresh()
    assert (caught.value.code, now) == ("RAY_ENDED", [36.0])


@pytest.mark.drill
@pytest.mark.parametrize("program", ["gcs_server", "raylet"])
def test_a_training_whose_ray_is_killed_ends_with_a_reason_and_leaves_nothing(
    tiny, tmp_path, program
):
    folder = Path(tempfile.mkdtemp(prefix="g", dir="/tmp"))  # Ray's sockets need short paths
    command = [sys.executable, "-m", "xcray", "train", str(tiny.path), "--pool", "ray"]
    command += ["--workers", "1", "--out", str(tmp_path / "model"), *ENDLESS]
    with (tmp_path / "log").open("wb") as log:
        environment = {**os.environ, "TMPDIR": str(folder)}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        until(lambda: b"TRAINING" in (tmp_path / "log").read_bytes())
        # the actor of the training, idle or in a call, not a process that Ray starts in advance
        actor = ("ray::DSMLR", "ray::xcray")
        until(lambda: any(title(pid).startswith(actor) for pid in descendants(process.pid)))
        started = descendants(process.pid)
        # the first one: its children have the same title until they call exec
        victim = next(pid for pid in started if title(pid).split("\0")[0].endswith("/" + program))
        os.kill(victim, signal.SIGKILL)
        assert process.wait(300) == 1
        assert b"error RAY_ENDED: Ray" in (tmp_path / "log").read_bytes()
        assert list(folder.glob("xr-*")) == []
        # Ray's agents look for the head for another minute.
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def title(pid: int) -> str:
    """Return the command line of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
