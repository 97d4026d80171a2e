"""Corrections by REST to a served alias: seconds from the last POST to the first new answer.

`python -m benchmarks.training.corrections --data DIR [--sets gutenberg_lcsh] [--corrections 100]
[--gate "P@1 >= -0.5"] [--turns 3]`

A service trains a model of the set, with an alias that answers a request after the other. In each
turn `corrections` training rows are sent as feedback, with a label of another row in place of one
of theirs; a data set is made of the feedback, and an update with the gate moves the alias. The next
turn goes on from there. Figures of each turn:

- seconds: from the last POST of feedback to the first answer of the new version.
- post: seconds of all POSTs of feedback.
- data_set, queue, start, update, gate, switch: seconds of the parts: until the data set is ready,
  the job has a runner, the runner has loaded and knows which labels to solve, the new model is
  written, it is published, compared with the old one and has the alias, and the first answer comes.
- cpu: processor seconds of the service with its child processes, answers included.
- answers: during that time; failed: those that were not 200.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.harness import dataset, medians, run_benchmark, service, table
from benchmarks.serving.__main__ import sparse
from xcray.client import Client
from xcray.data.dataset import Dataset
from xcray.errors import XcrayError

ALIAS = "set@live"
PAUSE = 0.02  # seconds between two requests, and between two looks at a state
WAIT_SECONDS = 120.0
PARTS = ("data_set", "queue", "start", "update", "gate", "switch")
ENDS = ("STARTING", "TRAINING", "PUBLISHING", "SUCCEEDED")  # of the parts of the job


class Answers:
    """Requests to the alias, one after the other; the times of the answers by version."""

    def __init__(self, client: Client, rows: list[dict[str, Any]]) -> None:
        self.first = dict[int, float]()
        self.answers = self.failed = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(client, itertools.cycle(rows)), daemon=True
        )

    def __enter__(self) -> Answers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self, client: Client, rows: Iterator[dict[str, Any]]) -> None:
        """Ask until it ends."""
        while not self._ended.wait(PAUSE):
            self.answers += 1
            try:
                version = client.predict(ALIAS, [next(rows)])["model"]["version"]
                self.first.setdefault(version, time.time())
            except XcrayError:
                self.failed += 1

    def wait_for(self, version: int) -> float:
        """Return when the first answer of a version came."""
        began = time.time()
        while version not in self.first:
            if time.time() > began + WAIT_SECONDS:
                raise SystemExit(f"no answer of version {version} after {WAIT_SECONDS} s")
            time.sleep(PAUSE)
        return self.first[version]


def cpu_seconds(process: psutil.Process) -> float:
    """Return the processor seconds of a process and its children, ended ones included."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(sum(each[:4]) for each in times)  # user, system, and those of ended children


def send_feedback(client: Client, data: Dataset, n: int, seed: int) -> float:
    """Send n rows, each with a label of another row in place of one of its own.

    Returns when the last one is sent.
    """
    rng, names, Y = np.random.default_rng(seed), data.label_names, data.train.Y
    for row in rng.choice(data.train.n_rows, n, replace=False).tolist():
        labels = {*Y.row(row)[1:].tolist(), int(rng.choice(Y.indices))}
        right = [names[k] for k in sorted(labels)]
        last = time.time()
        client.models.give_feedback(ALIAS, sparse(data.train.X.row(row)), right=right)
    return last


def phase_times(client: Client, job: str) -> dict[str, float]:
    """Return when each status and phase of a job began, after it has ended."""
    times = dict[str, float]()
    for event in client.jobs.events(job):
        name = event["data"].get("phase") or event["data"].get("status", "")
        times.setdefault(name, datetime.fromisoformat(event["time"]).timestamp())
    return times


def correct(
    client: Client, process: psutil.Process, data: Dataset, turn: int, options: Any
) -> dict[str, Any]:
    """Return the figures of a turn."""
    instances = [sparse(data.test.X.row(i)) for i in range(100)]
    with Client(client.url, retries=0) as asked, Answers(asked, instances) as answers:
        answers.wait_for(turn)
        first = time.time()
        began = send_feedback(client, data, options.corrections, turn)
        cpu, n_before = cpu_seconds(process), answers.answers
        changed = client.datasets.from_feedback(ALIAS, name=f"set-{turn}")
        while client.datasets.get(changed["id"])["status"] == "BUILDING":
            time.sleep(PAUSE)
        times = [began, time.time()]
        job = client.jobs.update(ALIAS, dataset=changed["id"], gate=options.gate, alias="live")
        phases = phase_times(client, job["id"])
        result = client.jobs.get(job["id"])["result"]
        if "alias" not in (result or {}):
            raise SystemExit(f"the alias has not moved: {result}")
        times += [phases[name] for name in ENDS]
        times.append(answers.wait_for(turn + 1))
        seconds = times[-1] - began
        cpu = cpu_seconds(process) - cpu
    parts = dict(zip(PARTS, np.diff(times).tolist(), strict=True))
    figures = {"seconds": seconds, **parts, "post": began - first, "cpu": cpu}
    return {**figures, "answers": answers.answers - n_before, "failed": answers.failed}


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Measure every set."""
    rows = []
    for name in options.sets if options.data else ["synthetic"]:
        data = dataset(name, options.data, folder / "sets")
        home = folder / f"home-{name}"
        home.mkdir()
        settings = {"XCRAY_DATASET_ROOTS": json.dumps([str(data.path.parent)])}
        with service(home, 1, settings) as (url, process), Client(url) as client:
            made = client.datasets.register(data.path, name="set")
            client.datasets.wait(made["id"])
            job = client.jobs.submit(dataset="set", model="set", pool="threads", keep_duals=True)
            client.jobs.wait(job["id"])
            client.models.set_alias("set", "live", 1)
            turns = []
            for turn in range(1, options.turns + 1):
                turns.append(correct(client, process, data, turn, options))
                print(table(turns[-1:], list(turns[-1])), flush=True)
        rows.append({"set": name, "turns": turns, **medians(turns)})
    wrong = [f"{row['set']}: a request failed" for row in rows if row["failed"]]
    return {"benchmark": "corrections", "rows": rows, "wrong": wrong}


def main() -> None:
    """Measure every set and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"turns": 1, "corrections": 5},
        sets={"nargs": "+", "default": ["gutenberg_lcsh"]},
        corrections={"type": int, "default": 100, "help": "rows with a corrected label"},
        turns={"type": int, "default": 3},
        gate={"default": "P@1 >= -0.5", "help": "conditions on the new version"},
    )


if __name__ == "__main__":
    main()
