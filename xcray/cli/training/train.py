"""`xcray train`: train here and now, without a server."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.terminal.interrupt import resumable
from xcray.cli.terminal.progress import duration
from xcray.cli.training.estimate import show_estimate
from xcray.errors import Conflict, InputError, ParameterError

if TYPE_CHECKING:
    from xcray.model.objectstore.client import Place
    from xcray.training import TrainResult

Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "-p", "--param", metavar="NAME=VALUE", help="A parameter of the solver; repeat it."
    ),
]


ADDRESS = re.compile(r"[^\s/]+:\d{1,5}")


def show_parameters(solver: str, as_json: bool) -> None:
    """Print what the solver's parameters are, and end."""
    from xcray.solvers import parameter_table

    rows = parameter_table(solver)
    if as_json:
        output.emit(rows)
    else:
        output.table(
            ["parameter", "default", "range", "meaning"],
            [[r["name"], r["default"], range_of(r), r["help"]] for r in rows],
        )
    raise typer.Exit


def range_of(row: dict[str, Any]) -> str:
    """The range of a parameter: `> 0`, `1 to 100`, `a, b`."""
    if "choices" in row:
        return ", ".join(row["choices"])
    low = f"> {row['above']}" if "above" in row else f">= {row['low']}" if "low" in row else ""
    high = f"<= {row['high']}" if "high" in row else ""
    return ", ".join(part for part in (low, high) if part)


def train(
    dataset: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            show_default=False,
            help="A data set directory, made by `xcray data build`.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The model directory to write; it must not exist.")
    ] = Path("model"),
    solver: Annotated[str, typer.Option(help="Which solver.")] = "ppdsparse",
    param: Parameters = None,
    pool: Annotated[str, typer.Option(help="serial, threads, or ray.")] = "threads",
    workers: Annotated[int, typer.Option(min=0, help="Workers; 0 means all cores.")] = 0,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="A running Ray, host:port, or auto: that of RAY_ADDRESS; without one, --pool ray starts a local one."
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where finished work is kept; the same one again resumes. [default: OUT.run]"
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The model's name. [default: that of the directory]")
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Begin no class, or epoch, after so long; publish what is done, most frequent labels first.",
        ),
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Refuse to take more memory than this, say 4GiB.")
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Fit probabilities too: half of the held-out rows fits, the other measures.",
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="A model of this training that is at OUT already counts as done: for commands run again.",
        ),
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Copy the model to this folder of object storage too, see xcray models push.",
        ),
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Show what memory, disk and time it would take, and end."),
    ] = False,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Show the solver's parameters and end.")
    ] = False,
    json: output.AsJson = False,
) -> None:
    """Train a model on a data set. Ctrl-C keeps finished work; the same command again does the rest."""
    if parameters:
        show_parameters(solver, json)
    if dataset is None:
        raise InputError("name a data set: xcray train DIR")
    if out.exists() and not (resume or estimate):
        raise Conflict(f"{out} exists already; choose another --out or remove it first")
    from xcray.training import TrainSpec

    told = {
        "dataset": str(dataset),
        "solver": solver,
        "params": output.assignments(param),
        "pool": pool,
        "workers": workers,
    }
    told |= {
        "ray_address": address_of(ray_address),
        "memory_limit": memory_limit,
        "max_seconds": max_seconds,
    }
    spec = TrainSpec.from_dict(
        {**told, "calibrate": calibrate, **({} if name is None else {"name": name})}
    )
    if estimate:
        show_estimate(spec, out, run_dir or out.with_name(f"{out.name}.run"), json)
    target = None if push is None else folder_of(push, name or out.resolve().name)
    result = (found_at(spec, out) if resume else None) or complete(spec, out, run_dir, json)
    if target is not None:
        send(result, target)
    report(result, json)


