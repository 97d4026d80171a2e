"""`xcray calibrate` and `xcray thresholds`: what is fitted to the scores of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.training.train import format_percent
from xcray.errors import InputError, NotFound, excerpt

if TYPE_CHECKING:
    from xcray.model.model import Model
    from xcray.model.registry import Registry


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model directory, or NAME, NAME:VERSION, NAME@ALIAS in the home directory of a "
        "service.",
    ),
]
DatasetArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="Data set with held-out rows and the features of the model."
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Model directory to write; it must not exist."),
]
PublishOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Publish as the next version of this name in the home directory instead.",
    ),
]
HomeOption = Annotated[
    Path | None,
    typer.Option(help="Home directory of the service; default: XCRAY_HOME, else ~/.xcray."),
]
PartOption = Annotated[
    str,
    typer.Option(
        help="Rows to use: test, or train for a data set that the model was not trained on."
    ),
]


def calibrate(
    model: ModelArgument,
    dataset: DatasetArgument,
    out: OutputOption = None,
    publish: PublishOption = None,
    home: HomeOption = None,
    part: PartOption = "test",
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed of the split into fitting and evaluation rows."),
    ] = 0,
) -> None:
    """Fit probabilities to the scores of a model, on rows it was not trained on.

    Rankings stay the same; files are shared with the source model.
    """
    from xcray.training.edit.calibrate import calibrate as make

    calibration, where = edit(make, model, dataset, out, publish, home, part=part, seed=seed)
    output.print_json(
        {
            "model": where,
            "sha256": calibration.sha256,
            "calibration": calibration.calibration_report,
        }
    )
    print_calibration(calibration.calibration_report)
    output.print_line(f"model {where}, sha256 {calibration.sha256[:16]}")


def thresholds(
    model: ModelArgument,
    dataset: DatasetArgument,
    objective: Annotated[
        str,
        typer.Option(
            help="What to maximise: micro-F1, macro-F1, or the recall at a --precision (precision)."
        ),
    ] = "macro-F1",
    precision: Annotated[
        float | None, typer.Option(help="Least precision per label, for --objective precision.")
    ] = None,
    out: OutputOption = None,
    publish: PublishOption = None,
    home: HomeOption = None,
    part: PartOption = "test",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds.")] = 0,
) -> None:
    """Fit one threshold per label, on rows the model was not trained on.

    Predictions use them with --label-thresholds. Rankings stay the same; files are shared with the
    source model.
    """
    from xcray.training.edit.calibrate import fit_thresholds

    how: dict[str, Any] = {"objective": objective, "precision": precision}
    made, where = edit(
        fit_thresholds, model, dataset, out, publish, home, part=part, seed=seed, **how
    )
    fitted = made.manifest["label_thresholds"]
    output.print_json({"model": where, "sha256": made.sha256, "label_thresholds": fitted})
    measures = {name: format_percent(value) for name, value in fitted["measures"].items()}
    output.print_line(f"fitted on {fitted['rows']['fitted']:,} held-out rows; cross-validated:")
    output.print_pairs({**measures, "labels per row": f"{fitted['labels_per_row']:.2f}"})
    output.print_line(f"model {where}, sha256 {made.sha256[:16]}")


def edit(
    make: Any,
    model: str,
    dataset: Path,
    out: Path | None,
    publish: str | None,
    home: Path | None,
    **how: Any,
) -> tuple[Model, str]:
    """Write the model that `make` returns, or publish it; return it and where it is."""
    if (out is None) == (publish is None):
        raise InputError("choose the target: --output DIR or --publish NAME", code="USAGE")
    source = find_model(model, home)
    if out is not None:
        return make(source, dataset, out, **how), str(out)
    return edit_and_publish(make, source, dataset, open_registry(home), str(publish), **how)


def find_model(model: str, home: Path | None) -> Path:
    """Return a model directory, or the directory of a model in the local registry.

    Raises NotFound, which names both.
    """
    from xcray.storage.atomic import similar_directory

    if (Path(model) / "manifest.json").is_file():
        return Path(model)
    try:
        return open_registry(home).resolve(model)
    except NotFound as error:
        raise NotFound(
            f"there is no model directory {excerpt(model)}"
            f"{similar_directory(Path(model), 'manifest.json')}",
            hint=f"in the local registry: {error.message}",
        ) from None


def open_registry(home: Path | None) -> Registry:
    """Open the model registry of the local service."""
    from xcray.jobs.home import Home
    from xcray.model.registry import Registry
    from xcray.service.settings import Settings

    chosen: dict[str, Any] = {} if home is None else {"home": home}
    return Registry(Home(Settings(**chosen).home).models)


def edit_and_publish(
    make: Any, source: Path, dataset: Path, registry: Registry, name: str, **how: Any
) -> tuple[Model, str]:
    """Edit a model in a staging directory and publish it; return the model and its reference."""
    from xcray.model.model import Model
    from xcray.storage.atomic import check_name, create_staging_directory, discard_directory

    staging = create_staging_directory(
        registry.root / check_name(name, "model name")
    )  # hidden, on the registry's file system
    try:
        make(source, dataset, staging / "model", **how)
        reference = f"{name}:{registry.publish(name, staging / 'model')}"
        return Model.open(registry.resolve(reference), verify=False), reference
    finally:
        discard_directory(staging)


def print_calibration(report: Mapping[str, Any]) -> None:
    """Print the calibration errors."""
    rows = report["rows"]
    left = (
        f", {rows['left_out']:,} skipped: they occur in the training data"
        if rows["left_out"]
        else ""
    )
    bins, places = len(report["bins"]), report["places"]
    output.print_line(
        f"fitted on {rows['fitted']:,} held-out rows, "
        f"evaluated on {rows['measured']:,} others{left}"
    )
    groups = (
        f"separate ranks {', '.join(map(str, places[:-1]))}, and {places[-1]} onwards"
        if places
        else "all ranks together"
    )
    output.print_line(f"{bins} bin{'s' if bins > 1 else ''} of labels by frequency, {groups}")
    output.print_table(
        ["percent", *(f"@{k}" for k in report["report"])],
        [
            [name, *(format_percent(found[key]) for found in report["report"].values())]
            for name, key in REPORT_ROWS.items()
        ],
    )


REPORT_ROWS = {
    "ECE of sigmoid(score)": "ece_sigmoid",
    "ECE": "ece",
    "ECE of a perfect forecast": "floor",
    "Brier of sigmoid(score)": "brier_sigmoid",
    "Brier of a constant": "brier_constant",
    "Brier": "brier",
}
