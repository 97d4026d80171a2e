"""`xcray report` and `xcray timeline`: tables and pictures of a training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.training.train import print_measures
from xcray.errors import Conflict, NotFound

PictureOption = Annotated[
    Path | None, typer.Option("--picture", metavar="FILE", help="Also write a picture (SVG).")
]
OTHER_OUTCOMES = ("lost", "duplicate", "stopped")


def report(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model directory.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Directory for the pictures; default: MODEL.report."),
    ] = None,
) -> None:
    """Draw how a model was trained, and write report.json.

    Pictures (SVG): measures and cost by label frequency, certificates, timeline.
    """
    from xcray.training.report.render import draw_report

    if out is not None and (out / "manifest.json").exists():
        raise Conflict(f"{out} is a model or a data set: choose another --out for the report")
    folder = out or model.resolve().with_name(f"{model.resolve().name}.report")
    drawn_report = draw_report(model, folder)
    output.print_json({"folder": str(folder), **drawn_report})
    print_measures(
        {name: value for name, value in drawn_report["measures"].items() if value is not None}
    )
    for name, file in drawn_report["pictures"].items():
        output.print_line(f"{name:<14}{folder / file}")
    for name, reason in drawn_report["left_out"].items():
        output.print_note(f"no picture {name}: {reason}")
    output.print_line(f"{'figures':<14}{folder / 'report.json'}")


def timeline(
    place: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Model directory, or run directory of a training."),
    ],
    picture: PictureOption = None,
) -> None:
    """Show which worker of a local training did what and when.

    For a job of a server use: xcray jobs timeline.
    """
    from xcray.training.report.timeline import read_timeline, timeline_document

    if not place.is_dir():
        raise NotFound(
            f"directory {place} does not exist; for a job of a server use: xcray jobs timeline"
        )
    print_timeline(timeline_document(read_timeline(place)), place.resolve().name, picture)


def print_timeline(document: Mapping[str, Any], name: str, picture: Path | None) -> None:
    """Draw a timeline if requested, then print it as JSON or as a table."""
    from xcray.training.report.timeline import describe_timeline

    if picture is not None:
        from xcray.plots.trainings import timeline_picture

        timeline_picture(document, name, describe_timeline(document)).write(picture)
    output.print_json(document)
    columns = ("batches", "n_labels", "busy", "share", *OTHER_OUTCOMES)
    rows = [
        [each["worker"], *(format_worker_value(column, each.get(column)) for column in columns)]
        for each in document["workers"]
    ]
    output.print_table(["worker", "batches", "labels", "busy s", "busy %", *OTHER_OUTCOMES], rows)
    output.print_line(describe_timeline(document))
    if picture is not None:
        output.print_line(str(picture))


def format_worker_value(column: str, value: Any) -> Any:
    """Format one value of a worker."""
    return (
        f"{value:.1f}"
        if column == "busy"
        else f"{100 * value:.1f}"
        if column == "share"
        else value or 0
    )
