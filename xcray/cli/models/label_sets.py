"""`xcray models label-sets`: named sets of labels for the allow and deny lists of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xcray.cli.connect import ServerOption, make_client
from xcray.cli.terminal import output
from xcray.cli.training.labels import read_names
from xcray.errors import InputError

if TYPE_CHECKING:
    from xcray.api.model_replies import SetView

app = typer.Typer(
    name="label-sets",
    help="Named label sets of a model on a server, for --allow set:NAME and --deny set:NAME.",
    no_args_is_help=True,
)

ServerModel = Annotated[str, typer.Argument(metavar="MODEL", help="Model on the server.")]
SetName = Annotated[str, typer.Argument(metavar="SET", help="Name of a label set.")]


@app.command("list")
def list_sets(model: ServerModel, server: ServerOption = None) -> None:
    """List the label sets of a model."""
    with make_client(server) as client:
        label_sets = client.models.sets(model)
    output.print_json({"sets": list(label_sets)})
    output.print_table(
        ["set", "labels", "changed"],
        [[one["name"], one["n_labels"], one["changed"]] for one in label_sets],
    )


@app.command()
def show(
    model: ServerModel,
    name: SetName,
    version: Annotated[
        int | None,
        typer.Option(min=1, help="Version to check for missing labels; default: the latest."),
    ] = None,
    server: ServerOption = None,
) -> None:
    """Show the labels of a set, and those that the model lacks."""
    with make_client(server) as client:
        label_set = client.models.get_set(model, name, version=version)
    output.print_json(label_set)
    for label in label_set["labels"]:
        output.print_line(label)
    print_unknown(model, label_set)


@app.command()
def put(
    model: ServerModel,
    name: SetName,
    labels: Annotated[
        list[str] | None, typer.Argument(metavar="[LABEL]...", help="Label names.")
    ] = None,
    labels_file: Annotated[
        Path | None, typer.Option(help="File of label names, one per line.")
    ] = None,
    server: ServerOption = None,
) -> None:
    """Create or replace a label set; it applies from the next request on."""
    named = read_names(labels, labels_file)
    if not named:
        raise InputError(
            "give at least one label: xcray models label-sets put MODEL SET LABEL...", code="USAGE"
        )
    with make_client(server) as client:
        label_set = client.models.put_set(model, name, named)
    output.print_json(label_set)
    output.print_line(f"{name} of {model} has {label_set['n_labels']:,} labels")
    print_unknown(model, label_set)


@app.command()
def delete(model: ServerModel, name: SetName, server: ServerOption = None) -> None:
    """Delete a label set."""
    with make_client(server) as client:
        client.models.delete_set(model, name)
    output.print_json({"model": model, "deleted": name})
    output.print_line(f"set {name} of {model} deleted")


def print_unknown(model: str, label_set: SetView) -> None:
    """Print a note about labels that the model lacks."""
    if label_set["unknown"]:
        some = ", ".join(label_set["unknown"][:5]) + (
            ", ..." if len(label_set["unknown"]) > 5 else ""
        )
        output.print_note(
            f"{model}:{label_set['version']} lacks {len(label_set['unknown']):,} of these labels "
            f"and ignores them: {some}"
        )
