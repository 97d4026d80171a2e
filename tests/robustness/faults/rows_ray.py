"""Rows about Ray: the head, its object store, its messages.

Each row starts its own Ray and ends only that one.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from tests.robustness.faults.catalogue import row
from tests.robustness.faults.rows_runners import drained, same_model
from tests.robustness.faults.service import Service
from tests.robustness.faults.stage import Stage, kill, until
from tests.robustness.faults.work import MIDDLE, SLOW, at_share
from xcray.data.build import BuildOptions, build
from xcray.system.processes import PROC, find_descendants
from xcray.training import TrainResult, TrainSpec, train
from xcray.workers.ray.session import environment, local_ray
from xcray.workers.timeline import LOST, read_streams

STORE = 80 << 20  # bytes; the smallest object store that Ray accepts
PPD: dict[str, Any] = {"solver": "ppdsparse", "params": {"eps": 1e-4}}


class Lab:
    """Trains on one data set, each training in its own folder."""

    def __init__(self, stage: Stage, **sizes: int) -> None:
        self.stage = stage
        options = {"test_fraction": 0.2, "synthetic": {**MIDDLE, **sizes}}
        self.data = build("synthetic", {}, stage.folder / "data", BuildOptions.from_dict(options))

    def train(self, name: str, how: dict[str, Any], pool: str) -> TrainResult:
        """Run one training with two workers to its end."""
        place = self.stage.place(name)
        spec = TrainSpec(str(self.data.path), pool=pool, workers=2, **how)
        return train(spec, run_dir=place / "run", out=place / "model", job=f"job-{name}")

    def batches_lost(self, name: str) -> list[float]:
        """Return the seconds of work of each batch that was lost with its worker."""
        table = read_streams(self.stage.folder / name / "run")
        return list(
            table.filter(pc.equal(table.column("outcome"), LOST)).column("seconds").to_pylist()
        )


def named(roots: list[int], word: str) -> list[int]:
    """Return the descendants of `roots` whose program name contains `word`."""
    results = []
    for process in find_descendants(roots):
        with contextlib.suppress(OSError):
            if word in Path(os.readlink(PROC / str(process.pid) / "exe")).name:
                results.append(process.pid)
    return results


@row(
    "F6",
    "kill -9 of Ray's head",
    "SIGKILL of the gcs_server of the service's own local Ray while a job trains on it",
    "tests/workers/ray/test_local_cluster.py",
    limit=600,
)
def head_killed(stage: Stage) -> None:
    service = Service(stage)
    service.up()
    data = service.dataset(**MIDDLE)
    plain = service.ended(service.submit(data, "plain", "plain", **SLOW))
    how = {**SLOW, "pool": "ray", "workers": 2}
    for turn in range(min(1, stage.runs)):
        job = service.submit(data, "m", f"h{turn}", **how)
        state = at_share(service.http, job, 0.2)
        heads = named([os.getpid()], "gcs_server")
        assert len(heads) == 1, f"heads: {heads}"
        assert state["status"] == "RUNNING", state
        kill(heads[0])
        began = time.monotonic()

        def runs_again(job: str = job, attempt: int = state["attempt"]) -> bool:
            predicted = service.predict("plain")
            stage.expect(
                predicted.status_code == 200, f"a prediction was answered {predicted.status_code}"
            )
            stage.expect(
                service.http.get("/healthz").status_code == 200, "the service is not alive"
            )
            now = service.job(job)
            return now["status"] == "SUCCEEDED" or (
                now["attempt"] > attempt and now["phase"] == "TRAINING"
            )

        until(runs_again, "the job trains again", 240, 0.2)
        stage.measurements.recovery.append(time.monotonic() - began)
        same_model(stage, service.ended(job, 240), plain["result"]["sha256"])
        stage.measurements.runs += 1
    drained(stage, service)


@row(
    "F9",
    "the object store is full",
    "a training rotates blocks of three times the 80 MB of the store",
    "tests/workers/ray/test_memory.py",
    limit=600,
)
def store_full(stage: Stage) -> None:
    lab = Lab(stage, rows=400, features=20_000, labels=3000)
    how: dict[str, Any] = {"solver": "dsmlr", "params": {"epochs": 1, "order": "sync"}}
    began = time.monotonic()
    sha = lab.train("plain", how, "threads").sha256
    plain = time.monotonic() - began
    with local_ray(num_cpus=2, object_store_memory=STORE):
        began = time.monotonic()
        result = lab.train("full", how, "ray")
        seconds = time.monotonic() - began
    stage.expect(result.sha256 == sha, "with a full object store the model has other bits")
    stage.measurements.details |= {
        "slower": f"{seconds / plain:.1f} x",
        "weights_mb": round(20_000 * 3000 * 4 / 1e6),
        "store_mb": STORE >> 20,
    }
    stage.measurements.runs += 1


@row(
    "F22",
    "Ray's messages are lost",
    "RAY_testing_rpc_failure: one request of PushTask in ten and one reply in five are lost, six in all",
    limit=600,
)
def messages_lost(stage: Stage) -> None:
    lab = Lab(stage)
    sha = lab.train("plain", PPD, "threads").sha256
    loss = {
        "CoreWorkerService.grpc_client.PushTask": {
            "num_failures": 6,
            "req_failure_prob": 10,
            "resp_failure_prob": 20,
        }
    }
    with (
        environment({"RAY_testing_rpc_failure": json.dumps(loss)}),
        local_ray(num_cpus=2, object_store_memory=STORE),
    ):
        result = lab.train("lossy", PPD, "ray")
    stage.expect(result.sha256 == sha, "with lost messages the model has other bits")
    lost_seconds = lab.batches_lost("lossy")
    stage.expect(bool(lost_seconds), "no message was lost that mattered")
    stage.measurements.details |= {
        "batches_lost": len(lost_seconds),
        "seconds_of_work_lost": round(sum(lost_seconds), 1),
    }
    stage.measurements.note(
        "a lost message costs a worker, which is replaced; five for each place end the attempt as WORKERS_LOST"
    )
    stage.measurements.runs += len(lost_seconds)
