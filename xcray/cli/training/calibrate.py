"""`xcray calibrate` and `xcray thresholds`: what is fitted to the scores of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.training.train import format_percent

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="Model directory.")]
DatasetArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="Data set with held-out rows and the features of the model."
    ),
]
OutputOption = Annotated[
    Path, typer.Option("--out", "-o", help="Model directory to write; it must not exist.")
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
    out: OutputOption,
    part: PartOption = "test",
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed of the split into fitting and evaluation rows."),
    ] = 0,
) -> None:
    """Fit probabilities to the scores of a model, on rows it was not trained on.

    Rankings stay the same; files are shared with the source model.

    Example: xcray calibrate MODEL DATA --out CALIBRATED
    """
    from xcray.training.edit.calibrate import calibrate as make

    made = make(model, dataset, out, part=part, seed=seed)
    report = made.calibration_report
    output.print_json({"model": str(out), "sha256": made.sha256, "calibration": report})
    print_calibration(report)
    output.print_line(f"model {out}, sha256 {made.sha256[:16]}")


def thresholds(
    model: ModelArgument,
    dataset: DatasetArgument,
    out: OutputOption,
    objective: Annotated[
        str,
        typer.Option(
            help="What to maximise: micro-F1, macro-F1, or the recall at a --precision (precision)."
        ),
    ] = "macro-F1",
    precision: Annotated[
        float | None, typer.Option(help="Least precision per label, for --objective precision.")
    ] = None,
    part: PartOption = "test",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds.")] = 0,
) -> None:
    """Fit one threshold per label, on rows the model was not trained on.

    Predictions use them with --label-thresholds. Rankings stay the same; files are shared with the
    source model.

    Example: xcray thresholds MODEL DATA --objective macro-F1 --out MODEL-2
    """
    from xcray.training.edit.calibrate import fit_thresholds

    made = fit_thresholds(
        model, dataset, out, objective=objective, precision=precision, part=part, seed=seed
    )
    fitted = made.manifest["label_thresholds"]
    output.print_json({"model": str(out), "sha256": made.sha256, "label_thresholds": fitted})
    measures = {name: format_percent(value) for name, value in fitted["measures"].items()}
    output.print_line(f"fitted on {fitted['rows']['fitted']:,} held-out rows; cross-validated:")
    output.print_pairs({**measures, "labels per row": f"{fitted['labels_per_row']:.2f}"})
    output.print_line(f"model {out}, sha256 {made.sha256[:16]}")


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
