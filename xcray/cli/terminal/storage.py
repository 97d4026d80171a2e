"""Options and output that the commands of models and data sets in object storage share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xcray.cli.terminal import output
from xcray.system.units import format_bytes

if TYPE_CHECKING:
    from xcray.storage.objectstore.transfer import TransferStats
    from xcray.storage.objectstore.versions import Pushed

URIS = "s3://bucket/folder, gs://bucket/folder or file:///folder"
ResendOption = Annotated[
    bool,
    typer.Option(
        "--again", help="Send all files, including existing ones: repairs a damaged copy."
    ),
]


def print_pushed(done: Pushed, kind: str) -> None:
    """Print the result of a push. kind: key of the name, "model" or "dataset"."""
    output.print_json(
        {
            "uri": done.uri,
            kind: done.name,
            "version": done.number,
            "seal": done.seal,
            "bytes": done.moved._asdict(),
        }
    )
    sent = done.moved.sent
    status = f"{format_bytes(sent)} sent" if sent else "existed already"
    output.print_line(f"{done.uri} ({status})")


def print_pulled(what: str, moved: TransferStats | None, content_hash: str) -> None:
    """Print what was copied here; moved is None if it existed."""
    status = "exists already" if moved is None else f"{format_bytes(moved.sent)} fetched"
    output.print_line(f"{what} ({status}), {content_hash}")
