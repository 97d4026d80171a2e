"""Values of the Helm chart for a training: pods and disk that hold what the preflight estimates.

docs/operations.md lists the formulas. Units are bytes unless stated otherwise.
"""

from __future__ import annotations

import math
from typing import Final

from xcray.data.dataset import Dataset
from xcray.index.search_engine import is_dense
from xcray.training.capacity.preflight import MIB, PROCESS_BYTES, RAY_BYTES, Estimate

GIB: Final = 1 << 30
MEMORY_STEP: Final = 256 * MIB  # memory in chart values is rounded up to this step
WORKER_CORES: Final = 4  # at most, per worker pod
SAFETY_FACTOR: Final = 1.25  # of memory requests and the size of the home
# An API process without a model: 110 MiB of its own, the rest pages of libraries.
API_BYTES: Final = 330 * MIB
ANSWERING_BYTES: Final = 64 * MIB  # additional private memory after the first answer
SCAN_BYTES_PER_LABEL: Final = 32  # in each thread that searches
LIBRARY_BYTES: Final = 220 * MIB  # pages of libraries that processes of one pod share
# Request bodies in memory (XCRAY_MAX_BODY_MEMORY_BYTES), part of the limit.
BODY_BYTES: Final = 256 * 10**6
RUNNER_BYTES: Final = 330 * MIB  # process of a runner
RUNNING_JOB_BYTES: Final = 64 * MIB  # of a runner, per running job
RAY_HEAD_BYTES: Final = 1600 * MIB  # Ray's processes on a head with its dashboard
RAY_NODE_BYTES: Final = 320 * MIB  # Ray's processes on any other node
# Object store of a node whose data are mapped files: results in transit.
OBJECT_STORE_BYTES: Final = 512 * MIB
STORE_BYTES: Final = GIB  # job store, logs, uploads of texts
# Bytes per entry of an uploaded svmlight file, stored until its data set is built.
TEXT_BYTES_PER_ENTRY: Final = 12
DISK_RESERVE_BYTES: Final = 2 * 10**9  # free disk that uploads must leave
KEPT_VERSIONS: Final = 3  # of the model, in the home


def chart_values(estimate: Estimate, dataset: Dataset, *, cluster: bool) -> str:
    """Return values for the Helm chart as YAML: one training at a time, its model is served.

    cluster: trainings run on Ray, in pods of at most 4 cores; otherwise in the only pod.
    """
    hours = estimate.core_seconds / 3600
    lines = [
        f"# {hours:.2g} core hours per training, {estimate.weights:,} weights, "
        f"{estimate.workers} workers"
    ]
    home = f"{math.ceil(home_bytes(estimate, dataset) / GIB)}Gi"
    storage = ["storage:", "  home:", f"    size: {home}"]
    api = int(SAFETY_FACTOR * serving_bytes(estimate, dataset))
    room = estimate.model + BODY_BYTES  # while one version takes over from another
    if not cluster:
        training = PROCESS_BYTES + estimate.memory + estimate.mapped
        pod = api + int(SAFETY_FACTOR * training)
        cores = max(1, estimate.workers)
        lines += ["mode: all-in-one", "api:", *_resources(cores, pod, pod + room), *storage]
        return "\n".join(lines) + "\n"
    nodes = math.ceil(estimate.workers / WORKER_CORES)
    cores = math.ceil(estimate.workers / nodes)
    runner = int(SAFETY_FACTOR * RUNNER_BYTES) + RUNNING_JOB_BYTES
    worker, objects = worker_bytes(estimate, nodes, cores)
    lines += [
        "# mode cluster also needs a Secret with the URL of PostgreSQL: "
        "store.existingSecret (docs/kubernetes.md)",
        "mode: cluster",
        "api:",
        *_resources(1, api, api + room),
        "runner:",
        *_resources(1, runner, 2 * runner),
        *storage,
        "ray:",
        "  enabled: true",
        "  head:",
        '    cpu: "2"',
        *_memory(head_bytes(estimate), OBJECT_STORE_BYTES),
        "  workerDefaults:",
        f"    cpu: {cores}",
        *_memory(worker, objects),
        f"    replicas: {nodes}",
        f"    maxReplicas: {nodes}",
    ]
    return "\n".join(lines) + "\n"


def serving_bytes(estimate: Estimate, dataset: Dataset) -> int:
    """Return the bytes of an API process with the model, and one thread that searches."""
    cells = dataset.n_labels * dataset.n_features
    dense = is_dense(dataset.n_labels, dataset.n_features, estimate.weights)
    process = API_BYTES + ANSWERING_BYTES + SCAN_BYTES_PER_LABEL * dataset.n_labels
    return process + estimate.model + 4 * cells * dense


def head_bytes(estimate: Estimate) -> int:
    """Return the bytes of the pod with Ray's head, where the driver of the training runs."""
    driver = PROCESS_BYTES + estimate.driver
    return int(SAFETY_FACTOR * (RAY_HEAD_BYTES + LIBRARY_BYTES + driver + OBJECT_STORE_BYTES))


def worker_bytes(estimate: Estimate, nodes: int, cores: int) -> tuple[int, int]:
    """Return the bytes of one of `nodes` worker pods, and those of its object store in them."""
    shared = max(0, estimate.ray - RAY_BYTES)  # of all nodes
    objects = max(OBJECT_STORE_BYTES, int(SAFETY_FACTOR * shared / nodes))
    own = cores * (estimate.process + estimate.worker) + estimate.mapped
    return int(SAFETY_FACTOR * (RAY_NODE_BYTES + LIBRARY_BYTES + own)) + objects, objects


def home_bytes(estimate: Estimate, dataset: Dataset) -> int:
    """Return the size of the home, with the source of the data set as an upload."""
    entries = sum(part.X.nnz + part.Y.nnz for part in dataset.splits.values())
    files = (
        TEXT_BYTES_PER_ENTRY * entries
        + estimate.mapped
        + estimate.parts
        + estimate.checkpoints
        + KEPT_VERSIONS * estimate.model
        + STORE_BYTES
    )
    return int(SAFETY_FACTOR * files) + DISK_RESERVE_BYTES


def _resources(cores: int, memory: int, limit: int) -> list[str]:
    """Return requests and limits of a pod, without a CPU limit: throttling raises tail latency."""
    return [
        "  resources:",
        "    requests:",
        f'      cpu: "{cores}"',
        f"      memory: {_mebibytes(memory)}",
        "    limits:",
        f"      memory: {_mebibytes(limit)}",
    ]


def _memory(memory: int, objects: int) -> list[str]:
    """Return the memory of a Ray pod and its share for objects."""
    return [f"    memory: {_mebibytes(memory)}", f"    objectStore: {_mebibytes(objects)}"]


def _mebibytes(n_bytes: int) -> str:
    """Format memory for Kubernetes in whole steps: 1536Mi, 4Gi."""
    whole = max(1, math.ceil(n_bytes / MEMORY_STEP)) * MEMORY_STEP
    return f"{whole // GIB}Gi" if whole % GIB == 0 else f"{whole // MIB}Mi"