def complete(spec: Any, out: Path, run_dir: Path | None, quiet: bool) -> TrainResult:
    """Train; a run directory of our own goes once the whole model is there."""
    kept = run_dir or out.with_name(f"{out.name}.run")
    result = run(spec, out, kept, quiet)
    if run_dir is None and "partial" not in result.report:
        shutil.rmtree(kept, ignore_errors=True)
    if "partial" in result.report and not quiet:
        output.note(
            f"to complete it: the same command with --run-dir {kept}, more time and another --out"
        )
    return result


def address_of(given: str | None) -> str | None:
    """Where Ray is; `auto` is the cluster that runs this command, as a job of its own. Raises ParameterError."""
    if given != "auto":
        return given
    address = os.environ.get("RAY_ADDRESS", "")
    if not ADDRESS.fullmatch(address):
        raise ParameterError(
            "--ray-address auto is for jobs of a Ray cluster, which have RAY_ADDRESS: name host:port",
            code="RAY_ADDRESS",
        )
    return address


def found_at(spec: Any, out: Path) -> TrainResult | None:
    """The model that an earlier run of this command has made, if one has come so far."""
    from xcray.training.finished import finished

    found = finished(spec, out)
    if found is not None:
        output.note(f"{out} is there already: nothing is left to train")
    return found


def folder_of(uri: str, name: str) -> Place:
    """Where a model of a name goes. It is asked for now: a bucket that lacks, or is not open, is told before hours of training."""
    from xcray.model.objectstore.client import Place
    from xcray.model.objectstore.remote_registry import versions
    from xcray.storage.atomic import check_name

    place = Place.at(uri) / check_name(name, "model name")
    versions(place)
    return place


def send(result: TrainResult, place: Place) -> None:
    """Copy a model to object storage; it is not sent twice."""
    from xcray.model.objectstore.remote_registry import push

    output.note(f"pushed to {push(result.model_path, place).shown}")


def run(spec: Any, out: Path, run_dir: Path, quiet: bool) -> TrainResult:
    """Train with progress, stopping at Ctrl-C. Raises Stopped with the way to resume."""
    from xcray.training import train

    with resumable(lambda: f"finished classes are kept in {run_dir}", quiet) as (show, flag):
        return train(spec, run_dir=run_dir, out=out, progress=show, stop=flag)


def report(result: TrainResult, as_json: bool) -> None:
    """Say what came out."""
    if as_json:
        output.emit(
            {
                "model": str(result.model_path),
                "sha256": result.sha256,
                "measures": result.measures,
                "report": result.report,
            }
        )
        return
    show_measures(result.measures)
    took = duration(sum(result.report["seconds"].values()))
    if "partial" in result.report:
        output.say(partial_line(result.report["partial"]))
    if "not_calibrated" in result.report:
        output.note(f"without probabilities: {result.report['not_calibrated']}")
    output.say(f"model {result.model_path} in {took}, sha256 {result.sha256[:16]}")


def partial_line(partial: Mapping[str, Any]) -> str:
    """What a model lacks whose time was up, in a line."""
    done, missing, share = partial["done"], partial["missing"], partial["positives_share"]
    return f"PARTIAL: {done:,} of {done + missing:,} labels are trained, which have {100 * share:.1f} % of all positives"


def show_measures(measures: dict[str, float]) -> None:
    """Measures as a table in percent: one row a family, one column a k."""
    families: dict[str, dict[str, float]] = {}
    for name, value in measures.items():
        family, _, k = name.partition("@")
        families.setdefault(family, {})[k] = value
    ks = sorted({k for row in families.values() for k in row if k}, key=int)
    at_k = {family: row for family, row in families.items() if "" not in row}
    if at_k:
        rows = [[family, *(percent(row.get(k)) for k in ks)] for family, row in at_k.items()]
        output.table(["percent", *(f"@{k}" for k in ks)], rows)
    alone = {family: percent(row[""]) for family, row in families.items() if "" in row}
    output.pairs(alone)


def percent(value: float | None) -> str:
    """A fraction in percent, two digits."""
    return "-" if value is None else f"{100 * value:.2f}"
