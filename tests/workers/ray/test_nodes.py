"""Real clusters of several nodes: a training on two raylets, one of which is killed.

This is the quick form of `python -m benchmarks.cluster.nodes`, run as a command, in namespaces
where possible. It does not depend on timing: workers of the remaining node wait until Ray has
detected the change of the other one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster.nodes import verdict
from tests.robustness.faults.stage import allowed
from tests.support.missing_tools import say
from tests.support.waiting import until
from xcray.system.processes import list_processes

pytestmark = [pytest.mark.ray, pytest.mark.drill]
ROOT = Path(__file__).parents[3]
SECONDS = 900  # only a hang takes longer, even on a busy machine
WORDS = (sys.executable, "-m", "benchmarks.cluster.nodes", "--small", "--eps", "1e-5")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the command and return its report."""
    if allowed() is None:
        say(
            "namespaces",
            "several nodes were process groups at loopback addresses: killed and added, not cut off",
        )
    place = tmp_path_factory.mktemp("nodes") / "found.json"
    words = [*WORDS, "--parts", "kill", "--json", str(place)]
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    document: dict[str, Any] = json.loads(place.read_text())
    return document


def rows(played: dict[str, Any], part: str) -> list[dict[str, Any]]:
    """Return the rows of a part."""
    return [row for row in played["rows"] if row["part"] == part]


def test_a_training_on_two_nodes_outlives_one_of_them_and_has_the_bits_of_an_undisturbed_one(
    played,
):
    (row,) = rows(played, "kill")
    assert row["same_sha256"]
    assert (row["lost_labels"], row["doubled_labels"], row["zombie_results_accepted"]) == (0, 0, 0)
    # The node was working when it died, and its batches ran again.
    assert row["lost_batches"] >= 1
    assert 0.0 < row["repeated_work"] < 1.0
    assert len({bar[1] for bar in row["chart"]["bars"]}) == 2  # both nodes had worked


@pytest.mark.parametrize(
    "broken",
    [
        {"same_sha256": False},
        {"lost_labels": 1},
        {"doubled_labels": 1},
        {"zombie_results_accepted": 1},
        {"nodes": 2, "nodes_used": 1},
        {"batches_of_the_new_node": 0},
    ],
)
def test_the_verdict_detects_each_broken_promise(broken):
    assert all(verdict([{"part": "same"}]).values())
    assert not all(verdict([{"part": "same"}, {"part": "same", **broken}]).values())


def test_a_killed_command_leaves_no_process_and_no_folder(tmp_path):
    """The command is killed with SIGKILL while its nodes start.

    Its processes are identified by a mark in their environment.
    """
    mark = f"xcray-mark-{os.getpid()}-{time.monotonic_ns()}"
    words = [*WORDS, "--parts", "same", "--json", str(tmp_path / "found.json")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "FAULTS_MARK": mark}, **quiet)
    folders = set()
    try:
        apart = allowed() is not None
        until(lambda: any(map(plays, marked(mark))) if apart else len(marked(mark)) >= 3)
        folders = {folder for pid in marked(mark) for folder in [folder_of(pid)] if folder}
        assert all(folder.is_dir() for folder in folders)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    until(lambda: not marked(mark))
    until(lambda: not any(folder.exists() for folder in folders))
    assert folders or not apart


def marked(mark: str) -> set[int]:
    """Return the processes whose environment contains a mark."""
    return {each.pid for each in list_processes() if mark in environment_of(each.pid)}


def environment_of(pid: int) -> str:
    """Return the initial environment of a process."""
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:  # it has ended
        return ""


def plays(pid: int) -> bool:
    """Return whether a process is the main one inside the namespaces.

    It has a folder and is no longer the `unshare` that started it.
    """
    try:
        begins = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
    except OSError:  # it has ended
        return False
    return begins == os.fsencode(sys.executable) and folder_of(pid) is not None


def folder_of(pid: int) -> Path | None:
    """Return the folder of the simulated cluster that a process is in."""
    results = [
        each.partition("=")[2]
        for each in environment_of(pid).split("\0")
        if each.startswith("FAULTS_FOLDER=")
    ]
    return Path(results[0]) if results else None
