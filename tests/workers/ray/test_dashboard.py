"""What Ray's dashboard and its metrics show of a training, from `xcray train --dashboard`."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data.corpus import generate
from benchmarks.data.shapes import TASKS
from benchmarks.harness import SERVE
from xcray.telemetry.progress import Progress
from xcray.workers.ray.gauges import GAUGES, TrainingGauges, gauge_values, metric_name
from xcray.workers.ray.token import auth_header

NOTE = re.compile(r"dashboard: (\S+), its token: cat (\S+); metrics: (\S+/metrics)")
# gauges that a solver without epochs, or without labels that end one by one, does not have
EPOCHS = {"objective", "epoch", "rows_per_second"}
LABELS = {"largest_gap", "certified_share", "labels_per_second"}
SECONDS = 600.0  # detects hangs


def test_rates_are_of_the_work_since_the_last_export() -> None:
    first = Progress("TRAINING", 10, 40, 2.0, 5.0, 6.0, "", {}, {"counted": {"labels_solved": 10}})
    assert gauge_values(first, None) == {"done_share": 0.25, "remaining_seconds": 6.0}
    counted = {"labels_solved": 30, "rows_trained": 90.0}
    metrics = {"counted": counted, "busy_share": 0.5, "largest_gap": 0.01}
    second = Progress(
        "TRAINING", 30, 40, 4.0, 7.5, None, "", {"epoch": 3, "objective": 2.0}, metrics
    )
    assert gauge_values(second, first) == {
        "objective": 2.0,
        "largest_gap": 0.01,
        "epoch": 3,
        "done_share": 0.75,
        "labels_per_second": 10.0,
        "rows_per_second": 45.0,
        "busy_share": 0.5,
    }


def test_no_value_is_known_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as of a training on a part of the rows, whose process continues."""
    shown: dict[str, float] = {}

    class Shown:
        def __init__(self, name: str, *_: object, **__: object) -> None:
            self._name = name

        def set_default_tags(self, tags: Mapping[str, str]) -> None: ...

        def set(self, value: float) -> None:
            shown[self._name] = value

    monkeypatch.setattr("xcray.workers.ray.gauges.Gauge", Shown)
    gauges = TrainingGauges("local-part")
    gauges.export(Progress("TRAINING", 10, 40, 2.0, 5.0, 6.0, "", {}, {"counted": {}}))
    assert shown == {metric_name("done_share"): 0.25, metric_name("remaining_seconds"): 6.0}
    gauges.clear()
    assert all(math.isnan(value) for value in shown.values())


@pytest.mark.drill
@pytest.mark.ray
@pytest.mark.parametrize(
    ("solver", "params", "without", "actor", "task"),
    [
        ("ppdsparse", ["eps=1e-8"], EPOCHS, "PPDSparseWorker", "xcray:local:solve"),
        ("dsmlr", ["tolerance=0"], LABELS, "DSMLRWorker", "xcray:local:pass_block block 0"),
    ],
)
def test_a_training_exports_every_gauge_and_names_its_actors_and_tasks(
    solver: str, params: list[str], without: set[str], actor: str, task: str, tmp_path: Path
) -> None:
    scale = 0.003 if without is LABELS else 0.01
    generate(TASKS["amazon"].shape.scaled(scale), tmp_path / "data")
    log_path = tmp_path / "log"
    command = ["train", str(tmp_path / "data"), "--solver", solver, "--pool", "ray"]
    command += ["--dashboard", "--workers", "2", "--out", str(tmp_path / "model")]
    command += [part for each in params for part in ("-p", each)]
    with (
        open(log_path, "wb") as log,
        subprocess.Popen(
            [sys.executable, "-c", SERVE, *command], stderr=log, stdout=log
        ) as process,
    ):
        try:
            page, token, metrics = wait_for_note(process, log_path)
            headers = auth_header(Path(token))
            expected = {f"ray_{metric_name(gauge)}" for gauge in GAUGES.keys() - without}
            wait_until(process, log_path, lambda: expected - gauges_of(metrics))
            actors, tasks = f"{page}/api/v0/actors", f"{page}/api/v0/tasks?limit=1000"
            names = {(actor, f"xcray:local:worker-{number}") for number in range(2)}
            wait_until(
                process,
                log_path,
                lambda: (
                    names
                    ^ {(each["class_name"], each["name"]) for each in rows_of(actors, headers)}
                ),
            )
            wait_until(
                process,
                log_path,
                lambda: {task} - {each["name"] for each in rows_of(tasks, headers)},
            )
        finally:
            process.send_signal(signal.SIGINT)
        process.wait(SECONDS)


def wait_for_note(process: subprocess.Popen[bytes], log: Path) -> tuple[str, str, str]:
    """Return the address of the dashboard, the file of its token, and the address of metrics."""
    wait_until(process, log, lambda: NOTE.search(log.read_text()) is None)
    found = NOTE.search(log.read_text())
    assert found is not None
    return found[1], found[2], found[3]


def wait_until(process: subprocess.Popen[bytes], log: Path, missing: Any) -> None:
    """Wait until `missing` returns nothing any more while a process lives."""
    deadline = time.monotonic() + SECONDS
    while left := missing():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, left
        time.sleep(0.5)


def gauges_of(address: str) -> set[str]:
    """Return the names of the gauges with values at an address of metrics."""
    return {
        line.partition("{")[0]
        for line in get(address, {}).splitlines()
        if line.startswith("ray_xcray_training") and 'run="local"' in line
    }


def rows_of(address: str, headers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rows of a page of Ray's state API."""
    text = get(address, headers)
    rows: list[dict[str, Any]] = json.loads(text)["data"]["result"]["result"] if text else []
    return rows


def get(address: str, headers: Mapping[str, str]) -> str:
    """Return the text at an address; empty while nothing answers there."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(address, headers=dict(headers)), timeout=30) as got:
            return str(got.read().decode())
    except OSError:
        return ""
