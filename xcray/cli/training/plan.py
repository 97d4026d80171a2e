"""`xcray size`: how large a deployment must be, by numbers of the data or by a solved sample; the chart's values for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.terminal.progress import duration
from xcray.cli.training.train import Parameters
from xcray.errors import InputError

if TYPE_CHECKING:
    from xcray.training.capacity.deployment import Pod, Size
    from xcray.training.capacity.serving import Asked

MIB, GIB = 1 << 20, 1 << 30
STEP = 256 * MIB  # memory in values is told in such steps
CLUSTER, ALONE = "cluster", "all-in-one"


Overlap = Annotated[
    float | None,
    typer.Option(
        help="Share of all entries in the posting lists of a row's features: 0.05 to 0.2 for texts. [default: 0.06]"
    ),
]
Norm = Annotated[
    float | None,
    typer.Option(
        help="Mean |x|^2 of a row, the sum of its squares. [default: 1; where a tenth of X is not 0, entries of a row]"
    ),
]
Measure = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Solve a sample of the labels of this data set here, in place of N, D, K, Z; tell ranges.",
    ),
]
Hours = Annotated[
    float | None,
    typer.Option(
        help="Hours that a training may take; worker pods follow. [default: one worker pod]"
    ),
]
Serve = Annotated[
    Path | None,
    typer.Option(
        metavar="MODEL", help="Tell what answering from a model takes; or from K, D, --weights."
    ),
]


def size(
    rows: Annotated[int | None, typer.Option(metavar="N", min=1, help="Training rows.")] = None,
    features: Annotated[int | None, typer.Option(metavar="D", min=1, help="Features.")] = None,
    labels: Annotated[int | None, typer.Option(metavar="K", min=1, help="Labels.")] = None,
    nnz: Annotated[
        int | None,
        typer.Option(metavar="Z", min=0, help="Entries of the training rows that are not 0."),
    ] = None,
    labels_per_row: Annotated[float, typer.Option(help="Labels of a row, in the mean.")] = 3.0,
    held_out: Annotated[
        float, typer.Option(help="Rows more to measure on, as a share of N.")
    ] = 0.1,
    overlap: Overlap = None,
    most: Annotated[
        float | None,
        typer.Option(help="Share of rows that the most frequent label has. [default: 0.02]"),
    ] = None,
    norm: Norm = None,
    measure: Measure = None,
    seconds: Annotated[
        float, typer.Option(help="How long --measure solves labels, of one core.")
    ] = 20.0,
    solver: Annotated[
        str, typer.Option(help="Who trains: ppdsparse, dismec, l2svm, dsmlr, lbfgs, lc.")
    ] = "ppdsparse",
    param: Parameters = None,
    mode: Annotated[
        str, typer.Option(help="Of the chart: cluster (trainings on Ray), or all-in-one (one pod).")
    ] = CLUSTER,
    cores: Annotated[int, typer.Option(min=1, help="Cores of a worker pod; of the one pod.")] = 4,
    hours: Hours = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at the same time.")] = 1,
    replicas: Annotated[int, typer.Option(min=1, help="Pods that answer.")] = 2,
    processes: Annotated[
        int, typer.Option(min=1, help="Processes in each of them (XCRAY_WORKERS).")
    ] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads in each of these that search.")] = 1,
    models: Annotated[
        int, typer.Option(min=1, help="Models of this size that are answered from.")
    ] = 1,
    versions: Annotated[int, typer.Option(min=1, help="Versions of each that are kept.")] = 3,
    serve: Serve = None,
    weights: Annotated[
        int | None,
        typer.Option(metavar="W", min=0, help="Weights of a model that is answered from."),
    ] = None,
    query_nnz: Annotated[
        float, typer.Option(help="Entries of a query's row, for --serve and --weights.")
    ] = 50.0,
    query_rows: Annotated[
        int, typer.Option(min=1, help="Rows of a request, for --serve and --weights.")
    ] = 1,
    values: Annotated[
        bool, typer.Option("--values", help="Print values for the Helm chart.")
    ] = False,
    json: output.AsJson = False,
) -> None:
    """Foresee memory, disk and core hours from sizes alone, a first guess; or with --measure from labels that are solved here."""
    if serve is not None or weights is not None:
        show_answering(
            asked_of(serve, (labels, features, weights), query_nnz, query_rows), threads, json
        )
        return
    from xcray.training.capacity.deployment import Data, Wishes, measured
    from xcray.training.capacity.deployment import size as sized

    if mode not in (CLUSTER, ALONE):
        raise InputError(
            f"--mode is {CLUSTER} or {ALONE}: mode serving trains nothing, its pods are api of {CLUSTER}",
            code="USAGE",
        )
    if json and values:
        raise InputError("--json and --values are two forms of the same: choose one", code="USAGE")
    wishes = Wishes(
        mode == CLUSTER, cores, hours, jobs, replicas, processes, threads, models, versions
    )
    if measure is not None:
        told: dict[str, Any] = {"measured": str(measure), "seconds": seconds}
        found = measured(measure, wishes, solver, output.assignments(param), seconds)
    else:
        data = Data(
            *known((rows, features, labels, nnz)), labels_per_row, held_out, overlap, most, norm
        )
        told, found = (
            {"data": data._asdict()},
            sized(data, wishes, solver, output.assignments(param)),
        )
    if json:
        output.emit({**told, "wishes": wishes._asdict(), **found.as_dict()})
    elif values:
        typer.echo(values_of(found, jobs), nl=False)
    else:
        show(found)


def known(numbers: tuple[int | None, ...]) -> tuple[int, int, int, int]:
    """N, D, K and Z. Raises InputError where one is not given."""
    rows, features, labels, nnz = numbers
    if rows is None or features is None or labels is None or nnz is None:
        raise InputError(
            "give --rows, --features, --labels and --nnz; or --measure DIR, a data set that has them",
            code="USAGE",
        )
    return rows, features, labels, nnz


def asked_of(
    model: Path | None, numbers: tuple[int | None, ...], entries: float, rows: int
) -> Asked:
    """What answers: a model that is there, or K, D and W. Raises InputError, NotFound, Corrupt."""
    from xcray.model.model import Model
    from xcray.training.capacity.serving import Asked

    if model is not None:
        opened = Model.open(model, verify=False)
        return Asked(opened.n_labels, opened.n_features, opened.nnz, entries, rows)
    labels, features, weights = numbers
    if labels is None or features is None or weights is None:
        raise InputError(
            "--weights needs --labels and --features too; or give --serve MODEL", code="USAGE"
        )
    return Asked(labels, features, weights, entries, rows)


def show_answering(asked: Asked, threads: int, as_json: bool) -> None:
    """What answering takes, for people or machines."""
    from xcray.training.capacity.serving import answering

    found = answering(asked, threads)
    if as_json:
        output.emit({"asked": asked._asdict(), **found.as_dict()})
        return
    output.pairs(
        {
            "model": f"{asked.labels:,} labels, {asked.features:,} features, {asked.weights:,} weights",
            "memory of a pod": f"{gib(found.memory)}, {gib(found.model)} of it the model's files",
            "postings a query": f"{found.postings:,.0f}",
            "search": f"{1e3 * found.search:.3f} ms of a core for a row",
            "request": f"{1e3 * found.request:.3f} ms of a core for {asked.rows} rows over HTTP",
            "requests": f"{figure(found.requests)} a second for each core",
        }
    )


def show(found: Size) -> None:
    """The tables for people."""
    for name, pod in found.pods.items():
        objects = f", {gib(pod.objects)} of it for objects" if pod.objects else ""
        output.say(
            f"{name:7} {pod.number} x {pod.cores} cores, {gib(pod.memory)} (at most {gib(pod.limit)}){objects}"
        )
    output.say()
    output.table(
        ["in the home", "GiB"],
        [[name, f"{n_bytes / GIB:.2f}"] for name, n_bytes in found.disk.items()],
    )
    output.say(f"with room and the reserve for uploads: {gib(found.home)}")
    output.say()
    (_, fewest, most), (core, least, longest) = found.weights, found.core_hours
    output.pairs(
        {
            "weights": f"{found.training.weights:,}, between {fewest:,.0f} and {most:,.0f}",
            "core hours": f"{figure(core)}, between {figure(least)} and {figure(longest)}",
            "time of a training": f"{duration(3600 * found.hours)} with {found.training.workers} workers",
            "known from": found.known,
        }
    )


def values_of(found: Size, jobs: int) -> str:
    """Values for the chart, as YAML with a remark where they come from."""
    core = found.core_hours
    hours = (
        f"{figure(core.value)} core hours a training ({figure(core.low)} to {figure(core.high)})"
    )
    lines = [f"# xcray size: {hours}, {found.training.weights:,} weights. From {found.known}."]
    api = found.pods["api"]
    worker = found.pods.get("worker")
    lines += (
        [
            "# mode cluster needs a Secret with PostgreSQL's address too: store.existingSecret (docs/kubernetes.md)"
        ]
        if worker
        else []
    )
    lines += [
        f"mode: {CLUSTER if worker else ALONE}",
        "api:",
        f"  replicas: {api.number}",
        *resources(api),
    ]
    if worker:
        lines += ["runner:", f"  maxRunningJobs: {jobs}", *resources(found.pods["runner"])]
    else:
        lines += ["runner:", f"  maxRunningJobs: {jobs}"]
    lines += ["storage:", "  home:", f"    size: {gib(found.home, 'Gi')}"]
    if worker:
        head = found.pods["head"]
        lines += [
            "ray:",
            "  enabled: true",
            "  head:",
            f'    cpu: "{head.cores}"',
            *memory(head, 4),
        ]
        lines += ["  workerDefaults:", f"    cpu: {worker.cores}", *memory(worker, 4)]
        lines += [f"    replicas: {worker.number}", f"    maxReplicas: {worker.number * jobs}"]
    return "\n".join(lines) + "\n"


def resources(pod: Pod) -> list[str]:
    """Requests and limits of a pod, without a limit of cores: throttling shows in the slowest answers first."""
    requests = [
        "    requests:",
        f'      cpu: "{pod.cores}"',
        f"      memory: {mebibytes(pod.memory)}",
    ]
    return ["  resources:", *requests, "    limits:", f"      memory: {mebibytes(pod.limit)}"]


def memory(pod: Pod, indent: int) -> list[str]:
    """Memory of a Ray pod, and its part for objects."""
    return [
        f"{' ' * indent}memory: {mebibytes(pod.memory)}",
        f"{' ' * indent}objectStore: {mebibytes(pod.objects)}",
    ]


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
