"""Rows about Ray: workers, a node, the head, its object store, its messages.

Each row starts its own Ray and ends only that one.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from tests.robustness.faults.catalogue import row
from tests.robustness.faults.rows_runners import drained, same_model
from tests.robustness.faults.service import Service
from tests.robustness.faults.stage import Stage, kill, until
from tests.robustness.faults.work import MIDDLE, SLOW, at_share
from xcray.cli.terminal.processes import PROC, find_descendants
from xcray.data.build import BuildOptions, build
from xcray.telemetry.progress import Progress
from xcray.training import TrainResult, TrainSpec, train
from xcray.workers.ray.session import environment, local_ray
from xcray.workers.timeline import LOST, read_streams

ANSWER_SECONDS = 1.0
STORE = 80 << 20  # bytes; the smallest object store that Ray accepts
SOON = {  # a node with killed processes counts as dead after two seconds, not thirteen
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    # A dead node refuses connections at once; a slow one has half a minute to answer.
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "3",
}
PPD: dict[str, Any] = {"solver": "ppdsparse", "params": {"eps": 1e-4}}
MLR: dict[str, Any] = {"solver": "dsmlr", "params": {"epochs": 20, "order": "sync"}}
NARROW = {"rows": 3000, "features": 500, "labels": 200}  # its weights are dense


class Lab:
    """Trains on one data set, each training in its own folder."""

    def __init__(self, stage: Stage, **sizes: int) -> None:
        self.stage = stage
        options = {"test_fraction": 0.2, "synthetic": {**MIDDLE, **sizes}}
        self.data = build("synthetic", {}, stage.folder / "data", BuildOptions.from_dict(options))

    def train(
        self,
        name: str,
        how: dict[str, Any],
        pool: str,
        workers: int,
        watch: Callable[[Progress], None] | None = None,
    ) -> TrainResult:
        """Run one training to its end."""
        place = self.stage.place(name)
        spec = TrainSpec(str(self.data.path), pool=pool, workers=workers, **how)
        return train(
            spec, run_dir=place / "run", out=place / "model", progress=watch, job=f"job-{name}"
        )

    def batches_lost(self, name: str) -> list[float]:
        """Return the seconds of work of each batch that was lost with its worker."""
        table = read_streams(self.stage.folder / name / "run")
        return list(
            table.filter(pc.equal(table.column("outcome"), LOST)).column("seconds").to_pylist()
        )

    def lost_seconds(self, name: str) -> float:
        """Return the seconds of work that were lost with workers."""
        return float(sum(self.batches_lost(name)))


class Killer:
    """Acts on a worker once a share of a training is done, and measures the recovery.

    Recovery ends when a new worker has replaced the lost one.
    """

    def __init__(self, stage: Stage, name: str, share: float, act: Callable[[int], None]) -> None:
        self._stage = stage
        self._prefix = f"xcray:job-{name}:"
        self._share = share
        self._act = act
        self._at: float | None = None
        self._next = 0.0  # time of the next check
        self._before: set[int] = set()
        self.triggered = False

    def __call__(self, progress: Progress) -> None:
        """Handle a progress report of the training."""
        if (
            self._at is None
            and progress.phase == "TRAINING"
            and progress.total
            and progress.done >= self._share * progress.total
        ):
            self._before = self._pids()
            if self._before:
                self._at, self.triggered = time.monotonic(), True
                self._act(self._stage.random.choice(sorted(self._before)))
        # Dead workers do not answer, so frequent queries would delay the training.
        elif self._before and time.monotonic() >= self._next:
            if self._at is not None and self._pids() - self._before:
                self._stage.measurements.recovery.append(time.monotonic() - self._at)
                self._before = set()
            self._next = time.monotonic() + ANSWER_SECONDS

    def _pids(self) -> set[int]:
        """Return the process ids of the workers that answer within `ANSWER_SECONDS`."""
        import ray

        requests = []
        for name in ray.util.list_named_actors():
            if name.startswith(self._prefix):
                # The actor can be dead or not started yet.
                with contextlib.suppress(ray.exceptions.RayError, ValueError):
                    requests.append(ray.get_actor(name).pid.remote())
        results = set()
        for reference in (
            ray.wait(requests, num_returns=len(requests), timeout=ANSWER_SECONDS)[0]
            if requests
            else ()
        ):
            with contextlib.suppress(ray.exceptions.RayError):
                results.add(int(ray.get(reference)))
        return results


def _workers_killed(stage: Stage, how: dict[str, Any], **sizes: int) -> None:
    """Kill one of two workers at different shares of a training.

    The model must be identical to one of an undisturbed training.
    """
    lab = Lab(stage, **sizes)
    sha = lab.train("plain", how, "threads", 2).sha256
    with local_ray(num_cpus=2, object_store_memory=STORE):
        for turn in range(min(stage.runs, 3)):
            killer = Killer(stage, f"k{turn}", (0.1, 0.5, 0.9)[turn % 3], kill)
            result = lab.train(f"k{turn}", how, "ray", 2, killer)
            stage.expect(killer.triggered, "the training ended before a worker was killed")
            stage.expect(result.sha256 == sha, "after a killed worker the model has other bits")
            stage.measurements.redone.append(
                lab.lost_seconds(f"k{turn}") / max(float(result.report["core_seconds"]), 1e-9)
            )
            stage.measurements.runs += 1


@row(
    "F1",
    "kill -9 of a solver's worker",
    "SIGKILL of an actor by its process id, at 10, 50, 90 %",
    "tests/workers/test_pools.py",
    "tests/workers/ray/test_batch.py",
)
def worker_killed(stage: Stage) -> None:
    _workers_killed(stage, PPD)


@row(
    "F2",
    "kill -9 of a worker that holds rows",
    "the same for DS-MLR, whose workers hold shards of rows: back to the checkpoint",
    "tests/workers/ray/test_rotation_faults.py",
    "tests/workers/ray/test_worker_group.py",
)
def shard_killed(stage: Stage) -> None:
    _workers_killed(stage, MLR, **NARROW)


@contextlib.contextmanager
def one_more_node(address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a second node with two CPUs on this machine."""
    import ray

    command = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--address",
        address,
        "--num-cpus",
        "2",
        "--object-store-memory",
        str(STORE),
        "--block",
    ]
    node = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: sum(each["Alive"] for each in ray.nodes()) == 2, "the second node")
        yield node
    finally:
        for process in find_descendants([node.pid]):
            kill(process.pid)
        node.wait()


