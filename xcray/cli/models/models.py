"""`xcray models`: models of a server, and model directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.connect import ServerOption, locate_version, make_client
from xcray.cli.models import comparison, exchange, label_sets, shard
from xcray.cli.models import object_storage as storage
from xcray.cli.models.open_model import open_model
from xcray.cli.models.predict import ModelName, is_directory
from xcray.cli.terminal import output
from xcray.cli.training.train import format_percent, print_measures
from xcray.errors import InputError, excerpt
from xcray.model.card import render_card
from xcray.system.units import format_bytes

if TYPE_CHECKING:
    from xcray.model.diff import ModelDiff
    from xcray.model.model import Model

app = typer.Typer(
    name="models",
    help="Models: list, show, alias, card, diff, compare, blend, shard, label sets, push, pull, "
    "import, export.",
    no_args_is_help=True,
)
app.add_typer(label_sets.app, name="label-sets")
app.command("push")(storage.push)
app.command("pull")(storage.pull)
app.command("import")(exchange.import_model)
app.command("export")(exchange.export_model)
app.command("compare")(comparison.compare)
app.command("blend")(comparison.blend)
app.command("shard")(shard.shard)

MAX_DIFF_NAMES = 20  # names of a list in a diff


@app.command("list")
def list_models(server: ServerOption = None) -> None:
    """List all models of a server."""
    with make_client(server) as client:
        models = client.models.list()
    output.print_json({"models": models})
    output.print_table(
        ["model", "versions", "aliases", "labels", "P@1", "size"],
        [model_row(model) for model in models],
    )


def model_row(model: Mapping[str, Any]) -> list[Any]:
    """Return the table row of a model."""
    latest = model["latest"]
    aliases = [
        f"{alias}={format_alias(model, alias, version)}"
        for alias, version in sorted(model["aliases"].items())
    ]
    if latest is None:
        return [model["name"], len(model["versions"]), aliases, "", "", "corrupt"]
    measured = format_percent(latest["measures"].get("P@1"))
    return [
        model["name"],
        len(model["versions"]),
        aliases,
        latest["n_labels"],
        measured,
        format_bytes(latest["n_bytes"]),
    ]


def format_alias(model: Mapping[str, Any], alias: str, version: int) -> str:
    """Format the target of an alias: 3, or 3:90%+4:10%, with (shadow 5)."""
    route = model.get("splits", {}).get(alias)
    if route is None:
        return str(version)
    split = route["split"]
    target = (
        str(version)
        if len(split) == 1
        else "+".join(f"{each['version']}:{100 * each['weight']:.3g}%" for each in split)
    )
    return target + (f" (shadow {route['shadow']['version']})" if route["shadow"] else "")


@app.command()
def show(model: ModelName, server: ServerOption = None) -> None:
    """Show a model: sizes, parameters, measures, provenance."""
    info = directory_info(model) if is_directory(model, server) else version_info(model, server)
    output.print_json(info)
    measures, params = info.pop("measures"), info.pop("params")
    info["params"] = " ".join(f"{name}={value}" for name, value in params.items()) or None
    lines = {name: value for name, value in info.items() if not isinstance(value, dict)}
    output.print_pairs(lines)
    print_measures(measures)


def directory_info(model: str) -> dict[str, Any]:
    """Return the entries of a model directory."""
    from xcray.model.model import Model

    opened = Model.open(model, verify=False)
    fields = ("solver", "params", "seed", "created", "dataset_hash")
    return {
        "path": model,
        "sha256": opened.sha256,
        "n_labels": opened.n_labels,
        "n_features": opened.n_features,
        "nnz": opened.nnz,
        "n_bytes": opened.n_bytes,
        "text": opened.text is not None,
        **{name: opened.manifest[name] for name in fields if name in opened.manifest},
        **optional_info(opened),
        "measures": opened.measures,
    }


def optional_info(model: Model) -> dict[str, Any]:
    """Return entries that only some models have: missing labels, groups, edits, calibration."""
    missing = model.manifest.get("partial", {}).get("missing", 0)
    partial = (
        {"partial": f"{missing:,} of {model.n_labels:,} labels were not trained (time limit)"}
        if missing
        else {}
    )
    steps = [f"{step['operation']} ({step['parent'][:16]})" for step in model.provenance]
    if model.groups is not None:
        sizes = ", ".join(f"{size:,}" for size in model.groups.sizes)
        partial |= {"label groups": f"{sizes}; weight {model.groups.weight:g}"}
    return {
        **partial,
        **({"edits": steps} if steps else {}),
        **format_calibration(model.calibration_report),
        **format_thresholds(model.manifest.get("label_thresholds")),
    }


def format_calibration(report: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the calibration of a model in one line."""
    if not report:
        return {}
    errors = ", ".join(
        f"@{k} {format_percent(one['ece_sigmoid'])} -> {format_percent(one['ece'])}"
        for k, one in report["report"].items()
    )
    return {
        "calibrated": f"ECE {errors} % on {report['rows']['measured']:,} rows "
        "(before: sigmoid of the score)"
    }


def format_thresholds(fitted: Mapping[str, Any] | None) -> dict[str, Any]:
    """Describe the thresholds per label of a model in one line."""
    if fitted is None:
        return {}
    goal = "" if fitted["precision"] is None else f" of {fitted['precision']:g}"
    measures = ", ".join(f"{name} {format_percent(x)}" for name, x in fitted["measures"].items())
    return {
        "label thresholds": f"for {fitted['objective']}{goal}: {measures}, "
        f"{fitted['labels_per_row']:.2f} labels per row (cross-validated)"
    }


