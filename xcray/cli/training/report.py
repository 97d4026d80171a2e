"""`xcray report` and `xcray timeline`: what a training did, as figures and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.training.train import show_measures
from xcray.errors import NotFound

Picture = Annotated[
    Path | None, typer.Option("--png", metavar="FILE", help="Draw it too, as a PNG.")
]
OTHERS = ("lost", "duplicate", "stopped")


def report(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model directory.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder for the pictures. [default: MODEL.report]"),
    ] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            "--beside",
            metavar="MODEL",
            help="The same training with another number of workers: draws scaling; repeat it.",
        ),
    ] = None,
    json: output.AsJson = False,
) -> None:
    """Draw how a model was trained: measures and cost by label frequency, certificates, timeline; report.json, report.md."""
    from xcray.training.report.render import draw_report

    folder = out or model.resolve().with_name(f"{model.resolve().name}.report")
    found = draw_report(model, folder, beside or ())
    if json:
        output.emit({"folder": str(folder), **found})
        return
    show_measures({name: value for name, value in found["measures"].items() if value is not None})
    for name, file in found["pictures"].items():
        output.say(f"{name:<14}{folder / file}")
    for name, reason in found["left_out"].items():
        output.note(f"no picture {name}: {reason}")
    output.say(f"{'page':<14}{folder / 'report.md'}")


def timeline(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A model directory, or the run directory of a training."
        ),
    ],
    png: Picture = None,
    json: output.AsJson = False,
) -> None:
    """Which worker did what when, of a training here; for a job of a server: xcray jobs timeline."""
    from xcray.training.report.timeline import document, read_timeline

    if not place.is_dir():
        raise NotFound(
            f"there is no directory {place}; for a job of a server use: xcray jobs timeline"
        )
    told(document(read_timeline(place)), place.resolve().name, png, json)


def told(found: Mapping[str, Any], name: str, png: Path | None, as_json: bool) -> None:
    """A timeline's document: drawn when asked for, then for machines or for people."""
    from xcray.training.report.timeline import note_of

    if png is not None:
        from xcray.plots import draw_timeline

        draw_timeline(png, found, name, note_of(found))
    if as_json:
        output.emit(found)
        return
    columns = ("batches", "classes", "busy", "share", *OTHERS)
    rows = [
        [each["worker"], *(shown(column, each.get(column)) for column in columns)]
        for each in found["workers"]
    ]
    output.table(["worker", "batches", "classes", "busy s", "busy %", *OTHERS], rows)
    output.say(note_of(found))
    if png is not None:
        output.say(str(png))


def shown(column: str, value: Any) -> Any:
    """A figure of a worker."""
    return (
        f"{value:.1f}"
        if column == "busy"
        else f"{100 * value:.1f}"
        if column == "share"
        else value or 0
    )