def named(roots: list[int], word: str) -> list[int]:
    """Return the descendants of `roots` whose program name contains `word`."""
    results = []
    for process in find_descendants(roots):
        with contextlib.suppress(OSError):
            if word in Path(os.readlink(PROC / str(process.pid) / "exe")).name:
                results.append(process.pid)
    return results


@row(
    "F5",
    "kill -9 of a node's raylet",
    "SIGKILL of the second node's raylet alone; its workers, cut off, may go on and write",
    "tests/workers/ray/test_rotation_faults.py",
    limit=600,
)
def raylet_killed(stage: Stage) -> None:
    lab = Lab(stage)
    sha = lab.train("plain", PPD, "threads", 2).sha256
    with environment(SOON), local_ray(num_cpus=1, object_store_memory=STORE) as address:
        for turn in range(min(1, stage.runs)):
            with one_more_node(address) as node:
                raylets = named([node.pid], "raylet")
                killer = Killer(
                    stage,
                    f"n{turn}",
                    0.3,
                    lambda _, output=raylets: [kill(pid) for pid in output] and None,
                )
                result = lab.train(f"n{turn}", PPD, "ray", 3, killer)
                stage.expect(killer.triggered and bool(raylets), "no raylet was killed")
                stage.expect(result.sha256 == sha, "after a dead node the model has other bits")
                stage.measurements.redone.append(
                    lab.lost_seconds(f"n{turn}") / max(float(result.report["core_seconds"]), 1e-9)
                )
                stage.measurements.runs += 1
    stage.measurements.note(
        "what a cut-off worker still writes is a part named by its content, which is never read"
    )


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
    "blocks of three times what the store of 80 MB holds rotate",
    "tests/workers/ray/test_memory.py",
    limit=600,
)
def store_full(stage: Stage) -> None:
    lab = Lab(stage, rows=400, features=20_000, labels=3000)
    how: dict[str, Any] = {"solver": "dsmlr", "params": {"epochs": 1, "order": "sync"}}
    began = time.monotonic()
    sha = lab.train("plain", how, "threads", 2).sha256
    plain = time.monotonic() - began
    with local_ray(num_cpus=2, object_store_memory=STORE):
        began = time.monotonic()
        result = lab.train("full", how, "ray", 2)
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
    "RAY_testing_rpc_failure: of PushTask one request in ten and one reply in five are lost, six in all",
    limit=600,
)
def messages_lost(stage: Stage) -> None:
    lab = Lab(stage)
    sha = lab.train("plain", PPD, "threads", 2).sha256
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
        result = lab.train("lossy", PPD, "ray", 2)
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
