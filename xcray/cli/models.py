"""`xcray models`: models of a server, and model directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli import output, sets
from xcray.cli.predict import ModelName, is_directory
from xcray.cli.server import ServerChoice, client_of, located
from xcray.cli.train import percent, show_measures

if TYPE_CHECKING:
    from xcray.model.diff import ModelDiff
    from xcray.model.model import Model

app = typer.Typer(name="models", help="Models: list, show, alias, card, upgrade, diff, sets.", no_args_is_help=True)
app.add_typer(sets.app, name="sets")

SHOWN = 20  # names of a list in a diff


@app.command("list")
def index(server: ServerChoice = None, json: output.AsJson = False) -> None:
    """All models of a server."""
    with client_of(server) as client:
        models = client.models.list()
    if json:
        output.emit({"models": models})
        return
    output.table(["model", "versions", "aliases", "labels", "P@1", "size"], [line_of(model) for model in models])


def line_of(model: Mapping[str, Any]) -> list[Any]:
    """A model as a row."""
    latest = model["latest"]
    aliases = [f"{alias}={version}" for alias, version in sorted(model["aliases"].items())]
    measured = percent(latest["measures"].get("P@1"))
    return [model["name"], len(model["versions"]), aliases, latest["n_labels"], measured, output.bytes_of(latest["n_bytes"])]


@app.command()
def show(model: ModelName, server: ServerChoice = None, json: output.AsJson = False) -> None:
    """One model: sizes, measures, where it came from."""
    found = of_directory(model) if is_directory(model, server) else of_server(model, server)
    if json:
        output.emit(found)
        return
    measures = found.pop("measures")
    output.pairs({name: value for name, value in found.items() if not isinstance(value, dict)})
    show_measures(measures)


def of_directory(model: str) -> dict[str, Any]:
    """The figures of a model directory."""
    from xcray.model.model import Model

    opened = Model.open(model, verify=False)
    kept = ("solver", "params", "seed", "created", "dataset_hash")
    return {
        "path": model,
        "sha256": opened.sha256,
        "n_labels": opened.n_labels,
        "n_features": opened.n_features,
        "nnz": opened.nnz,
        "n_bytes": opened.n_bytes,
        "text": opened.text is not None,
        **{name: opened.manifest[name] for name in kept if name in opened.manifest},
        **more_of(opened),
        "measures": opened.measures,
    }


def more_of(model: Model) -> dict[str, Any]:
    """What only some models have to say: that they are partial, and what was done to earlier ones to make them."""
    missing = model.manifest.get("partial", {}).get("missing", 0)
    partial = {"partial": f"{missing:,} of {model.n_labels:,} labels were not trained: the time was up"} if missing else {}
    steps = [f"{step['operation']} ({step['parent'][:16]})" for step in model.provenance]
    return {**partial, **({"made by": steps} if steps else {}), **calibration_of(model.calibrated)}


def calibration_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """What a calibrated model's probabilities are worth, in a line."""
    if not found:
        return {}
    errors = ", ".join(f"@{k} {percent(one['ece_sigmoid'])} -> {percent(one['ece'])}" for k, one in found["report"].items())
    return {"calibrated": f"ECE {errors} % on {found['rows']['measured']:,} rows (before: sigmoid of the score)"}


def of_server(model: str, server: str | None) -> dict[str, Any]:
    """The figures of a version on a server."""
    with client_of(server) as client:
        return dict(client.models.version(*located(client, model)))


@app.command()
def alias(
    model: Annotated[str, typer.Argument(metavar="NAME", help="A model of the server.")],
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="The alias to point.")],
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The version it should mean.")],
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """Point an alias at a version; the next request already sees it."""
    with client_of(server) as client:
        found = client.models.set_alias(model, alias, version)
    if json:
        output.emit(found)
    else:
        output.say(f"{model}@{alias} is version {version}")


@app.command()
def card(model: ModelName, server: ServerChoice = None, json: output.AsJson = False) -> None:
    """The model card, in Markdown."""
    if is_directory(model, server):
        text = (Path(model) / "card.md").read_text(encoding="utf-8")
    else:
        with client_of(server) as client:
            text = client.models.card(*located(client, model))
    if json:
        output.emit({"model": model, "card": text})
    else:
        print(text.rstrip("\n"))


@app.command()
def upgrade(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model directory of any earlier format.")],
    output_directory: Annotated[Path, typer.Argument(metavar="NEW", help="Where the upgraded one goes.")],
    json: output.AsJson = False,
) -> None:
    """A model directory in the present format, whose search needs no preparation when it is opened; content and sha256 stay."""
    from xcray.model.derived import with_lists
    from xcray.model.model import Model

    made = with_lists(Model.open(model), output_directory)
    if json:
        output.emit({"model": str(made.path), "sha256": made.sha256, "bytes": made.n_bytes})
    else:
        output.say(f"{made.path}: {made.n_bytes:,} bytes, sha256 {made.sha256}")


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A model directory.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Another one.")],
    max_loss: Annotated[
        float | None, typer.Option(help="End with 1 when P@1 falls by more than so many points: a gate for CI.")
    ] = None,
    json: output.AsJson = False,
) -> None:
    """What changed from one model directory to another: labels, weights, measures."""
    from xcray.model.diff import diff as compare
    from xcray.model.model import Model

    found = compare(Model.open(before, verify=False), Model.open(after, verify=False))
    if json:
        output.emit(found.as_dict())
    else:
        show_diff(found)
    old, new = found.measures.get("P@1", (None, None))
    lost = max_loss is not None and old is not None and new is not None and 100 * (old - new) > max_loss
    raise typer.Exit(output.FAILURE if lost else output.OK)


def show_diff(found: ModelDiff) -> None:
    """A diff for people."""
    output.pairs(
        {
            "content": "the same" if found.same_content else "different",
            "labels": f"{len(found.identical):,} identical, {len(found.changed):,} changed",
            "added": some(found.added),
            "removed": some(found.removed),
            "weights": f"{found.nnz[0]:,} -> {found.nnz[1]:,}",
            "features": f"{found.n_features[0]:,} -> {found.n_features[1]:,}",
            **{name: f"{percent(old)} -> {percent(new)}" for name, (old, new) in found.measures.items()},
        }
    )


def some(names: tuple[str, ...]) -> str:
    """How many, and the first of them."""
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return f"{len(names):,}" + (f": {shown}" if names else "")
