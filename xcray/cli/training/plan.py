"""`xcray plan`: size a deployment from data statistics or a measured sample; print chart values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.terminal.progress import format_duration
from xcray.cli.training.train import ParameterOption
from xcray.errors import InputError

if TYPE_CHECKING:
    from xcray.training.capacity.serving import ServingLoad
    from xcray.training.planning.deployment import DeploymentSize, PodSize

MIB, GIB = 1 << 20, 1 << 30
MEMORY_STEP = 256 * MIB  # memory in chart values is rounded up to this step
CLUSTER, ALL_IN_ONE = "cluster", "all-in-one"


PostingsShareOption = Annotated[
    float | None,
    typer.Option(
        help="Share of all entries of X that lie in the posting lists of one row's features: "
        "0.05 to 0.2 for texts. [default: 0.06]"
    ),
]
MeanSqNormOption = Annotated[
    float | None,
    typer.Option(
        help="Mean squared norm |x|^2 of a row. [default: 1, or the entries per row if at "
        "least a tenth of X is nonzero]"
    ),
]
MeasureOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Solve a sample of the labels of this data set instead of using N, D, K, Z; "
        "prints ranges.",
    ),
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
        help="Estimate serving of this model only; alternatively give K, D and --weights.",
    ),
]


def plan(
    rows: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of training rows.")
    ] = None,
    features: Annotated[
        int | None, typer.Option(metavar="D", min=1, help="Number of features.")
    ] = None,
    labels: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="Number of labels.")
    ] = None,
    nnz: Annotated[
        int | None,
        typer.Option(metavar="Z", min=0, help="Number of nonzero entries of the training rows."),
    ] = None,
    labels_per_row: Annotated[float, typer.Option(help="Mean number of labels per row.")] = 3.0,
    held_out_share: Annotated[
        float, typer.Option(help="Additional held-out rows, as a share of N.")
    ] = 0.1,
    postings_share: PostingsShareOption = None,
    max_label_share: Annotated[
        float | None,
        typer.Option(help="Share of rows that have the most frequent label. [default: 0.02]"),
    ] = None,
    mean_sq_norm: MeanSqNormOption = None,
    measure: MeasureOption = None,
    seconds: Annotated[
        float, typer.Option(help="Core seconds that --measure spends on solving labels.")
    ] = 20.0,
    solver: Annotated[
        str, typer.Option(help="Solver or preset: ppdsparse, dismec, l2svm, dsmlr, lbfgs, lc.")
    ] = "ppdsparse",
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
    weights: Annotated[
        int | None,
        typer.Option(
            metavar="W", min=0, help="Number of weights of the model, to estimate serving."
        ),
    ] = None,
    query_nnz: Annotated[
        float, typer.Option(help="Entries per query row, for --serve and --weights.")
    ] = 50.0,
    query_rows: Annotated[
        int, typer.Option(min=1, help="Rows per request, for --serve and --weights.")
    ] = 1,
    values: Annotated[
        bool, typer.Option("--values", help="Print values for the Helm chart.")
    ] = False,
    json: output.JsonOption = False,
) -> None:
    """Estimate memory, disk and core hours of a deployment.

    Without --measure the estimate uses sizes alone and is rough.
    """
    if serve is not None or weights is not None:
        print_serving(
            serving_workload(serve, (labels, features, weights), query_nnz, query_rows),
            threads,
            json,
        )
        return
    from xcray.training.planning.deployment import size_from_dataset
    from xcray.training.planning.deployment import size_from_numbers as sized
    from xcray.training.planning.deployment_options import DatasetShape, DeploymentOptions

    if mode not in (CLUSTER, ALL_IN_ONE):
        raise InputError(
            f"--mode is {CLUSTER} or {ALL_IN_ONE}; mode serving trains nothing, "
            f"its pods are those of api in mode {CLUSTER}",
            code="USAGE",
        )
    if json and values:
        raise InputError("--json and --values exclude each other: choose one", code="USAGE")
    deployment = DeploymentOptions(
        mode == CLUSTER, cores, hours, jobs, replicas, processes, threads, models, versions
    )
    if measure is not None:
        basis: dict[str, Any] = {"measured": str(measure), "seconds": seconds}
        size = size_from_dataset(
            measure, deployment, solver, output.parse_assignments(param), seconds
        )
    else:
        data = DatasetShape(
            *require_sizes((rows, features, labels, nnz)),
            labels_per_row,
            held_out_share,
            postings_share,
            max_label_share,
            mean_sq_norm,
        )
        basis, size = (
            {"data": data._asdict()},
            sized(data, deployment, solver, output.parse_assignments(param)),
        )
    if json:
        output.print_json({**basis, "options": deployment._asdict(), **size.as_dict()})
    elif values:
        typer.echo(chart_values(size, jobs), nl=False)
    else:
        print_size(size)


def require_sizes(numbers: tuple[int | None, ...]) -> tuple[int, int, int, int]:
    """Return N, D, K and Z. Raises InputError if one is missing."""
    rows, features, labels, nnz = numbers
    if rows is None or features is None or labels is None or nnz is None:
        raise InputError(
            "give --rows, --features, --labels and --nnz, or --measure DIR with a data set",
            code="USAGE",
        )
    return rows, features, labels, nnz


def serving_workload(
    model: Path | None, numbers: tuple[int | None, ...], entries: float, rows: int
) -> ServingLoad:
    """Return the serving workload of a model, or of K, D and W.

    Raises InputError, NotFound, Corrupt.
    """
    from xcray.model.model import Model
    from xcray.training.capacity.serving import ServingLoad

    if model is not None:
        opened = Model.open(model, verify=False)
        return ServingLoad(opened.n_labels, opened.n_features, opened.nnz, entries, rows)
    labels, features, weights = numbers
    if labels is None or features is None or weights is None:
        raise InputError(
            "--weights needs --labels and --features; or use --serve MODEL", code="USAGE"
        )
    return ServingLoad(labels, features, weights, entries, rows)


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
