"""`xcray train`: train locally, without a server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.api.options import TrainingOptions
from xcray.cli.connect import RayAddressOption, resolve_ray_address
from xcray.cli.terminal import output
from xcray.cli.terminal.completion import complete_datasets, complete_solvers
from xcray.cli.terminal.declared_options import Options, with_options
from xcray.cli.terminal.interrupt import resumable_run, run_directory
from xcray.cli.terminal.progress import format_duration
from xcray.cli.training.data_storage import local_dataset
from xcray.cli.training.estimate import print_estimate, print_values
from xcray.errors import Conflict, Corrupt, InputError
from xcray.solvers import BUILT_IN

if TYPE_CHECKING:
    from xcray.training import TrainResult

ParameterOption = Annotated[
    list[str] | None,
    typer.Option("-p", "--param", metavar="NAME=VALUE", help="Solver parameter. Repeatable."),
]

SolverOption = Annotated[
    str,
    typer.Option(
        help=f"Solver: {', '.join(BUILT_IN)}; or that of another package, see `xcray solvers`.",
        autocompletion=complete_solvers,
    ),
]


@with_options(TrainingOptions)
def train(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="Data set directory, see `xcray data build`; or its URI in object storage, see "
            "`xcray data push`.",
            autocompletion=complete_datasets,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Model directory to write; it must not exist.")
    ] = Path("model"),
    solver: SolverOption = "ppdsparse",
    param: ParameterOption = None,
    *,
    options: Options,
    ray_address: RayAddressOption = None,
    dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard",
            help="Start the local Ray of --pool ray with Ray's dashboard and metrics.",
        ),
    ] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory for finished work, which is kept. With it the command can be repeated: "
            "it resumes, and succeeds if OUT already holds the model of this training; default: "
            "OUT.run, until the model is complete."
        ),
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Print the estimated memory, disk and time, and exit."),
    ] = False,
    values: Annotated[
        bool,
        typer.Option(
            "--values",
            help="Print --estimate as values of the Helm chart; with --pool ray for mode cluster.",
        ),
    ] = False,
) -> None:
    """Train a model on a data set.

    Ctrl-C keeps finished work; the same command resumes.

    Example: xcray train DATA --auto P@1 --out MODEL
    """
    if out.exists() and run_dir is None and not (estimate or values):
        raise Conflict(
            f"{out} exists already; choose another --out, remove it first, or use --run-dir"
        )
    address = resolve_ray_address(options.get("pool"), ray_address)
    if dashboard and (options.get("pool") != "ray" or ray_address is not None):
        raise InputError("--dashboard needs --pool ray and no --ray-address", code="USAGE")
    from xcray.training import TrainSpec

    spec = TrainSpec(
        dataset,
        solver,
        output.parse_assignments(param),
        ray_address=address,
        **options,
    )
    directory = local_dataset(dataset)
    spec = replace(spec, dataset=str(directory))
    if values:
        print_values(spec)
    if estimate:
        from xcray.training.strategies import estimate_document

        print_estimate(*estimate_document(spec, run_directory(run_dir, out), out))
        raise typer.Exit
    if not output.is_json():
        print_data_warnings(directory)
    finished = None if run_dir is None else find_finished_model(spec, out)
    with ray_with_dashboard(spec) if dashboard and not finished else nullcontext():
        print_result(finished or train_and_clean(spec, out, run_dir))


@contextmanager
def ray_with_dashboard(spec: Any) -> Iterator[None]:
    """Start the Ray of a training with its dashboard; print where that and the metrics are."""
    from xcray.training.capacity.preflight import worker_count
    from xcray.workers.ray.session import free_port, load_ray, local_ray

    port = free_port()
    with local_ray(worker_count(spec), None, dashboard=port):
        metrics = load_ray().nodes()[0]["MetricsExportPort"]
        output.print_note(
            f"Ray's dashboard: http://127.0.0.1:{port}, its token: "
            f"cat {os.environ['RAY_AUTH_TOKEN_PATH']}; metrics: http://127.0.0.1:{metrics}/metrics",
            always=True,
        )
        yield


def print_data_warnings(path: Path) -> None:
    """Print what looks wrong in a data set, as far as that is cheap to find."""
    from xcray.data.data_warnings import data_warnings
    from xcray.data.dataset import Dataset

    output.print_warnings(data_warnings(Dataset.open(path), copies=False))


def train_and_clean(spec: Any, out: Path, run_dir: Path | None) -> TrainResult:
    """Train; then remove the default run directory if the model is complete."""
    from xcray.training import train
    from xcray.training.report.partial import is_complete

    with resumable_run(run_dir, out, "labels") as run:
        result = train(spec, run_dir=run.folder, out=out, progress=run.progress, stop=run.stop)
        complete = is_complete(result.report)
        run.keep = run.keep or not complete
    if not complete:
        output.print_note(
            f"to complete it: the same command with --run-dir {run.folder}, more time and "
            "another --out"
        )
    return result


def find_finished_model(spec: Any, out: Path) -> TrainResult | None:
    """Return the model written by an earlier run of this command, if any.

    A damaged or incomplete model is renamed, so that the training can write it again.
    """
    from xcray.training.finished import find_finished

    try:
        result = find_finished(spec, out)
    except Corrupt as error:
        aside = out.with_name(f"{out.name}.damaged-{uuid.uuid4().hex[:8]}")
        out.rename(aside)
        output.print_note(
            f"{error.message}; it is now {aside.name}, {out.name} is written again", always=True
        )
        return None
    if result is not None:
        output.print_note(f"{out} exists already: nothing to train", always=True)
    return result


LEFT_OUT = {  # part of a model -> entry of the report with the reason why it is missing
    "a ranker": "not_ranked",
    "probabilities": "not_calibrated",
    "thresholds per label": "no_thresholds",
}


def print_result(result: TrainResult) -> None:
    """Print the result of a training."""
    output.print_json(
        {
            "model": str(result.model_path),
            "sha256": result.sha256,
            "measures": result.measures,
            "report": result.report,
        }
    )
    if "auto" in result.report:
        print_settings(result.report["auto"])
    print_measures(result.measures)
    took = format_duration(sum(result.report["seconds"].values()))
    if "partial" in result.report:
        output.print_line(format_partial(result.report["partial"]))
    for missing, name in LEFT_OUT.items():
        if name in result.report:
            output.print_note(f"without {missing}: {result.report[name]}")
    if "stopped" in result.report:
        output.print_line(f"ended: {result.report['stopped']}")
    output.print_warnings(result.report.get("warnings", ()))
    output.print_line(f"model {result.model_path} in {took}, sha256 {result.sha256[:16]}")


def print_settings(auto: Mapping[str, Any]) -> None:
    """Print the settings that were tried, one per row, the chosen one, and why it ended."""
    if "text" in auto:
        print_text_options(auto["text"])
    settings = auto["settings"]
    names = list(settings[0]["params"])
    rows = [
        [
            *(row["params"][name] for name in names),
            format_percent(row["value"]),
            row["weights"],
            "chosen" if row["chosen"] else "",
        ]
        for row in settings
    ]
    measured = f"{auto['select']} of {auto['held_out']:,} rows held out, {auto['labels']:,} labels"
    output.print_table([*names, measured, "weights", ""], rows)
    output.print_line(
        f"selection ended because {auto['ended']}; "
        f"its work is that of {auto['trainings']:.1f} trainings with the first setting"
    )


def print_text_options(text: Mapping[str, Any]) -> None:
    """Print the text options that were tried, one per row, each with those kept before it.

    The values differ from those of `print_settings`: terms are those of the other rows alone.
    """
    rows = [
        [
            row["name"],
            format_percent(row["value"]),
            f"{100 * row['gain']:+.2f} ({100 * row['error']:.2f})",
            row["weights"],
            "kept" if row["kept"] else "",
        ]
        for row in text["tried"]
    ]
    measured = f"{text['select']} of {text['held_out']:,} rows held out, terms of the others"
    output.print_table(["texts", measured, "gain (error)", "weights", ""], rows)
    for line in text["not_tried"]:
        output.print_line(f"not tried: {line}")


def format_partial(partial: Mapping[str, Any]) -> str:
    """Describe in one line which labels a partial model lacks."""
    done, missing, share = partial["done"], partial["missing"], partial["positives_share"]
    return (
        f"PARTIAL: {done:,} of {done + missing:,} labels are trained, "
        f"which have {100 * share:.1f} % of all positives"
    )


def print_measures(measures: dict[str, float]) -> None:
    """Print measures in percent: one row per family, one column per k."""
    families: dict[str, dict[str, float]] = {}
    for name, value in measures.items():
        family, _, k = name.partition("@")
        families.setdefault(family, {})[k] = value
    ks = sorted({k for row in families.values() for k in row if k}, key=int)
    at_k = {family: row for family, row in families.items() if "" not in row}
    if at_k:
        rows = [[family, *(format_percent(row.get(k)) for k in ks)] for family, row in at_k.items()]
        output.print_table(["percent", *(f"@{k}" for k in ks)], rows)
    alone = {family: format_percent(row[""]) for family, row in families.items() if "" in row}
    output.print_pairs(alone)


def format_percent(value: float | None) -> str:
    """Format a fraction in percent with two digits."""
    return "-" if value is None else f"{100 * value:.2f}"
