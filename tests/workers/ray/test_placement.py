"""Pools on several nodes: nodes are filled one by one, vanish and drain, and no bit changes."""

from __future__ import annotations

import time
from contextlib import nullcontext

import numpy as np
import pytest
import ray

from tests.support.observers import run_schedule
from tests.support.ray_clusters import several_nodes
from tests.support.shard_toy import Toy, ToyWork
from tests.support.shard_toy import trained as rotated
from tests.support.sleeping_task import LABEL, Sleeping
from tests.support.waiting import until
from xcray.schedule.autoscaling import ScalingPolicy
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.solved_labels import merge
from xcray.workers.pool import Result
from xcray.workers.ray import cluster_state as ray_nodes
from xcray.workers.ray.pool import RayPool
from xcray.workers.ray.worker_group import RayWorkerGroup
from xcray.workers.solver_task import SolverTask, shared_arrays
from xcray.workers.timeline import Timeline, read_streams
from xcray.workers.worker_group import CallResult

pytestmark = [pytest.mark.ray, pytest.mark.drill]
LATER_MS = 3_600_000  # time until a draining node is removed: after the test
PREEMPTION = 2  # a value of Ray's DrainNodeReason
REMOVED_NODES = []  # removed nodes


@pytest.fixture(scope="module")
def cluster():
    """Yield two nodes of two CPUs, and a driver's node without CPUs."""
    with several_nodes(2, 2) as group:
        yield group


@pytest.fixture(autouse=True)
def all_nodes(cluster):
    """Add the nodes that the previous test removed, and wait until all CPUs are free."""
    while len(cluster.worker_nodes) < 2:
        cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
    until(
        lambda: (
            sum(node["Alive"] for node in ray.nodes()) == 3
            and ray.available_resources().get("CPU") == 4.0
        )
    )


@pytest.fixture(scope="module")
def digest(tiny):
    """Return the digest of all labels, solved in this process."""
    t, solver = tiny.train, PPDSparseSolver()
    return solver.solve(
        solver.load(t.X, t.XT, t.YT), np.arange(tiny.n_labels, dtype=np.int32)
    ).digest()


class Run:
    """A job on the cluster.

    The first results are held back until all workers have a node. acts: functions to call at the
    n-th result.
    """

    def __init__(
        self,
        dataset,
        folder,
        job: str,
        workers: int = 2,
        acts=(),
        seconds: float = 1.0,
        thrift: ScalingPolicy | None = None,
    ):
        solver, t = PPDSparseSolver(), dataset.train
        costs = solver.cost_terms(t.X, t.XT, t.YT) @ solver.cost_rates
        self.schedule = LabelScheduler(
            range(dataset.n_labels),
            seconds * costs / costs.sum(),
            batch_seconds=0.01,
            workers=workers,
        )
        work = SolverTask(solver, str(dataset.path), dataset.content_hash)
        self.pool = RayPool(
            work, workers, nullcontext(), job, lambda: shared_arrays(dataset), policy=thrift
        )
        self.acts, self.results, folder = dict(acts), list[Result](), folder / job
        folder.mkdir()
        self.linger(lambda: len(self.pool.nodes) == workers)
        with Timeline(folder, lambda: self.pool.nodes) as timeline:
            run_schedule(self.schedule, self.pool, commit=self._commit, record=timeline.add)
        self.rows = read_streams(folder).to_pylist()
        self.digest = merge(
            [result.value for result in self.results], dataset.n_labels, dataset.n_features
        ).digest()

    def _commit(self, result: Result) -> None:
        """Record a result, and call the function for this number of results, if any."""
        self.results.append(result)
        act = self.acts.pop(len(self.results), None)
        if act is not None:
            act(self)

    def node_of(self, worker: str) -> str:
        """Return the ID of a worker's node, as in the timeline."""
        return self.pool.nodes[worker].split("/")[1]

    def workers_on(self, node: str) -> list[str]:
        """Return the workers that a node has or had."""
        return [worker for worker in self.pool.nodes if self.node_of(worker) == node[:12]]

    def linger(self, enough) -> None:
        """Hold back results until a condition is met, so that the job lasts until then."""
        ends = time.monotonic() + 300
        state = self.pool.wait

        def wait(seconds: float):
            result = state(seconds)
            if not enough() and time.monotonic() < ends:
                result = [
                    each
                    for each in result
                    if not isinstance(each, CallResult) or selection.append(each)
                ]
            else:
                self.pool.wait = state
                result = selection + result
            return result

        selection: list[CallResult] = []
        self.pool.wait = wait


def node_named(cluster, short: str):
    """Return a node of the cluster and keep a reference to it.

    Python warns of processes that are still running when their owner is collected.
    """
    REMOVED_NODES.append(
        next(node for node in cluster.worker_nodes if node.node_id.startswith(short))
    )
    return REMOVED_NODES[-1]


def test_the_head_reports_what_read_gcs_needs(cluster):
    """Private data of Ray has the form that `read_gcs` expects; see also test_ray_interfaces."""
    report = ray_nodes.read_gcs()
    alive = {node["NodeID"]: node for node in report.nodes if node["Alive"]}
    assert len(alive) == 3
    assert report.draining == {}
    assert alive.keys() == report.free.keys()
    assert (
        sum(free.get("CPU", 0.0) for free in report.free.values())
        == 4.0
        == ray_nodes.cluster_cores()
    )
    assert all(node.keys() >= {"NodeManagerAddress", "Resources"} for node in alive.values())
    assert all({"memory", "object_store_memory"} <= free.keys() for free in report.free.values())


