"""`xcray tune`: grid search over numeric parameters on held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xcray.api.options import DEFAULT_MEASURE, PoolOptions
from xcray.cli.terminal import output
from xcray.cli.terminal.completion import DatasetArgument
from xcray.cli.terminal.declared_options import Options, with_options
from xcray.cli.terminal.interrupt import resumable_run
from xcray.cli.terminal.progress import format_duration
from xcray.cli.training.train import ParameterOption, SolverOption, format_percent, print_measures
from xcray.errors import Conflict, InputError

if TYPE_CHECKING:
    from xcray.training.tune import TuneResult


@with_options(PoolOptions)
def tune(
    dataset: DatasetArgument,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Directory to write: model/, path.json."),
    ] = Path("tune"),
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,...", help="Values of a numeric parameter; repeat for more."
        ),
    ] = None,
    select: Annotated[
        str,
        typer.Option(
            metavar="MEASURE",
            help="Measure to maximise: P, recall, nDCG, PSP or PSnDCG, @k, or a sum.",
        ),
    ] = DEFAULT_MEASURE,
    holdout: Annotated[
        float, typer.Option(help="Share of the training rows to evaluate on, chosen by hash.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the held-out rows.")] = 0,
    solver: SolverOption = "ppdsparse",
    param: ParameterOption = None,
    *,
    options: Options,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory for finished points; use it again to resume; default: OUT.run."
        ),
    ] = None,
) -> None:
    """Try all combinations, choose the best on held-out rows, and train it on all rows.

    Points start warm, from the nearest solved one, except with --pool ray.

    Example: xcray tune data --grid lam=0.1,0.01 --grid C=0.3,1,3
             xcray tune data --solver stagewise --grid lam=1e-4,1e-3 --grid bandwidth=0.5,0.7,1
    """
    if out.exists():
        raise Conflict(f"{out} exists already; choose another --out or remove it first")
    from xcray.training import TrainSpec
    from xcray.training.tune import TuneSpec
    from xcray.training.tune import tune as search

    training = TrainSpec(str(dataset), solver, output.parse_assignments(param), **options)
    spec = TuneSpec(training, parse_grid(grid), select, holdout, seed)
    with resumable_run(run_dir, out, "settings") as run:
        result = search(spec, run_dir=run.folder, out=out, progress=run.progress, stop=run.stop)
    print_result(result, select)


def parse_grid(pairs: list[str] | None) -> dict[str, tuple[float, ...]]:
    """Parse ["bandwidth=0.5,1"]; whole numbers become int. Raises InputError."""
    form, example = "NAME=VALUE,VALUE,...", "bandwidth=0.5,0.7"
    return {
        name: tuple(_number(name, word) for word in text.split(","))
        for name, text in output.parse_assignments(pairs, form, example).items()
    }


def _number(name: str, word: str) -> float:
    """Return a whole number as int, another number as float. Raises InputError."""
    try:
        return int(word) if word.strip().isdigit() else float(word)
    except ValueError:
        raise InputError(
            f"{name} has the value {word[:80]!r}, a grid needs numbers; "
            f"give a single text value as -p {name}={word[:80]}",
            code="USAGE",
        ) from None


def print_result(result: TuneResult, select: str) -> None:
    """Print one row per point with the chosen one marked, and its measures on the test part."""
    fields = {"path": str(result.path), "chosen": result.chosen, "settings": result.settings}
    output.print_json(
        {
            **fields,
            "model": str(result.model.model_path),
            "sha256": result.model.sha256,
            "measures": result.model.measures,
        }
    )
    names = list(result.chosen)
    rows = [
        [
            *(point["params"][name] for name in names),
            format_percent(point["value"]),
            point["weights"],
            "" if point["certified"] is None else f"{point['certified']:,} of {point['labels']:,}",
            format_duration(point["seconds"]),
            "chosen" if point["chosen"] else "",
        ]
        for point in result.settings
    ]
    output.print_table([*names, f"{select} held out", "weights", "certified", "took", ""], rows)
    print_measures(result.model.measures)
    output.print_line(f"model {result.model.model_path}, sha256 {result.model.sha256[:16]}")
