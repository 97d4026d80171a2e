"""`xcray data fetch`: public data sets by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xcray.cli.terminal import output


def fetch(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Public set; none to list them.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Data set directory to write; default: NAME.")
    ] = None,
    downloaded: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="Folder with the files, or the only file."),
    ] = None,
) -> None:
    """Download a public data set, check its SHA-256 and build it.

    Example: xcray data fetch bibtex --out DATA/bibtex
    """
    from xcray.cli.terminal.compilation import compilation_note
    from xcray.data.public_sets import fetch_dataset

    if name is None:
        print_public_sets()
        return
    with compilation_note():
        dataset = fetch_dataset(name, out or Path(name), downloaded, output.print_note)
    summary = {
        "path": str(dataset.path),
        "rows": {part: split.n_rows for part, split in dataset.splits.items()},
        "features": dataset.n_features,
        "labels": dataset.n_labels,
        **dataset.manifest["source"]["origin"],
    }
    output.print_json(summary)
    output.print_pairs({key: value for key, value in summary.items() if key != "urls"})


def print_public_sets() -> None:
    """Print the public sets with their sizes, files and licences."""
    from xcray.data.public_sets import SETS

    records = [
        {
            "name": name,
            "train": each.n_train,
            "test": each.n_test,
            "features": each.n_features,
            "labels": each.n_labels,
            "files": [file._asdict() for file in each.files],
            "licence": each.licence,
        }
        for name, each in SETS.items()
    ]
    output.print_json({"sets": records})
    columns = ["name", "train", "test", "features", "labels", "licence"]
    rows = [[each[column] or "own split" for column in columns] for each in records]
    output.print_table(columns, rows)
