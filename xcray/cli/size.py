"""`xcray size`: how large a deployment must be for data that nobody has yet, and the values of the chart for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from xcray.cli import output
from xcray.cli.progress import duration
from xcray.cli.train import Parameters
from xcray.errors import InputError

if TYPE_CHECKING:
    from xcray.train.sizing import Pod, Size

MIB, GIB = 1 << 20, 1 << 30
STEP = 256 * MIB  # memory in values is told in such steps
CLUSTER, ALONE = "cluster", "all-in-one"


def size(
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="Training rows.")],
    features: Annotated[int, typer.Option(metavar="D", min=1, help="Features.")],
    labels: Annotated[int, typer.Option(metavar="K", min=1, help="Labels.")],
    nnz: Annotated[int, typer.Option(metavar="Z", min=0, help="Entries of the training rows that are not 0.")],
    labels_per_row: Annotated[float, typer.Option(help="Labels of a row, in the mean.")] = 3.0,
    held_out: Annotated[float, typer.Option(help="Rows more to measure on, as a share of N.")] = 0.1,
    overlap: Annotated[
        float | None,
        typer.Option(help="Share of all entries in the posting lists of a row's features: 0.01 to 0.2 for texts. [default: 0.05]"),
    ] = None,
    solver: Annotated[str, typer.Option(help="Who trains: ppdsparse, dismec, l2svm, dsmlr, lbfgs, lc.")] = "ppdsparse",
    param: Parameters = None,
    mode: Annotated[str, typer.Option(help="Of the chart: cluster (trainings on Ray), or all-in-one (one pod).")] = CLUSTER,
    cores: Annotated[int, typer.Option(min=1, help="Cores of a worker pod; of the one pod.")] = 4,
    hours: Annotated[
        float | None, typer.Option(help="Hours that a training may take; worker pods follow. [default: one worker pod]")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at the same time.")] = 1,
    replicas: Annotated[int, typer.Option(min=1, help="Pods that answer.")] = 2,
    processes: Annotated[int, typer.Option(min=1, help="Processes in each of them (XCRAY_WORKERS).")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads in each of these that search.")] = 1,
    models: Annotated[int, typer.Option(min=1, help="Models of this size that are answered from.")] = 1,
    versions: Annotated[int, typer.Option(min=1, help="Versions of each that are kept.")] = 3,
    values: Annotated[bool, typer.Option("--values", help="Print values for the Helm chart.")] = False,
    json: output.AsJson = False,
) -> None:
    """Foresee memory, disk and core hours from sizes alone: a first guess. `xcray train DIR --estimate` knows better, from data."""
    from xcray.train.sizing import Data, Wishes
    from xcray.train.sizing import size as sized

    if mode not in (CLUSTER, ALONE):
        raise InputError(
            f"--mode is {CLUSTER} or {ALONE}: mode serving trains nothing, its pods are api of {CLUSTER}", code="USAGE"
        )
    if json and values:
        raise InputError("--json and --values are two forms of the same: choose one", code="USAGE")
    data = Data(rows, features, labels, nnz, labels_per_row, held_out, overlap)
    wishes = Wishes(mode == CLUSTER, cores, hours, jobs, replicas, processes, threads, models, versions)
    found = sized(data, wishes, solver, output.assignments(param))
    if json:
        output.emit({"data": data._asdict(), "wishes": wishes._asdict(), **found.as_dict()})
    elif values:
        typer.echo(values_of(found, jobs), nl=False)
    else:
        show(found)


def show(found: Size) -> None:
    """The tables for people."""
    for name, pod in found.pods.items():
        objects = f", {gib(pod.objects)} of it for objects" if pod.objects else ""
        output.say(f"{name:7} {pod.number} x {pod.cores} cores, {gib(pod.memory)} (at most {gib(pod.limit)}){objects}")
    output.say()
    output.table(["in the home", "GiB"], [[name, f"{n_bytes / GIB:.2f}"] for name, n_bytes in found.disk.items()])
    output.say(f"with room and the reserve for uploads: {gib(found.home)}")
    output.say()
    t = found.training
    output.pairs(
        {
            "weights": f"{t.weights:,}",
            "core hours": f"{figure(found.core_hours)}, between {figure(found.least)} and {figure(found.most)}",
            "time of a training": f"{duration(3600 * found.hours)} with {t.workers} workers",
            "known from": "sizes alone: no label was solved",
        }
    )


def values_of(found: Size, jobs: int) -> str:
    """Values for the chart, as YAML with a remark where they come from."""
    hours = f"{figure(found.core_hours)} core hours a training ({figure(found.least)} to {figure(found.most)})"
    lines = [f"# xcray size: {hours}, {found.training.weights:,} weights. A first guess."]
    api = found.pods["api"]
    worker = found.pods.get("worker")
    lines += (
        ["# mode cluster needs a Secret with PostgreSQL's address too: store.existingSecret (docs/kubernetes.md)"] if worker else []
    )
    lines += [f"mode: {CLUSTER if worker else ALONE}", "api:", f"  replicas: {api.number}", *resources(api)]
    if worker:
        lines += ["runner:", f"  maxRunningJobs: {jobs}", *resources(found.pods["runner"])]
    else:
        lines += ["runner:", f"  maxRunningJobs: {jobs}"]
    lines += ["storage:", "  home:", f"    size: {gib(found.home, 'Gi')}"]
    if worker:
        head = found.pods["head"]
        lines += ["ray:", "  enabled: true", "  head:", f'    cpu: "{head.cores}"', *memory(head, 4)]
        lines += ["  workerDefaults:", f"    cpu: {worker.cores}", *memory(worker, 4)]
        lines += [f"    replicas: {worker.number}", f"    maxReplicas: {worker.number * jobs}"]
    return "\n".join(lines) + "\n"


def resources(pod: Pod) -> list[str]:
    """Requests and limits of a pod, without a limit of cores: throttling shows in the slowest answers first."""
    requests = ["    requests:", f'      cpu: "{pod.cores}"', f"      memory: {mebibytes(pod.memory)}"]
    return ["  resources:", *requests, "    limits:", f"      memory: {mebibytes(pod.limit)}"]


def memory(pod: Pod, indent: int) -> list[str]:
    """Memory of a Ray pod, and its part for objects."""
    return [f"{' ' * indent}memory: {mebibytes(pod.memory)}", f"{' ' * indent}objectStore: {mebibytes(pod.objects)}"]


def mebibytes(n_bytes: int) -> str:
    """As Kubernetes writes it, in whole steps: 1536Mi, 4Gi."""
    whole = max(1, math.ceil(n_bytes / STEP)) * STEP
    return f"{whole // GIB}Gi" if whole % GIB == 0 else f"{whole // MIB}Mi"


def gib(n_bytes: int, unit: str = " GiB") -> str:
    """With one digit for people, whole for Kubernetes."""
    return f"{math.ceil(n_bytes / GIB)}{unit}" if unit == "Gi" else f"{n_bytes / GIB:.1f}{unit}"


def figure(value: float) -> str:
    """A number in two digits that count."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.1g}"
