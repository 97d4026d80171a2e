"""`xcray data push`, `pull`, `remote`: data sets in object storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from xcray.cli.terminal import output
from xcray.cli.terminal.completion import DatasetArgument
from xcray.cli.terminal.interrupt import stop_on_interrupt
from xcray.cli.terminal.progress import make_reporter
from xcray.cli.terminal.storage import URIS, ResendOption, print_pulled, print_pushed
from xcray.system.units import format_bytes
from xcray.telemetry.progress import Progress

if TYPE_CHECKING:
    from xcray.data.objectstore.remote_dataset import CopyPlan
    from xcray.storage.objectstore.transfer import TransferStats

MB: Final = 1_000_000


def push(
    dataset: DatasetArgument,
    uri: Annotated[str, typer.Argument(metavar="URI", help=f"Target folder of data sets: {URIS}.")],
    name: Annotated[
        str | None,
        typer.Option(help="Name in object storage; default: name of the directory."),
    ] = None,
    resend_all: ResendOption = False,
) -> None:
    """Copy a data set with its metric forest to object storage: its files, then its manifest.

    Files that already exist there are not sent again.
    """
    from xcray.data.objectstore.remote_dataset import push_dataset
    from xcray.storage.objectstore.client import StoragePath

    home = StoragePath.parse(uri) / (name or dataset.resolve().name)
    done = push_dataset(dataset, home, resend_all=resend_all)
    print_pushed(done, "dataset")


def pull(
    uri: Annotated[
        str,
        typer.Argument(metavar="URI", help=f"Data set in object storage, or a version: {URIS}."),
    ],
    into: Annotated[
        Path | None,
        typer.Option(help="Data set directory to write; default: name of the data set."),
    ] = None,
    sha256: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="Expected content hash or seal of the data set."),
    ] = None,
) -> None:
    """Copy a data set from object storage and verify every byte.

    An interrupted copy is continued; an existing data set is kept.
    """
    from xcray.data.objectstore.remote_dataset import plan_copy
    from xcray.storage.objectstore.versions import check_pinned_hash

    plan = plan_copy(uri)
    version, content_hash = plan.remote.version, plan.remote.manifest["content_hash"]
    check_pinned_hash(plan.remote.sealed.seal, content_hash, sha256, version.path.uri)
    path = into or Path(version.name)
    moved = fetch(plan, path)
    output.print_json(
        {
            "source": plan.uri,
            "path": str(path),
            "dataset": version.name,
            "version": version.number,
            "content_hash": content_hash,
            "moved": None if moved is None else moved._asdict(),
        }
    )
    print_pulled(str(path), moved, f"content hash {content_hash[:16]}")


def local_dataset(place: str) -> Path:
    """Return the directory of a data set; one in object storage is copied into the cache first.

    place: a directory or a URI.
    """
    if "://" not in place:
        return Path(place)
    from xcray.data.objectstore.remote_dataset import plan_copy

    plan = plan_copy(place)
    if not plan.cached.exists():
        size = format_bytes(plan.remote.sealed.n_bytes)
        output.print_note(f"copying {plan.uri} to {plan.cached} ({size})")
    fetch(plan, plan.cached)
    return plan.cached


def fetch(plan: CopyPlan, target: Path) -> TransferStats | None:
    """Copy a data set, with progress in MB and Ctrl-C handling. Raises Stopped."""
    stop = threading.Event()
    with stop_on_interrupt(stop), make_reporter() as show:
        return plan.fetch(target, stop, CopyProgress(show))


class CopyProgress:
    """Shows the progress of a copy in MB. Bytes of an earlier attempt do not count for the rate."""

    def __init__(self, show: Callable[[Progress], None]) -> None:
        self._show, self._began, self._kept = show, time.monotonic(), -1

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes are there."""
        if self._kept < 0:
            self._kept = done
        seconds = time.monotonic() - self._began
        rate = (done - self._kept) / max(seconds, 1e-9)
        left = (total - done) / rate if rate else None
        step = Progress("MB COPIED", done // MB, total // MB, seconds, rate / MB, left, "")
        self._show(step)
