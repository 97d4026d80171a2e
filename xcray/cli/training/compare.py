"""`xcray compare`: train several solvers on a data set and evaluate them side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.api.options import TrainingOptions
from xcray.cli.terminal import output
from xcray.cli.terminal.completion import complete_datasets, complete_solvers
from xcray.cli.terminal.declared_options import Options, with_options
from xcray.cli.terminal.evaluations import print_evaluation
from xcray.cli.training.data_storage import local_dataset
from xcray.cli.training.train import ParameterOption, find_finished_model, train_and_clean
from xcray.errors import InputError, Stopped, XcrayError

if TYPE_CHECKING:
    from xcray.training import TrainSpec


@with_options(TrainingOptions)
def compare(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="Data set directory, or its URI in object storage.",
            autocompletion=complete_datasets,
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOLVER]...",
            help="Solvers; the differences are to the first one.",
            autocompletion=complete_solvers,
        ),
    ] = None,
    solvers: Annotated[
        list[str] | None,
        typer.Option(
            "--solvers", metavar="SOLVER", help="The same as SOLVER; also separated by commas."
        ),
    ] = None,
    param: ParameterOption = None,
    *,
    options: Options,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Directory to write: one model per solver, compare.json, .svg."
        ),
    ] = Path("compare"),
    k: Annotated[
        list[int] | None,
        typer.Option("-k", min=1, help="Ranks to measure at. Repeatable; default: 1 3 5."),
    ] = None,
) -> None:
    """Train solvers on a data set and compare them on its held-out rows.

    Ctrl-C keeps finished models and labels; the same command resumes. -p NAME=VALUE sets the
    parameter of every solver, -p SOLVER.NAME=VALUE that of one. A solver that fails does not stop
    the others.

    Example: xcray compare data --solvers ppdsparse dismec l2svm -p C=1 -p ppdsparse.lam=0.01
    """
    chosen = [name for each in solvers or () for name in each.split(",")] + (names or [])
    if not chosen:
        raise InputError(
            "give at least one solver: xcray compare DIR --solvers ppdsparse dismec", code="USAGE"
        )
    directory = measurable_dataset(dataset)
    specs = make_specs(list(dict.fromkeys(chosen)), param, str(directory), options)
    failures = train_each(specs, out)
    document = evaluate_trained(
        [out / name for name in specs if name not in failures], directory, out, k
    )
    report(document, failures, out)


def measurable_dataset(place: str) -> Path:
    """Return the directory of a data set. Raises InputError if it has no held-out rows."""
    from xcray.data.dataset import Dataset
    from xcray.training.calibration.fit import held_out_part

    directory = local_dataset(place)
    held_out_part(Dataset.open(directory))
    return directory


def report(document: dict[str, Any], failures: Mapping[str, XcrayError], out: Path) -> None:
    """Write and print the comparison. Exits with 1 if a training failed."""
    from xcray.storage.atomic import write_json

    document["failures"] = {name: error.as_dict() for name, error in failures.items()}
    write_json(out / "compare.json", document)
    output.print_json(document)
    if document["models"]:
        print_evaluation(document)
        output.print_warnings(document["warnings"])
    for name, error in failures.items():
        output.print_note(f"{name} failed: {error.message}")
    output.print_line(f"{out}: the models, compare.json and compare.svg")
    if failures:
        raise typer.Exit(output.FAILURE)


def make_specs(
    solvers: Sequence[str], pairs: list[str] | None, dataset: str, options: Mapping[str, Any]
) -> dict[str, TrainSpec]:
    """Return the training of each solver; raises ParameterError before any of them starts."""
    from xcray.training import TrainSpec

    given = output.parse_assignments(pairs)
    for name in given:
        solver = name.rpartition(".")[0]
        if solver and solver not in solvers:
            raise InputError(f"-p {name}: {solver} is not among the solvers", code="USAGE")
    shared = {name: value for name, value in given.items() if "." not in name}
    return {
        solver: TrainSpec(
            dataset,
            solver,
            {
                **shared,
                **{
                    name.removeprefix(f"{solver}."): value
                    for name, value in given.items()
                    if name.startswith(f"{solver}.")
                },
            },
            **options,
        )
        for solver in solvers
    }


def train_each(specs: Mapping[str, TrainSpec], out: Path) -> dict[str, XcrayError]:
    """Train what an earlier run of the command has not; return the errors by solver."""
    out.mkdir(parents=True, exist_ok=True)
    failures: dict[str, XcrayError] = {}
    for name, spec in specs.items():
        output.print_note(f"training {name}")
        try:
            if find_finished_model(spec, out / name) is None:
                train_and_clean(spec, out / name, None)
        except Stopped:
            raise
        except XcrayError as error:
            failures[name] = error
    return failures


def evaluate_trained(
    models: Sequence[Path], dataset: Path, out: Path, ks: list[int] | None
) -> dict[str, Any]:
    """Evaluate the models, if there are any, and draw the picture."""
    if not models:
        return {"models": []}
    from xcray.training.evaluation import EvaluationOptions, evaluate_models
    from xcray.training.report.evaluation_pictures import evaluation_picture

    document = evaluate_models(models, dataset, EvaluationOptions(ks=sorted(set(ks or (1, 3, 5)))))
    evaluation_picture(document).write(out / "compare.svg")
    return document
