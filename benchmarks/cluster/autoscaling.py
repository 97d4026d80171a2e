"""Requests, node lifetimes and cost of a job on a Ray cluster with Ray's own autoscaler.

`python -m benchmarks.cluster.autoscaling [--cpu-seconds 160] [--longest 30] [--nodes 3] [--cpus 2]
[--policies thrift all]`

The head has no CPUs. Ray's provider for tests starts and ends worker nodes on this machine within
seconds. The labels sleep instead of computing, so that two cores can simulate many. Only the
autoscaling is real. (Version 2 of the autoscaler cannot be tested this way, because Ray's wheel
lacks the modules that its test provider needs.)

With `--join`, a second node joins a job that runs on one node. The seconds until its first batch
are measured step by step.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import ray

from benchmarks.cluster.ray_store import QUICK, several_nodes
from benchmarks.common import arguments
from xcray.arrays import Int32
from xcray.errors import Stopped
from xcray.schedule.autoscaling import ScalingPolicy
from xcray.schedule.events import Joined
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.workers.driver import run_schedule
from xcray.workers.observer import CollectResults, RunObserver
from xcray.workers.pool import Result, StopFlag
from xcray.workers.ray.pool import RayPool
from xcray.workers.ray.session import (
    connect,
    environment,
    free_port,
    local_ray_environment,
    make_short_root,
)
from xcray.workers.ray.token import write_token
from xcray.workers.timeline import Span

HEAD = "f" * 51 + "00000"  # the node id that the provider uses for the head
SLEEP = 0.1  # seconds between two checks of the stop flag
LABEL = 0.05  # seconds per label


class Recorder(RunObserver[Result]):
    """Passes spans to a function."""

    def __init__(self, function: Callable[[Span], None]) -> None:
        self._function = function

    def record(self, span: Span) -> None:
        """Record a span."""
        self._function(span)


@dataclass(frozen=True)
class Sleeping:
    """Worker task that sleeps instead of computing.

    longest: seconds of label 0, if positive. The sleep ends early when the file `gate` exists.
    """

    longest: float
    gate: str = ""
    counter: ClassVar[tuple[str, str]] = (
        "xcray_labels_slept",
        "Labels processed by this worker",
    )

    def warm_up(self, local: Any = None) -> None:
        """Do nothing: there are no kernels to compile."""

    def open(self) -> Any:
        """Do nothing: no data are needed."""
        return self

    def load(self, *shared: Any) -> Any:
        """Do nothing: no arrays are shared."""
        return self

    def decode_result(self, result: Any) -> Any:
        """Return the labels unchanged."""
        return result

    def solve(self, local: Any, labels: Int32, stopped: Callable[[], bool] = lambda: False) -> Any:
        """Sleep as long as the labels take."""
        ends = time.monotonic() + sum(
            self.longest if label == 0 and self.longest else LABEL for label in labels.tolist()
        )
        while (left := ends - time.monotonic()) > 0.0:
            if stopped():
                raise Stopped("called off")
            if self.gate and 0 in labels and Path(self.gate).exists():
                break
            time.sleep(min(SLEEP, left))
        return labels.tolist()


@contextmanager
def autoscaled(nodes: int, cpus: int, idle: float) -> Iterator[str]:
    """Start a head without CPUs and an autoscaler of up to `nodes` nodes, and yield the address.

    All processes are ended on exit.
    """
    root, port = make_short_root(), free_port_below()
    write_token(root / "token")
    config = root / "autoscaler.json"
    address = f"{ray.util.get_node_ip_address()}:{port}"
    config.write_text(json.dumps(_config(address, nodes, cpus, idle)))
    settings = {
        **local_ray_environment(root / "token"),
        **QUICK,
        "RAY_ADDRESS": None,
        "RAY_TMPDIR": str(root),
    }
    fake = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    words = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        "--block",
        f"--port={port}",
        "--num-cpus=0",
    ]
    words += [
        f"--temp-dir={root / 'r'}",
        "--include-dashboard=false",
        "--object-store-memory=80000000",
        f"--autoscaling-config={config}",
    ]
    with environment(settings):
        own = {**{k: v for k, v in os.environ.items() if k not in fake}, **fake}
        with (root / "log").open("wb") as log:
            head = subprocess.Popen(words, env=own, stdout=log, stderr=log, start_new_session=True)
        try:
            _until(
                lambda: b"Ray runtime started" in (root / "log").read_bytes(), head, root / "log"
            )
            yield address
        finally:
            end_all(root)
            head.wait()
            shutil.rmtree(root, ignore_errors=True)


def free_port_below() -> int:
    """Return a free port below the ports that Ray gives to workers."""
    while 10001 <= (port := free_port()) <= 20000:
        pass
    return port


def end_all(root: Path) -> None:
    """End every process that has the folder in its environment.

    These are the head and the nodes that its autoscaler started.
    """
    mine, own = str(root).encode(), os.getpid()
    for _ in range(50):
        results = [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if pid != own and mine in _environment_of(pid)
        ]
        if not results:
            return
        for pid in results:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)


def _environment_of(pid: int) -> bytes:
    """Return the environment of a process, empty if it has ended or belongs to another user."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _until(there: Callable[[], bool], head: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until `there()` holds. Raises SystemExit with the log if the head ends before."""
    ends = time.monotonic() + 120
    while not there():
        if head.poll() is not None or time.monotonic() > ends:
            raise SystemExit(f"the head did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def _config(address: str, nodes: int, cpus: int, idle: float) -> dict[str, Any]:
    """Return the configuration of the autoscaler."""
    provider = {
        "type": "fake_multinode",
        "gcs_address": address,
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
    }
    provider |= {"disable_launch_config_check": True, "head_node_id": HEAD}
    kinds = {
        "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "worker": {
            "resources": {"CPU": cpus, "object_store_memory": 80_000_000},
            "node_config": {},
            "min_workers": 0,
            "max_workers": nodes,
        },
    }
    return {
        "cluster_name": "fake",
        "max_workers": nodes,
        "provider": provider,
        "available_node_types": kinds,
        "head_node_type": "ray.head.default",
        "upscaling_speed": 100.0,
        "idle_timeout_minutes": idle / 60.0,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "initialization_commands": [],
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
    }


