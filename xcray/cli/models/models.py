"""`xcray models`: models of a server, and model directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.models import label_sets as sets
from xcray.cli.models import object_storage as storage
from xcray.cli.models.predict import ModelName, is_directory
from xcray.cli.service.connect import ServerChoice, client_of, located
from xcray.cli.terminal import output
from xcray.cli.training.train import percent, show_measures
from xcray.errors import InputError, excerpt

if TYPE_CHECKING:
    from xcray.model.diff import ModelDiff
    from xcray.model.model import Model

app = typer.Typer(
    name="models",
    help="Models: list, show, alias, card, upgrade, diff, sets, push, pull.",
    no_args_is_help=True,
)
app.add_typer(sets.app, name="sets")
app.command("push")(storage.push)
app.command("pull")(storage.pull)
app.command("remote")(storage.remote)

SHOWN = 20  # names of a list in a diff


@app.command("list")
def index(server: ServerChoice = None, json: output.AsJson = False) -> None:
    """All models of a server."""
    with client_of(server) as client:
        models = client.models.list()
    if json:
        output.emit({"models": models})
        return
    output.table(
        ["model", "versions", "aliases", "labels", "P@1", "size"],
        [line_of(model) for model in models],
    )


def line_of(model: Mapping[str, Any]) -> list[Any]:
    """A model as a row."""
    latest = model["latest"]
    aliases = [
        f"{alias}={shown(model, alias, version)}"
        for alias, version in sorted(model["aliases"].items())
    ]
    if latest is None:
        return [model["name"], len(model["versions"]), aliases, "", "", "corrupt"]
    measured = percent(latest["measures"].get("P@1"))
    return [
        model["name"],
        len(model["versions"]),
        aliases,
        latest["n_labels"],
        measured,
        output.bytes_of(latest["n_bytes"]),
    ]


def shown(model: Mapping[str, Any], alias: str, version: int) -> str:
    """Where an alias leads: 3, or 3:90%+4:10%, and (5) for a shadow."""
    route = model.get("splits", {}).get(alias)
    if route is None:
        return str(version)
    split = route["split"]
    told = (
        str(version)
        if len(split) == 1
        else "+".join(f"{each['version']}:{100 * each['weight']:.3g}%" for each in split)
    )
    return told + (f" ({route['shadow']['version']})" if route["shadow"] else "")


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
    partial = (
        {"partial": f"{missing:,} of {model.n_labels:,} labels were not trained: the time was up"}
        if missing
        else {}
    )
    steps = [f"{step['operation']} ({step['parent'][:16]})" for step in model.provenance]
    return {**partial, **({"made by": steps} if steps else {}), **calibration_of(model.calibrated)}


def calibration_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """What a calibrated model's probabilities are worth, in a line."""
    if not found:
        return {}
    errors = ", ".join(
        f"@{k} {percent(one['ece_sigmoid'])} -> {percent(one['ece'])}"
        for k, one in found["report"].items()
    )
    return {
        "calibrated": f"ECE {errors} % on {found['rows']['measured']:,} rows (before: sigmoid of the score)"
    }


def of_server(model: str, server: str | None) -> dict[str, Any]:
    """The figures of a version on a server."""
    with client_of(server) as client:
        return dict(client.models.version(*located(client, model)))


@app.command()
def alias(
    model: Annotated[str, typer.Argument(metavar="NAME", help="A model of the server.")],
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="The alias to point.")],
    version: Annotated[
        int | None,
        typer.Argument(metavar="[VERSION]", min=1, help="The version it should mean; or --split."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="V=W,...", help="Several versions by weight: 3=0.9,4=0.1.")
    ] = None,
    shadow: Annotated[
        int | None,
        typer.Option(metavar="VERSION", min=1, help="A version that answers along, unheard."),
    ] = None,
    share: Annotated[
        float, typer.Option(help="Share of the requests of which the shadow gets copies.")
    ] = 1.0,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """Lead an alias to a version, or to several by weight; the next request already sees it."""
    if (version is None) == (split is None):
        raise InputError("name a VERSION, or --split V=W,...; one of them", code="USAGE")
    weights = {version: 1.0} if version is not None else weights_of(str(split))
    with client_of(server) as client:
        found = client.models.split_alias(model, alias, weights, shadow=shadow, share=share)
    if json:
        output.emit(found)
    else:
        output.say(f"{model}@{alias} is version {shown(found, alias, found['aliases'][alias])}")


def weights_of(split: str) -> dict[int, float]:
    """3=0.9,4=0.1 as versions with weights. Raises InputError."""
    try:
        pairs = [
            (int(version), float(weight))
            for version, _, weight in (each.partition("=") for each in split.split(","))
        ]
    except ValueError:
        raise InputError(
            f"{excerpt(split)!r} is no split: write versions and weights like 3=0.9,4=0.1",
            code="USAGE",
        ) from None
    if len(dict(pairs)) < len(pairs):
        raise InputError("the split names a version twice: add its weights up", code="USAGE")
    return dict(pairs)


@app.command()
def shadow(
    model: Annotated[str, typer.Argument(metavar="NAME", help="A model of the server.")],
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="An alias with a shadow.")],
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """How often the shadow of an alias agreed with who answered, and how long both took."""
    with client_of(server) as client:
        found = client.models.shadow(model, alias)
    if json:
        output.emit(found)
        return
    heads = [
        "answered",
        "shadow",
        "rows",
        "same best %",
        "overlap %",
        "answer ms",
        "shadow ms",
        "failed",
        "dropped",
    ]
    rows = [
        [
            each["answered"],
            each["shadow"],
            each["rows"],
            percent(each["top1_agreement"]),
            percent(each["overlap"]),
        ]
        + [
            f"{each[name]:.2f}" if each[name] is not None else ""
            for name in ("answer_ms", "shadow_ms")
        ]
        + [each["failed"], each["dropped"]]
        for each in found["pairs"]
    ]
    output.table(heads, rows)


@app.command()
def load(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="NAME, NAME:VERSION or NAME@ALIAS of the server.")
    ],
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """Load a model ahead of requests, and hold it in every process of the server."""
    with client_of(server) as client:
        found = client.models.load(model)
    if json:
        output.emit(found)
    else:
        output.say(f"{model}: version {found['version']} is loaded and held")


@app.command()
def unload(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="NAME (all its versions), NAME:VERSION or NAME@ALIAS of the server.",
        ),
    ],
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """Let go of a model in every process of the server; the next request loads it again."""
    with client_of(server) as client:
        client.models.unload(model)
    if json:
        output.emit({"reference": model, "loaded": False})
    else:
        output.say(f"{model} is not loaded any more")


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
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A model directory of any earlier format.")
    ],
    output_directory: Annotated[
        Path, typer.Argument(metavar="NEW", help="Where the upgraded one goes.")
    ],
    json: output.AsJson = False,
) -> None:
    """A model directory in the present format, whose search needs no preparation when it is opened; content and sha256 stay."""
    from xcray.model.linked_copy import with_lists
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
        float | None,
        typer.Option(help="End with 1 when P@1 falls by more than so many points: a gate for CI."),
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
    lost = (
        max_loss is not None
        and old is not None
        and new is not None
        and 100 * (old - new) > max_loss
    )
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
            **{
                name: f"{percent(old)} -> {percent(new)}"
                for name, (old, new) in found.measures.items()
            },
        }
    )


def some(names: tuple[str, ...]) -> str:
    """How many, and the first of them."""
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return f"{len(names):,}" + (f": {shown}" if names else "")
