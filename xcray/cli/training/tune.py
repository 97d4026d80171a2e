"""`xcray path`: the best lam, tau and C by a measure on held-out rows, and the model they make."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.terminal.interrupt import resumable
from xcray.cli.terminal.multi_value import Spreading
from xcray.cli.terminal.progress import duration
from xcray.cli.training.train import Parameters, percent, show_measures
from xcray.errors import Conflict

if TYPE_CHECKING:
    from xcray.training.tuning.search import PathResult


class ByValues(Spreading):
    """`--lam 0.1 0.01`."""

    SPREAD = frozenset({"--lam", "--tau", "--C"})


def values_of(help: str) -> Any:
    """An option that takes several numbers."""
    return typer.Option(metavar="NUMBER...", help=help)


Lam = Annotated[list[float] | None, values_of("Values of lam, the weight of the l1 norm.")]
Tau = Annotated[list[float] | None, values_of("Values of tau, the weight of the squared l2 norm.")]
C = Annotated[
    list[float] | None,
    typer.Option("--C", metavar="NUMBER...", help="Values of C, the weight of a sample's loss."),
]


def path(
    dataset: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A data set directory, made by `xcray data build`."),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The folder to write: model/, path.json, path.arrow."),
    ] = Path("path"),
    lam: Lam = None,
    tau: Tau = None,
    c: C = None,
    select: Annotated[
        str,
        typer.Option(
            metavar="P@1", help="The measure to choose by: P, recall, nDCG, PSP or PSnDCG, @k."
        ),
    ] = "P@1",
    holdout: Annotated[
        float, typer.Option(help="Share of the training rows to measure on, chosen by hash.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Another seed, other held-out rows.")] = 0,
    cold: Annotated[
        bool,
        typer.Option(
            "--cold", help="Start every point from nothing, not from the nearest solved one."
        ),
    ] = False,
    solver: Annotated[str, typer.Option(help="Which solver.")] = "ppdsparse",
    param: Parameters = None,
    pool: Annotated[
        str, typer.Option(help="serial, threads, or ray (where no point starts from another).")
    ] = "threads",
    workers: Annotated[int, typer.Option(min=0, help="Workers; 0 means all cores.")] = 0,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where finished points are kept; the same one again resumes. [default: OUT.run]"
        ),
    ] = None,
    json: output.AsJson = False,
) -> None:
    """Try all combinations, choose the best on held-out rows, train it on all: xcray path data --lam 0.1 0.01 --C 0.3 1 3"""
    if out.exists():
        raise Conflict(f"{out} exists already; choose another --out or remove it first")
    from xcray.training import TrainSpec
    from xcray.training.tuning.search import PathSpec

    values = {
        "dataset": str(dataset),
        "solver": solver,
        "params": output.assignments(param),
        "pool": pool,
        "workers": workers,
    }
    grid = {name: tuple(given) for name, given in (("lam", lam), ("tau", tau), ("C", c)) if given}
    spec = PathSpec(TrainSpec.from_dict(values), grid, select, holdout, seed, warm=not cold)
    kept = run_dir or out.with_name(f"{out.name}.run")
    result = run(spec, out, kept, json)
    if run_dir is None:
        shutil.rmtree(kept, ignore_errors=True)  # ours, and of no use once the model is there
    report(result, select, json)


def run(spec: Any, out: Path, kept: Path, quiet: bool) -> PathResult:
    """Run the path with progress, stopping at Ctrl-C. Raises Stopped with the way to resume."""
    from xcray.training.tuning.search import train_path

    with resumable(lambda: f"finished points are kept in {kept}", quiet) as (show, flag):
        return train_path(spec, run_dir=kept, out=out, progress=show, stop=flag)


def report(result: PathResult, select: str, as_json: bool) -> None:
    """Say what came out: a row a point, the chosen one marked, and what it gives on the test part."""
    if as_json:
        told = {"path": str(result.path), "chosen": result.chosen, "points": result.points}
        output.emit(
            {
                **told,
                "model": str(result.model.model_path),
                "sha256": result.model.sha256,
                "measures": result.model.measures,
            }
        )
        return
    names = list(result.chosen)
    rows = [
        [
            *(point["params"][name] for name in names),
            percent(point["measures"][select]),
            point["nnz"],
            f"{point['certified']:,} of {point['classes']:,}",
            duration(point["seconds"]),
            "chosen" if point["chosen"] else "",
        ]
        for point in result.points
    ]
    output.table([*names, f"{select} held out", "weights", "certified", "took", ""], rows)
    show_measures(result.model.measures)
    output.say(f"model {result.model.model_path}, sha256 {result.model.sha256[:16]}")
