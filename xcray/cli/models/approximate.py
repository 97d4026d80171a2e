"""`xcray models approximate`: the recall of an approximate index, in the card of a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xcray.cli.models.open_model import open_model
from xcray.cli.terminal import output
from xcray.cli.terminal.completion import complete_datasets, complete_models


def approximate(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="Model directory.", autocompletion=complete_models),
    ],
    dataset: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Data set with held-out rows and the features of the model.",
            autocompletion=complete_datasets,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--output", "-o", help="Model directory to write; it must not exist.")
    ],
    index: Annotated[str, typer.Option(metavar="NAME", help="Index: sw-graph.")] = "sw-graph",
    json: output.JsonOption = False,
) -> None:
    """Measure how many of the best labels an approximate index finds; write a copy with the card.

    The copy can be used with `xcray predict --index`. On sparse weights the exact search is faster.
    """
    from xcray.data.dataset import Dataset
    from xcray.predict.approximate import record_index

    copy, facts = record_index(open_model(str(model)), Dataset.open(dataset), out, index)
    if json:
        output.print_json({"model": str(copy.path), "sha256": copy.sha256, **facts})
        return
    rows = [[name, str(value)] for name, value in facts.items()]
    output.print_table(["measured", index], rows)
    output.print_line(str(copy.path))