@pytest.mark.parametrize(("workers", "nodes"), [(2, 1), (4, 2)])
def test_a_node_is_filled_before_another_is_opened_and_bits_are_the_same(
    tiny, tmp_path, digest, workers, nodes
):
    run = Run(tiny, tmp_path, f"w{workers}", workers)
    assert run.digest == digest
    assert len(run.pool.nodes) == workers
    assert len(set(run.pool.nodes.values())) == nodes
    assert {(row["worker"], row["node"]) for row in run.rows} <= set(run.pool.nodes.items())


def test_a_node_that_drains_ends_its_batches_and_others_go_on(cluster, tiny, tmp_path, digest):
    drained, leaving = [], []

    def drain(run: Run) -> None:
        drained.append(node_named(cluster, run.node_of("worker-0")).node_id)
        leaving.extend(run.workers_on(drained[0]))
        client = ray._private.worker.global_worker.gcs_client
        until_ms = int(time.time() * 1000) + LATER_MS
        assert client.drain_node(drained[0], PREEMPTION, "spot", until_ms)[0]
        until(lambda: ray_nodes.read_gcs().draining == {drained[0]: until_ms})
        assert ray_nodes.cluster_cores() == 2
        run.linger(lambda: len(run.pool.nodes) == 2 + len(leaving))

    run = Run(tiny, tmp_path, "drained", acts={2: drain})
    assert run.digest == digest
    assert run.pool.status().lost == 0
    assert not [row for row in run.rows if row["outcome"] == "lost"]
    assert run.workers_on(drained[0]) == leaving
    cluster.remove_node(node_named(cluster, drained[0]), allow_graceful=False)


def test_a_rotation_training_leaves_a_draining_node(cluster, tmp_path):
    """A rotation training leaves a draining node before it is removed.

    Two of four workers are on the node. No bit changes, no worker is lost, and the node's data are
    moved before.
    """
    work, output, drained, last = (
        ToyWork(Toy(pause=0.01)),
        list[str](),
        list[str](),
        dict[str, set[str]](),
    )
    alone = rotated(tmp_path / "alone", "serial", 1)
    group = RayWorkerGroup(work, 4, nullcontext(), "round")

    def on_progress(progress) -> None:
        output.extend([progress.note] if progress.note else [])
        if not drained and progress.done > 2.2:
            drained.append(node_named(cluster, group.nodes["worker-0"].split("/")[1]).node_id)
            client = ray._private.worker.global_worker.gcs_client
            assert client.drain_node(
                drained[0], PREEMPTION, "spot", int(time.time() * 1000) + 1000
            )[0]
            until(lambda: len(group.draining_workers()) == 2)
        last["nodes"] = {group.nodes[worker].split("/")[1] for worker in group.available}

    result = rotated(tmp_path / "ray", group, work=work, on_progress=on_progress)
    assert result.bits == alone.bits
    assert result.outcome.lost == 0
    assert output[0].startswith("left before their node goes: worker-")
    assert len(last["nodes"]) == 1
    assert drained[0][:12] not in last["nodes"]
    cluster.remove_node(node_named(cluster, drained[0]), allow_graceful=False)


def test_a_vanished_node_changes_no_bit_and_counts_as_no_crash(cluster, tiny, tmp_path, digest):
    """The workers of a node are lost and others start elsewhere."""
    victims, gone = [], []

    def vanish(run: Run) -> None:
        victims.append(node_named(cluster, run.node_of("worker-0")))
        gone.extend(run.workers_on(victims[0].node_id))
        cluster.remove_node(victims[0], allow_graceful=False)
        run.linger(
            lambda: (
                run.pool.status().lost_with_nodes == len(gone)
                and len(run.pool.nodes) == 2 + len(gone)
            )
        )

    run = Run(tiny, tmp_path, "vanished", acts={2: vanish})
    there = run.pool.status()
    assert run.digest == digest
    assert there.lost == there.lost_with_nodes == len(gone)
    assert run.workers_on(victims[0].node_id) == gone


def test_autoscaling_requests_no_late_nodes_and_releases_idle_workers(cluster, tmp_path):
    """Idle workers are released while one label runs, and the job waits for no new node.

    There are four CPUs and at most eight workers. The label ends when the idle workers are gone.
    """
    gate = tmp_path / "gate"
    pool = RayPool(
        Sleeping(100.0, str(gate)),
        8,
        nullcontext(),
        "thrifty",
        tuple,
        policy=ScalingPolicy(worker_seconds=0.1, node_seconds=1000.0),
    )
    counts, results = [], list[Result]()

    def look() -> None:
        counts.append(len(pool._actors))
        done = sum(len(result.task.labels) for result in results)
        # One worker for the label and one for a copy, on any node; a spare stays, too, if the copy
        # began before the idle workers were released.
        if done >= 400 and counts[-1] <= max(2, max(counts) - 1):
            gate.touch()

    schedule = LabelScheduler(range(401), [100.0] + [LABEL] * 400, workers=8)
    run_schedule(schedule, pool, commit=results.append, tick=look, seconds=1200.0)
    assert sorted(label for result in results for label in result.task.labels) == list(range(401))
    assert gate.exists(), counts[-1]
    assert 2 < max(counts) <= 4
    assert pool.status().lost == 0
