"""Trainings by shards on Ray: killed actors, a lost node of two, and nodes without the data."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import ray as ray_module

from tests.support.ray_clusters import QUICK
from tests.support.shard_toy import (
    GRID,
    Toy,
    ToyWork,
    TrainingRun,
    trained,
    trained_dsmlr,
)
from tests.support.waiting import until
from xcray.errors import Stopped
from xcray.system.processes import descendants
from xcray.workers.pool import StopFlag
from xcray.workers.ray.session import environment, local_ray
from xcray.workers.ray.worker_group import RayWorkerGroup
from xcray.workers.timeline import DONE, LOST

pytestmark = [pytest.mark.ray, pytest.mark.drill]
STORE = 80 << 20  # bytes of the object store of a node
WORK = ToyWork(Toy(pause=0.01))


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Yield the address of a local Ray with two CPUs."""
    with environment(QUICK), local_ray(num_cpus=2, object_store_memory=STORE) as address:
        yield address


@contextmanager
def one_more_node(address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a second node with two CPUs on this machine, and kill all its processes at the end."""
    command = [sys.executable, "-m", "xcray.workers.ray.session", "start", "--block"]
    command += [f"--address={address}", "--num-cpus=2", f"--object-store-memory={STORE}"]
    node = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        # one CPU of four is held; workers of the test before hold theirs for a moment
        until(lambda: ray_module.available_resources().get("CPU") == 3.0)
        yield node
    finally:
        kill(node)
        node.wait()


def kill(node: subprocess.Popen[bytes]) -> None:
    """Kill all processes of a node at once, like a power failure."""
    for pid in [node.pid, *descendants(node.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> TrainingRun:
    """Return the training by one worker in this thread."""
    return trained(tmp_path_factory.mktemp("alone"), "serial", 1)


class Fault:
    """Runs an action once, in the middle of the interval after a number of sync points."""

    def __init__(self, sync_points: int, act) -> None:
        self._sync_points = sync_points
        self._act = act
        self.triggered = False

    def on_progress(self, progress) -> None:
        """Run the action if a `RunProgress` is far enough."""
        done = progress.newest.get("epoch", 0)
        if not self.triggered and done >= self._sync_points and progress.done > done + 0.1:
            self.triggered = True
            self._act()


def on_ray(
    folder: Path,
    sync_points: int,
    act,
    order: str = "ring",
    work: ToyWork = WORK,
    job: str = "faults",
):
    """Train on two actors with one fault; return the result and the spans of the workers."""
    work = replace(work, solver=replace(work.solver, order=order))
    group, spans = RayWorkerGroup(work, 2, nullcontext(), job), []
    fault = Fault(sync_points, lambda: act(group))
    result = trained(
        folder,
        group,
        work=work,
        between=0.0,
        on_progress=fault.on_progress,
        record=spans.append,
    )
    assert fault.triggered
    return result, spans


def kill_actor(group: RayWorkerGroup) -> None:
    """Kill the process of one worker with SIGKILL."""
    os.kill(ray_module.get(group._actors["worker-1"].pid.remote()), signal.SIGKILL)


def test_kill_minus_nine_of_an_actor_changes_no_bit(cluster, reference, tmp_path):
    result, spans = on_ray(tmp_path, 2, kill_actor, "sync")
    assert result.bits == reference.bits
    assert result.outcome.lost == 1
    # none if it was waiting for the other worker when it was killed
    assert {span.worker for span in spans if span.outcome == LOST} <= {"worker-1"}


class Teams:
    """Creates Ray worker groups, and keeps the last one for the fault."""

    def __init__(self, job: str) -> None:
        self._job = job
        self.last = None

    def __call__(self, work, workers: int) -> RayWorkerGroup:
        """Return a worker group that is not open."""
        self.last = RayWorkerGroup(work, workers, nullcontext(), self._job)
        return self.last


def test_dsmlr_has_the_same_bits_after_a_kill_among_exact_gradients(cluster, tiny, tmp_path):
    """The ring has no barrier, and checkpoints include the L-BFGS state of the blocks."""
    groups, how = Teams("dsmlr"), {"lbfgs_switch_tol": 1e9, "epochs": 6}
    fault = Fault(4, lambda: kill_actor(groups.last))
    model = trained_dsmlr(tiny, tmp_path / "ray", groups, 2, on_progress=fault.on_progress, **how)
    assert fault.triggered
    assert model.outcome.lost == 1
    assert model.block.digest() == trained_dsmlr(tiny, tmp_path / "one", **how).block.digest()


def test_a_stop_ends_passes_on_ray_and_saves_the_last_sync_point(cluster, reference, tmp_path):
    stop = StopFlag()
    fault = Fault(2, stop.set)
    with pytest.raises(Stopped):
        trained(
            tmp_path,
            RayWorkerGroup(WORK, 2, nullcontext(), "stop"),
            work=WORK,
            stop=stop,
            on_progress=fault.on_progress,
        )
    assert max(path.name for path in tmp_path.glob("checkpoint-*")) == "checkpoint-000002"
    assert trained(tmp_path, "threads", 3).bits == reference.bits


def test_under_nomad_no_block_is_lost_or_doubled(cluster, tiny, tmp_path):
    """All labels are there once, and the objective is that of a training without losses."""
    groups, spans = Teams("nomad"), []
    fault = Fault(3, lambda: kill_actor(groups.last))
    how = {
        "order": "uniform",
        "epochs": 12,
        "history": 0,
        "on_progress": fault.on_progress,
        "record": spans.append,
    }
    model = trained_dsmlr(tiny, tmp_path / "ray", groups, 2, **how)
    assert fault.triggered
    assert model.outcome.lost == 1
    assert [entry["epoch"] for entry in model.outcome.history] == list(
        range(1, model.outcome.epochs + 1)
    )
    assert model.outcome.objective == pytest.approx(
        trained_dsmlr(tiny, tmp_path / "one", epochs=12, history=0).outcome.objective, rel=0.01
    )
    # Two sweeps per epoch, one pass per block.
    assert sum(span.outcome == DONE for span in spans) >= 2 * model.outcome.epochs * GRID.blocks


def test_nodes_that_do_not_see_the_data_get_it_again_after_a_loss(cluster, reference, tmp_path):
    result, _ = on_ray(tmp_path, 1, kill_actor, work=ToyWork(Toy(pause=0.005), data_visible=False))
    assert result.bits == reference.bits


def squat():
    """Start an actor that holds a CPU of the head, so that a worker uses the other node."""

    class CpuHolder:
        """An actor that holds a CPU."""

        def ready(self) -> bool:
            """Return True as soon as the actor runs."""
            return True

    holder = ray_module.remote(num_cpus=1)(CpuHolder).remote()
    ray_module.get(holder.ready.remote())
    return holder


@pytest.mark.parametrize("order", ["ring", "uniform"])
def test_a_dead_node_costs_no_block(cluster, reference, tmp_path, order):
    """Training recovers from a dead node with a worker, its shards, and some blocks.

    The head then has room for another worker. In a ring no bit changes; in random order, every
    label is there once.
    """
    holder = squat()
    with one_more_node(cluster) as node:
        places = []

        def act(group: RayWorkerGroup) -> None:
            places.append(dict(group.nodes))
            kill(node)
            ray_module.kill(holder)

        result, _ = on_ray(tmp_path, 2, act, order)
    assert len(set(places[0].values())) == 2, "both nodes must have a worker for this to be a test"
    assert result.bits == reference.bits or order == "uniform"
    assert [(block.lo, block.hi) for block in result.blocks] == [
        (block.lo, block.hi) for block in reference.blocks
    ]
    assert result.outcome.lost >= 1
    assert [entry["epoch"] for entry in result.outcome.history] == [1, 2, 3, 4, 5, 6]
