"""`xcray labels list` and `xcray labels show`: what a model knows about its labels."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any

import typer

from xcray.cli.connect import ServerOption, model_client
from xcray.cli.models.open_model import open_model
from xcray.cli.models.predict import ModelName, is_directory
from xcray.cli.terminal import output


def list_labels(
    model: ModelName,
    contains: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only names with this text, in any case.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number; 0 for all.")] = 100,
    server: ServerOption = None,
) -> None:
    """List the labels of a model: training rows, gap, number of weights."""
    most = limit or None
    if is_directory(model, server):
        from xcray.predict import label_details

        opened = label_details.list_labels(open_model(model), 0, most, contains)
        labels: list[Mapping[str, Any]] = [each._asdict() for each in opened]
    else:
        with model_client(server, model) as client:
            labels = list(islice(client.models.labels(model, contains=contains), most))
    output.print_json({"model": model, "labels": labels})
    columns = ("number", "label", "positives", "gap", "weights")
    output.print_table(
        ["number", "label", "training rows", "gap", "weights"],
        [[each[column] for column in columns] for each in labels],
    )


def show(
    model: ModelName,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="Name of the label.")],
    features: Annotated[int, typer.Option(min=0, max=1000, help="Number of features.")] = 10,
    similar: Annotated[int, typer.Option(min=0, max=1000, help="Number of labels.")] = 10,
    server: ServerOption = None,
) -> None:
    """Show a label: training rows, gap, largest weights, and the labels with similar weights."""
    if is_directory(model, server):
        from xcray.predict.label_details import label_details

        details: Mapping[str, Any] = label_details(open_model(model), label, features, similar)
    else:
        with model_client(server, model) as client:
            details = client.models.label(model, label, features=features, similar=similar)
    output.print_json(details)
    pairs = {name: details[name] for name in ("label", "number", "gap", "weights", "bias")}
    output.print_pairs({**pairs, "training rows": details["positives"]})
    output.print_table(
        ["feature", "weight"], [[each["feature"], each["weight"]] for each in details["features"]]
    )
    similar_labels = [[each["label"], each["cosine"]] for each in details["similar"]]
    output.print_table(["similar label", "cosine"], similar_labels or [["none", "-"]])
    for group in details["groups"]:
        names = ", ".join(group["labels"])
        output.print_line(f"in a group of {group['n_labels']:,} labels: {names}")
