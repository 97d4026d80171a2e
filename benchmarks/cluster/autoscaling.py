"""Ray's own autoscaler on one machine: what a job asks for, what nodes come and go, and what they
cost.

`python -m benchmarks.cluster.autoscaling [--cpu-seconds 160] [--longest 30] [--nodes 3] [--cpus 2]
[--policies thrift all]`

A head without CPUs; worker nodes are started and ended by Ray's provider for tests, on this
machine, within seconds. The labels sleep, so that two cores can play many: nothing but the coming
and going is real. (The autoscaler's version 2 can't be had so: what its provider needs is not in
Ray's wheel.)

`--join` measures something else: a job on one node, a second one joins: how long until it has its
first batch, step by step.
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
from xcray.workers.pool import Result, StopFlag
from xcray.workers.ray.pool import RayPool
from xcray.workers.ray.session import (
    connect,
    environment,
    free_port,
    local_ray_environment,
    make_short_root,
    write_token,
)
from xcray.workers.timeline import Span

HEAD = "f" * 51 + "00000"  # the identity of a head that the provider takes for its own
SLEEP = 0.1  # seconds between two looks at the flag
LABEL = 0.05  # seconds of a label


@dataclass(frozen=True)
class Sleeping:
    """Work that takes time and nothing else. longest: seconds of label 0, if they are more than 0;
    or less, when `gate` exists.
    """

    longest: float
    gate: str = ""
    counter: ClassVar[tuple[str, str]] = (
        "xcray_labels_slept",
        "Labels slept through by this worker",
    )

    def warm_up(self) -> None:
        """Nothing is compiled."""

    def open(self) -> Any:
        """Nothing is needed."""
        return self

    def load(self, *shared: Any) -> Any:
        """Nothing is shared."""
        return self

    def decode_result(self, result: Any) -> Any:
        """The labels."""
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
    """A head without CPUs and an autoscaler of up to `nodes` nodes; gives its address. What it
    started ends with it.
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
    """A free port that is none of the ports that Ray gives to workers."""
    while 10001 <= (port := free_port()) <= 20000:
        pass
    return port


def end_all(root: Path) -> None:
    """End every process that has the folder in its environment: the head, and the nodes that its
    autoscaler started.
    """
    mine, own = str(root).encode(), os.getpid()
    for _ in range(50):
        found = [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if pid != own and mine in _environment_of(pid)
        ]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)


def _environment_of(pid: int) -> bytes:
    """The environment a process was started with; empty when it is gone or another's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _until(there: Callable[[], bool], head: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the head."""
    ends = time.monotonic() + 120
    while not there():
        if head.poll() is not None or time.monotonic() > ends:
            raise SystemExit(f"the head did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def _config(address: str, nodes: int, cpus: int, idle: float) -> dict[str, Any]:
    """What the autoscaler is told."""
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
    """Counts living nodes that have CPUs, twice a second, in a thread of its own."""

    def __init__(self) -> None:
        self.counts: list[tuple[float, int]] = []
        self.first: dict[str, float] = {}  # node -> when it was first seen
        self._stop = threading.Event()
        self._began = time.time()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Look."""
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
        """Until the autoscaler has taken all nodes away."""
        ends = time.monotonic() + seconds
        while self.counts[-1][1] and time.monotonic() < ends:
            time.sleep(0.25)

    def told(self, cpu_seconds: float, cpus: int) -> dict[str, Any]:
        """Node-seconds, and how many nodes there were when."""
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
    """One job from no node at all, until all nodes are gone again."""
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
        results: list[Result] = []
        began = time.monotonic()
        run_schedule(
            LabelScheduler(range(n), cost, workers=workers),
            pool,
            commit=results.append,
            stop=StopFlag(),
            tick=lambda: None,
        )
        makespan = time.monotonic() - began
        watch.wait_for_none(chosen.idle + 30.0)
        told = watch.told(float(cost.sum()), chosen.cpus)
    done = sorted(label for result in results for label in result.task.labels)
    assert done == list(range(n)), "labels are missing"
    return {
        "policy": policy,
        "seconds": round(makespan, 1),
        "workers": len({r.worker for r in results}),
        **told,
    }


def joined(chosen: Any) -> dict[str, Any]:
    """A second node joins a job on one: seconds from the call that starts it to each step."""
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
            found = wait(seconds)
            if len(watch.first) > 1 and any(isinstance(each, Joined) for each in found):
                steps.setdefault("worker_is_ready", time.time() - late[0])
            return found

        def work() -> None:
            schedule = LabelScheduler(range(n), np.full(n, LABEL), workers=2 * chosen.cpus)
            run_schedule(
                schedule,
                pool,
                commit=lambda _: None,
                stop=StopFlag(),
                tick=lambda: None,
                record=record,
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
        )  # Ray sets signal handlers: in the main thread
        thread.join()
        watch.told(1.0, 1)
    steps["node_is_registered"] = sorted(watch.first.values())[-1] - late[0]
    return {name: round(steps[name], 2) for name in sorted(steps, key=steps.__getitem__)}


def main() -> None:
    """Print a row for each policy, and the JSON."""
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and what was started is ended
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
