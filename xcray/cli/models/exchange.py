"""`xcray models import` and `export`: linear models of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xcray.cli.models.open_model import open_model
from xcray.cli.terminal import output
from xcray.cli.training.labels import read_text


def import_model(
    file_format: Annotated[
        str,
        typer.Argument(metavar="FORMAT", help="liblinear (also DiSMEC), dismec (DiSMEC++), npz."),
    ],
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="Model file or folder; of dismec, its JSON file."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Model directory to write.")],
    like: Annotated[
        Path | None,
        typer.Option(
            "--like", metavar="DIR", help="Data set whose names and text pipeline to use."
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option("--labels", metavar="FILE", help="Names of the labels, one per line."),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option("--features", metavar="FILE", help="Names of the features, one per line."),
    ] = None,
    bias: Annotated[
        bool,
        typer.Option("--bias", help="The last feature is the constant 1: its weights are biases."),
    ] = False,
) -> None:
    """Convert a linear model of another program to a model directory.

    Example: xcray models import liblinear heart.model MODEL
    """
    from xcray.model.exchange.formats import import_model as convert

    files = {"labels": labels, "features": features}
    names = {
        name: None if file is None else read_text(file).splitlines() for name, file in files.items()
    }
    model = convert(file_format, source, out, bias=bias, like=like, **names)
    details = {"model": str(model.path), "sha256": model.sha256, "n_labels": model.n_labels}
    output.print_json({**details, "n_features": model.n_features, "nnz": model.nnz})
    sizes = f"{model.n_labels:,} labels, {model.n_features:,} features, {model.nnz:,} weights"
    output.print_line(f"{model.path}: {sizes}, sha256 {model.sha256}")


def export_model(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model directory.")],
    file_format: Annotated[
        str, typer.Argument(metavar="FORMAT", help="liblinear, dismec (DiSMEC++), npz.")
    ],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="File to write.")],
) -> None:
    """Write the weights of a model directory for another program.

    Example: xcray models export MODEL npz weights.npz
    """
    from xcray.model.exchange.formats import export_model as convert

    opened = open_model(str(model))
    convert(opened, file_format, target)
    details = {"file": str(target), "bytes": target.stat().st_size, "row_norm": opened.row_norm}
    output.print_json(details)
    output.print_line(f"{target}: {target.stat().st_size:,} bytes")
    if opened.row_norm != "none" and file_format in ("liblinear", "dismec"):
        output.print_line("the model was trained on rows of length 1: divide rows by their length")
