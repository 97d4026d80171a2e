"""`xcray plan`: size a deployment from a sample of labels solved here; print chart values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xcray.cli.terminal import output
from xcray.cli.terminal.progress import format_duration
from xcray.cli.training.train import ParameterOption, SolverOption
from xcray.errors import InputError, excerpt

if TYPE_CHECKING:
    from xcray.training.capacity.serving import ServingLoad
    from xcray.training.planning.deployment import DeploymentSize, PodSize

MIB, GIB = 1 << 20, 1 << 30
MEMORY_STEP = 256 * MIB  # memory in chart values is rounded up to this step
CLUSTER, ALL_IN_ONE = "cluster", "all-in-one"


DatasetArgument = Annotated[
    Path | None,
    typer.Argument(metavar="DATASET", help="Data set of which a sample of the labels is solved."),
]
HoursOption = Annotated[
    float | None,
    typer.Option(
        help="Time limit of a training in hours; it determines the number of worker pods. "
        "[default: one worker pod]"
    ),
]
ServeOption = Annotated[
    Path | None,
    typer.Option(
        metavar="MODEL",
        help="Estimate serving of this model, instead of a deployment for a data set.",
    ),
]


def plan(
    dataset: DatasetArgument = None,
    seconds: Annotated[float, typer.Option(help="Core seconds spent on solving labels.")] = 20.0,
    solver: SolverOption = "ppdsparse",
    param: ParameterOption = None,
    mode: Annotated[
        str,
        typer.Option(help="Mode of the chart: cluster (trainings on Ray) or all-in-one (one pod)."),
    ] = CLUSTER,
    cores: Annotated[
        int, typer.Option(min=1, help="Cores per worker pod, or of the single pod.")
    ] = 4,
    hours: HoursOption = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of simultaneous trainings.")] = 1,
    replicas: Annotated[int, typer.Option(min=1, help="Number of API pods.")] = 2,
    processes: Annotated[
        int, typer.Option(min=1, help="Processes per API pod (XCRAY_WORKERS).")
    ] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Search threads per process.")] = 1,
    models: Annotated[int, typer.Option(min=1, help="Number of served models of this size.")] = 1,
    versions: Annotated[
        int, typer.Option(min=1, help="Number of retained versions per model.")
    ] = 3,
    serve: ServeOption = None,
    query_nnz: Annotated[
        float, typer.Option(min=0.0, help="Entries per query row, for --serve.")
    ] = 50.0,
    query_rows: Annotated[int, typer.Option(min=1, help="Rows per request, for --serve.")] = 1,
    values: Annotated[
        bool, typer.Option("--values", help="Print values for the Helm chart.")
    ] = False,
    json: output.JsonOption = False,
) -> None:
    """Estimate memory, disk and core hours of a deployment.

    A sample of the labels of DATASET is solved on this machine.
    """
    if serve is not None and dataset is None:
        print_serving(serving_workload(serve, query_nnz, query_rows), threads, json)
        return
    if serve is not None or dataset is None:
        raise InputError("give either DATASET, a data set, or --serve MODEL", code="USAGE")
    from xcray.training.planning.deployment import DeploymentOptions, size_from_dataset

    if mode not in (CLUSTER, ALL_IN_ONE):
        raise InputError(
            f"--mode must be {CLUSTER} or {ALL_IN_ONE}, not {excerpt(mode)!r}; for pods that only "
            "predict use --serve MODEL",
            code="USAGE",
        )
    if json and values:
        raise InputError("--json and --values exclude each other: choose one", code="USAGE")
    deployment = DeploymentOptions(
        mode == CLUSTER, cores, hours, jobs, replicas, processes, threads, models, versions
    )
    size = size_from_dataset(dataset, deployment, solver, output.parse_assignments(param), seconds)
    if json:
        basis = {"dataset": str(dataset), "seconds": seconds, "options": deployment._asdict()}
        output.print_json({**basis, **size.as_dict()})
    elif values:
        typer.echo(chart_values(size, jobs), nl=False)
    else:
        print_size(size)


def serving_workload(model: Path, entries: float, rows: int) -> ServingLoad:
    """Return the serving workload of a model. Raises NotFound, Corrupt."""
    from xcray.model.model import Model
    from xcray.training.capacity.serving import ServingLoad

    opened = Model.open(model, verify=False)
    return ServingLoad(opened.n_labels, opened.n_features, opened.nnz, entries, rows)


def print_serving(load: ServingLoad, threads: int, as_json: bool) -> None:
    """Print the resources of serving."""
    from xcray.training.capacity.serving import estimate_serving

    estimate = estimate_serving(load, threads)
    if as_json:
        output.print_json({"load": load._asdict(), **estimate.as_dict()})
        return
    output.print_pairs(
        {
            "model": f"{load.labels:,} labels, {load.features:,} features, "
            f"{load.weights:,} weights",
            "memory per pod": f"{format_gib(estimate.memory)}, including "
            f"{format_gib(estimate.model)} of model files",
            "postings per query": f"{estimate.postings:,.0f}",
            "search": f"{1e3 * estimate.search:.3f} ms of a core per row",
            "request": f"{1e3 * estimate.request:.3f} ms of a core for {load.rows} rows over HTTP",
            "requests": f"{format_figure(estimate.requests)} per second and core",
        }
    )


def print_size(size: DeploymentSize) -> None:
    """Print the tables of a deployment size."""
    for name, pod in size.pods.items():
        objects = f", including {format_gib(pod.objects)} for objects" if pod.objects else ""
        output.print_line(
            f"{name:7} {pod.number} x {pod.cores} cores, "
            f"{format_gib(pod.memory)} (limit {format_gib(pod.limit)}){objects}"
        )
    output.print_line()
    output.print_table(
        ["in the home directory", "GiB"],
        [[name, f"{n_bytes / GIB:.2f}"] for name, n_bytes in size.disk.items()],
    )
    output.print_line(f"total with safety margin and upload reserve: {format_gib(size.home)}")
    output.print_line()
    (_, low_weights, high_weights), (core_hours, low_hours, high_hours) = (
        size.weights,
        size.core_hours,
    )
    output.print_pairs(
        {
            "weights": f"{size.training.weights:,}, between "
            f"{low_weights:,.0f} and {high_weights:,.0f}",
            "core hours": f"{format_figure(core_hours)}, between "
            f"{format_figure(low_hours)} and {format_figure(high_hours)}",
            "time per training": f"{format_duration(3600 * size.hours)} with "
            f"{size.training.workers} workers",
            "based on": size.known,
        }
    )


def chart_values(size: DeploymentSize, jobs: int) -> str:
    """Return values for the Helm chart as YAML, with a comment on their basis."""
    core = size.core_hours
    span = f"{format_figure(core.low)} to {format_figure(core.high)}"
    hours = f"{format_figure(core.value)} core hours per training ({span})"
    lines = [f"# xcray plan: {hours}, {size.training.weights:,} weights. From {size.known}."]
    api = size.pods["api"]
    worker = size.pods.get("worker")
    lines += (
        [
            "# mode cluster also needs a Secret with the URL of PostgreSQL: "
            "store.existingSecret (docs/kubernetes.md)"
        ]
        if worker
        else []
    )
    lines += [
        f"mode: {CLUSTER if worker else ALL_IN_ONE}",
        "api:",
        f"  replicas: {api.number}",
        *resources(api),
    ]
    if worker:
        lines += ["runner:", f"  maxRunningJobs: {jobs}", *resources(size.pods["runner"])]
    else:
        lines += ["runner:", f"  maxRunningJobs: {jobs}"]
    lines += ["storage:", "  home:", f"    size: {format_gib(size.home, 'Gi')}"]
    if worker:
        head = size.pods["head"]
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


def resources(pod: PodSize) -> list[str]:
    """Return requests and limits of a pod, without a CPU limit: throttling raises tail latency."""
    requests = [
        "    requests:",
        f'      cpu: "{pod.cores}"',
        f"      memory: {format_mebibytes(pod.memory)}",
    ]
    return [
        "  resources:",
        *requests,
        "    limits:",
        f"      memory: {format_mebibytes(pod.limit)}",
    ]


def memory(pod: PodSize, indent: int) -> list[str]:
    """Return the memory of a Ray pod and its share for objects."""
    return [
        f"{' ' * indent}memory: {format_mebibytes(pod.memory)}",
        f"{' ' * indent}objectStore: {format_mebibytes(pod.objects)}",
    ]


def format_mebibytes(n_bytes: int) -> str:
    """Format memory for Kubernetes in whole steps: 1536Mi, 4Gi."""
    whole = max(1, math.ceil(n_bytes / MEMORY_STEP)) * MEMORY_STEP
    return f"{whole // GIB}Gi" if whole % GIB == 0 else f"{whole // MIB}Mi"


def format_gib(n_bytes: int, unit: str = " GiB") -> str:
    """Format GiB: with one digit, or as a whole number for Kubernetes."""
    return f"{math.ceil(n_bytes / GIB)}{unit}" if unit == "Gi" else f"{n_bytes / GIB:.1f}{unit}"


def format_figure(value: float) -> str:
    """Format a number with two significant digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.1g}"