def version_info(model: str, server: str | None) -> dict[str, Any]:
    """Return the entries of a version on a server."""
    with make_client(server) as client:
        name, number = locate_version(client, model)
        params = client.models.report(name, number)["params"]
        return {**client.models.version(name, number), "params": params}


@app.command()
def alias(
    model: Annotated[str, typer.Argument(metavar="NAME", help="Model on the server.")],
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Alias to change.")],
    version: Annotated[
        int | None,
        typer.Argument(metavar="[VERSION]", min=1, help="Target version; or use --split."),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="V=W,...", help="Target versions with weights: 3=0.9,4=0.1."),
    ] = None,
    shadow: Annotated[
        int | None,
        typer.Option(
            metavar="VERSION",
            min=1,
            help="Version that receives copies of requests; its responses are only compared.",
        ),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Share of the requests that are copied to the shadow; default: 1.",
        ),
    ] = None,
    server: ServerOption = None,
) -> None:
    """Point an alias to a version, or to several by weight, from the next request on.

    Example: xcray models alias tickets prod 3
    """
    if (version is None) == (split is None):
        raise InputError("give either VERSION or --split V=W,...", code="USAGE")
    if share is not None and shadow is None:
        raise InputError("--share needs --shadow VERSION", code="USAGE")
    weights = {version: 1.0} if version is not None else parse_split(str(split))
    with make_client(server) as client:
        record = client.models.split_alias(
            model, alias, weights, shadow=shadow, share=1.0 if share is None else share
        )
    output.print_json(record)
    output.print_line(
        f"{model}@{alias} points to version "
        + format_alias(record, alias, record["aliases"][alias])
    )


def parse_split(split: str) -> dict[int, float]:
    """Parse 3=0.9,4=0.1 to versions with weights. Raises InputError."""
    try:
        pairs = [
            (int(version), float(weight))
            for version, _, weight in (each.partition("=") for each in split.split(","))
        ]
    except ValueError:
        raise InputError(
            f"{excerpt(split)!r} is not a valid split: write versions and weights like 3=0.9,4=0.1",
            code="USAGE",
        ) from None
    if len(dict(pairs)) < len(pairs):
        raise InputError("the split contains a version twice: add up its weights", code="USAGE")
    return dict(pairs)


@app.command()
def shadow(
    model: Annotated[str, typer.Argument(metavar="NAME", help="Model on the server.")],
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Alias with a shadow.")],
    server: ServerOption = None,
) -> None:
    """Compare the shadow of an alias with the served version: agreement and latency."""
    with make_client(server) as client:
        record = client.models.shadow(model, alias)
    output.print_json(record)
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
            format_percent(each["top1_agreement"]),
            format_percent(each["overlap"]),
        ]
        + [
            f"{each[name]:.2f}" if each[name] is not None else ""
            for name in ("answer_ms", "shadow_ms")
        ]
        + [each["failed"], each["dropped"]]
        for each in record["pairs"]
    ]
    output.print_table(heads, rows)


@app.command()
def load(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="NAME, NAME:VERSION or NAME@ALIAS on the server.")
    ],
    server: ServerOption = None,
) -> None:
    """Load a model in every process of the server, and keep it loaded."""
    with make_client(server) as client:
        record = client.models.load(model)
    output.print_json(record)
    output.print_line(f"{model}: version {record['version']} is loaded")


@app.command()
def unload(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="NAME (all its versions), NAME:VERSION or NAME@ALIAS on the server.",
        ),
    ],
    server: ServerOption = None,
) -> None:
    """Unload a model in every process of the server; it is loaded again on the next request."""
    with make_client(server) as client:
        client.models.unload(model)
    output.print_json({"reference": model, "loaded": False})
    output.print_line(f"{model} is unloaded")


@app.command()
def card(model: ModelName, server: ServerOption = None) -> None:
    """Show the model card, in Markdown."""
    if is_directory(model, server):
        text = render_card(open_model(model).manifest)
    else:
        with make_client(server) as client:
            text = client.models.card(*locate_version(client, model))
    output.print_json({"model": model, "card": text})
    if not output.is_json():
        print(text.rstrip("\n"))


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Model directory.")],
    after: Annotated[
        Path, typer.Argument(metavar="AFTER", help="Model directory to compare with.")
    ],
) -> None:
    """Compare the content of two model directories: labels, weights, recorded measures."""
    from xcray.model.diff import diff as compare

    difference = compare(open_model(before), open_model(after))
    output.print_json(difference.as_dict())
    print_diff(difference)


def print_diff(diff: ModelDiff) -> None:
    """Print a diff."""
    output.print_pairs(
        {
            "content": "the same" if diff.same_content else "different",
            "labels": f"{len(diff.identical):,} identical, {len(diff.changed):,} changed",
            "added": format_names(diff.added),
            "removed": format_names(diff.removed),
            "weights": f"{diff.nnz[0]:,} -> {diff.nnz[1]:,}",
            "features": f"{diff.n_features[0]:,} -> {diff.n_features[1]:,}",
            **{
                name: f"{format_percent(old)} -> {format_percent(new)}"
                for name, (old, new) in diff.measures.items()
                if None not in (old, new)
            },
        }
    )


def format_names(names: tuple[str, ...]) -> str:
    """Format the number of names and the first of them."""
    shown = ", ".join(names[:MAX_DIFF_NAMES]) + (", ..." if len(names) > MAX_DIFF_NAMES else "")
    return f"{len(names):,}" + (f": {shown}" if names else "")