class Watch:
    """Thread that counts the living nodes with CPUs twice per second."""

    def __init__(self) -> None:
        self.counts: list[tuple[float, int]] = []
        self.first: dict[str, float] = {}  # node -> when it was first seen
        self._stop = threading.Event()
        self._began = time.time()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Sample the nodes until the watch is stopped."""
        while not self._stop.wait(0.25):
            nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
            alive = [
                each["NodeID"] for each in nodes if each["Alive"] and each["Resources"].get("CPU")
            ]
            now = time.time()
            self.counts.append((now - self._began, len(alive)))
            for node in alive:
                self.first.setdefault(node, now)

    def wait_for_none(self, seconds: float) -> None:
        """Wait until the autoscaler has removed all nodes."""
        ends = time.monotonic() + seconds
        while self.counts[-1][1] and time.monotonic() < ends:
            time.sleep(0.25)

    def usage(self, cpu_seconds: float, cpus: int) -> dict[str, Any]:
        """Return the node-seconds and the number of nodes over time."""
        self._stop.set()
        self._thread.join()
        cost = sum(
            (b - a) * n for (a, n), (b, _) in zip(self.counts, self.counts[1:], strict=False)
        )
        changes = [
            self.counts[0],
            *(b for a, b in zip(self.counts, self.counts[1:], strict=False) if a[1] != b[1]),
        ]
        return {
            "node_seconds": round(cost, 1),
            "ideal": round(cpu_seconds / cpus, 1),
            "over_ideal": round(cost * cpus / cpu_seconds, 2),
            "nodes": [(round(when, 1), n) for when, n in changes],
        }


def run(chosen: Any, policy: str) -> dict[str, Any]:
    """Run one job from zero nodes until all nodes are removed again."""
    n = int((chosen.cpu_seconds - chosen.longest) / LABEL)
    cost = np.array([chosen.longest or LABEL] + [LABEL] * (n - 1))
    workers = chosen.nodes * chosen.cpus
    with autoscaled(chosen.nodes, chosen.cpus, chosen.idle) as address, connect(address):
        watch, thrift = (
            Watch(),
            ScalingPolicy(node_seconds=chosen.start) if policy == "thrift" else None,
        )
        pool = RayPool(
            Sleeping(chosen.longest), workers, nullcontext(), policy, tuple, policy=thrift
        )
        collected = CollectResults[Result]()
        began = time.monotonic()
        run_schedule(
            LabelScheduler(range(n), cost, workers=workers),
            pool,
            collected,
            stop=StopFlag(),
        )
        results = collected.results
        makespan = time.monotonic() - began
        watch.wait_for_none(chosen.idle + 30.0)
        report = watch.usage(float(cost.sum()), chosen.cpus)
    done = sorted(label for result in results for label in result.task.labels)
    assert done == list(range(n)), "labels are missing"
    return {
        "policy": policy,
        "seconds": round(makespan, 1),
        "workers": len({r.worker for r in results}),
        **report,
    }


def joined(chosen: Any) -> dict[str, Any]:
    """Add a second node to a job on one node; return the seconds from its start to each step."""
    n = int(chosen.cpu_seconds / LABEL)
    steps: dict[str, float] = {}
    with several_nodes(chosen.cpus) as cluster:
        pool = RayPool(
            Sleeping(0.0),
            2 * chosen.cpus,
            nullcontext(),
            "join",
            tuple,
            policy=ScalingPolicy(node_seconds=chosen.start),
        )
        late, wait, settle = [time.time()], pool.wait, pool._on_located

        def settled(worker: str, reference: Any) -> Any:
            if watch.first and len(watch.first) > 1:
                steps.setdefault("actor_has_a_process", time.time() - late[0])
            return settle(worker, reference)

        def waiting(seconds: float) -> Any:
            result = wait(seconds)
            if len(watch.first) > 1 and any(isinstance(each, Joined) for each in result):
                steps.setdefault("worker_is_ready", time.time() - late[0])
            return result

        def work() -> None:
            schedule = LabelScheduler(range(n), np.full(n, LABEL), workers=2 * chosen.cpus)
            run_schedule(
                schedule,
                pool,
                Recorder(record),
                stop=StopFlag(),
            )

        def record(span: Span) -> None:
            node = pool.nodes.get(span.worker, "/").split("/")[1]
            if len(set(pool.nodes.values())) > 1 and not pool.nodes["worker-0"].endswith(node):
                steps.setdefault("first_batch_begun", pool._opened + span.started - late[0])

        pool.wait, pool._on_located = waiting, settled  # type: ignore[method-assign]
        watch, thread = Watch(), threading.Thread(target=work, daemon=True)
        thread.start()
        time.sleep(10.0)
        late[0] = time.time()
        cluster.add_node(
            num_cpus=chosen.cpus, object_store_memory=80_000_000
        )  # in the main thread, because Ray sets signal handlers
        thread.join()
        watch.usage(1.0, 1)
    steps["node_is_registered"] = sorted(watch.first.values())[-1] - late[0]
    return {name: round(steps[name], 2) for name in sorted(steps, key=steps.__getitem__)}


def main() -> None:
    """Print one row per policy, and the JSON."""
    chosen = arguments(
        __doc__ or "",
        cpu_seconds={"type": float, "default": 160.0},
        longest={"type": float, "default": 30.0},
        nodes={"type": int, "default": 3},
        cpus={"type": int, "default": 2},
        start={"type": float, "default": 10.0},
        idle={"type": float, "default": 6.0},
        policies={"nargs": "+", "default": ["thrift", "all"]},
        join={"action": "store_true"},
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # runs the clean-up
    if chosen.join:
        print(json.dumps(joined(chosen)))
        return
    rows = []
    for policy in chosen.policies:
        rows.append(run(chosen, policy))
        print(rows[-1], flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
