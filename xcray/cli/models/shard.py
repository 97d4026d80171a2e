"""`xcray models shard`: a model in shards, for services that share its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.system.units import format_bytes


def shard(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model directory.")],
    shards: Annotated[int, typer.Option(min=1, help="Number of label ranges.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder for the homes of the front and of each shard."),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the model; default: that of its directory.")
    ] = None,
) -> None:
    """Split the labels of a linear model into shards, which several services hold.

    Each home has a model for `xcray serve --home`: OUT/shard-1 to OUT/shard-N the label ranges,
    OUT/front everything else. The front answers as the whole model; it needs XCRAY_SHARDS.
    """
    from xcray.cli.terminal.compilation import compilation_note
    from xcray.model.model import Model
    from xcray.model.registry import Registry
    from xcray.training.edit.shards import shard_model

    name = name or model.absolute().name
    with compilation_note():
        parts = list(shard_model(Model.open(model), out, name, shards))
    homes: list[dict[str, Any]] = []
    for home, labels in parts:
        held, registry = labels.name if labels is not None else name, Registry(home / "models")
        version = registry.describe(*registry.resolve_version(held))
        first, end = (labels.begin, labels.end) if labels is not None else (0, version.shape[0])
        entry = {"home": str(home), "model": held, "labels": [first, end]}
        homes.append({**entry, "n_bytes": version.n_bytes})
    output.print_json({"homes": homes})
    rows = [
        (each["home"], each["model"], "{:,} to {:,}".format(*each["labels"]), each["n_bytes"])
        for each in homes
    ]
    output.print_table(
        ["home", "model", "labels", "size"],
        [[*texts, format_bytes(n_bytes)] for *texts, n_bytes in rows],
    )
