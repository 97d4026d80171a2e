"""`xcray models sets`: labels kept under a name, for allow and deny lists of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xcray.cli.service.connect import ServerChoice, client_of
from xcray.cli.terminal import output
from xcray.cli.training.labels import names_of
from xcray.errors import InputError

if TYPE_CHECKING:
    from xcray.client.types import LabelSet

app = typer.Typer(
    name="sets",
    help="Labels kept under a name of a server's model: --allow set:NAME, --deny set:NAME.",
    no_args_is_help=True,
)

ModelOf = Annotated[str, typer.Argument(metavar="MODEL", help="A model of the server.")]
SetName = Annotated[str, typer.Argument(metavar="SET", help="The name of a set.")]


@app.command("list")
def index(model: ModelOf, server: ServerChoice = None, json: output.AsJson = False) -> None:
    """The sets of a model."""
    with client_of(server) as client:
        found = client.models.sets(model)
    if json:
        output.emit({"sets": list(found)})
    else:
        output.table(
            ["set", "labels", "changed"],
            [[one["name"], one["n_labels"], one["changed"]] for one in found],
        )


@app.command()
def show(
    model: ModelOf,
    name: SetName,
    version: Annotated[
        int | None, typer.Option(min=1, help="Which version may lack labels. [default: the latest]")
    ] = None,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """The labels of a set, and which of them the model lacks."""
    with client_of(server) as client:
        found = client.models.get_set(model, name, version=version)
    if json:
        output.emit(found)
        return
    for label in found["labels"]:
        output.say(label)
    tell_unknown(model, found)


@app.command()
def put(
    model: ModelOf,
    name: SetName,
    labels: Annotated[
        list[str] | None, typer.Argument(metavar="[LABEL]...", help="Names of labels.")
    ] = None,
    labels_file: Annotated[
        Path | None, typer.Option(help="A file of label names, one a line.")
    ] = None,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """Keep labels under a name, in place of what it had; the next request already sees them."""
    named = names_of(labels, labels_file)
    if not named:
        raise InputError(
            "name at least one label: xcray models sets put MODEL SET LABEL...", code="USAGE"
        )
    with client_of(server) as client:
        found = client.models.put_set(model, name, named)
    if json:
        output.emit(found)
        return
    output.say(f"{name} of {model} has {found['n_labels']:,} labels")
    tell_unknown(model, found)


@app.command()
def delete(
    model: ModelOf, name: SetName, server: ServerChoice = None, json: output.AsJson = False
) -> None:
    """Remove a set."""
    with client_of(server) as client:
        client.models.delete_set(model, name)
    if json:
        output.emit({"model": model, "deleted": name})
    else:
        output.say(f"{model} has no set {name} any more")


def tell_unknown(model: str, found: LabelSet) -> None:
    """A remark on labels that the model lacks."""
    if found["unknown"]:
        some = ", ".join(found["unknown"][:5]) + (", ..." if len(found["unknown"]) > 5 else "")
        output.note(
            f"{model}:{found['version']} lacks {len(found['unknown']):,} of them, which it passes over: {some}"
        )
