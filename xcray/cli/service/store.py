"""`xcray store`: check, upgrade, back up and clean the store of jobs, data sets and keys."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.service.serve import make_settings
from xcray.cli.terminal import output
from xcray.errors import NotFound

if TYPE_CHECKING:
    from xcray.jobs.store.job_store import JobStore
    from xcray.service.settings import Settings

app = typer.Typer(
    name="store", help="The job store: check, upgrade, backup, verify, sweep.", no_args_is_help=True
)

HomeOption = Annotated[
    Path | None,
    typer.Option(help="Home directory of the service; default: XCRAY_HOME or ~/.xcray."),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="URL of the store, if not in the home directory. Prefer XCRAY_STORE: other users "
        "can see command lines.",
    ),
]


@app.command()
def check(home: HomeOption = None, store: StoreOption = None) -> None:
    """Show the revision of the store, and whether this xcray supports it. Changes nothing."""
    from xcray.jobs.database.upgrade import inspect_store

    print_details(inspect_store(existing_store(make_settings({"home": home, "store": store}))))


@app.command()
def upgrade(
    home: HomeOption = None,
    store: StoreOption = None,
) -> None:
    """Upgrade the store to the schema of this xcray, or create an empty one.

    Runs while programs use the store. Each step is one transaction, so a crash leaves complete
    steps only.
    """
    from xcray.jobs.database.upgrade import upgrade_store as bring

    print_details(bring(make_settings({"home": home, "store": store}).store_url))


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    home: HomeOption = None,
    store: StoreOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing file.")] = False,
) -> None:
    """Copy the store (SQLite) to a file while the service runs.

    To restore: stop the service and move the file back into place.
    """
    from xcray.jobs.database.backup import back_up

    url = existing_store(make_settings({"home": home, "store": store}))
    print_details(back_up(url, file, replace=replace))


@app.command()
def verify(
    home: HomeOption = None,
    store: StoreOption = None,
    check_content: Annotated[
        bool,
        typer.Option("--whole", help="Also compare every file with its SHA-256 (reads all bytes)."),
    ] = False,
) -> None:
    """Find references to missing data sets, versions and aliases, as after a restore.

    Exits with 1 if any is missing.
    """
    from xcray.jobs.home import Home as Folder
    from xcray.jobs.store.job_store import JobStore
    from xcray.jobs.supervision.integrity import verify_references

    settings = make_settings({"home": home, "store": store})
    with closing(JobStore(existing_store(settings), upgrade=False)) as opened:
        faults = verify_references(opened, Folder(settings.home), check_content=check_content)
    output.print_json(
        {"looked": faults.looked, "dangling": [each._asdict() for each in faults.dangling]}
    )
    for each in faults.dangling:
        output.print_line(f"{each.kind} {each.what}: {each.why}")
    output.print_pairs({**faults.looked, "dangling": len(faults.dangling)})
    if faults.dangling:
        raise typer.Exit(output.FAILURE)


@app.command()
def sweep(
    home: HomeOption = None,
    store: StoreOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the files that would be deleted.")
    ] = False,
) -> None:
    """Delete old jobs and files past their retention, as the service does regularly.

    The service can be running.
    """
    from xcray.jobs.home import Home as Folder
    from xcray.jobs.store.job_store import JobStore
    from xcray.service.supervision import retention_of

    settings = make_settings({"home": home, "store": store})
    with closing(JobStore(existing_store(settings))) as opened:
        retention = retention_of(settings, Folder(settings.home), opened)
        things = list(retention.list_removable()) if dry_run else retention.sweep()
    for thing in things:
        output.print_line(f"{thing.n_bytes:>15,}  {thing.path}  ({thing.why})")
    total = {
        "removed": not dry_run,
        "files": len(things),
        "bytes": sum(thing.n_bytes for thing in things),
    }
    output.print_json({**total, "things": [thing._asdict() for thing in things]})
    output.print_pairs(total)


def existing_store(settings: Settings) -> str:
    """Return the URL of the store. Raises NotFound if its file is missing: nothing is created.

    Raises Unavailable if the folder cannot be read.
    """
    from xcray.jobs.database.engine import SQLITE, parse_url
    from xcray.jobs.home import unusable_home

    url = parse_url(settings.store_url)
    file = Path(str(url.database))
    try:
        is_missing = url.get_backend_name() == SQLITE and not file.is_file()
    except PermissionError as error:
        raise unusable_home(file.parent, error) from None
    if is_missing:
        raise NotFound(
            f"there is no job store in {file.parent}: give --home, or start `xcray serve` there"
        )
    return settings.store_url


def open_store(home: Path | None, store: str | None, *, create: bool = False) -> closing[JobStore]:
    """Open the selected store; create: also an empty one in a home directory without a store."""
    from xcray.jobs.home import Home as Folder
    from xcray.jobs.store.job_store import JobStore

    settings = make_settings({"home": home, "store": store})
    if create and settings.store is None:
        Folder(settings.home)
    url = settings.store_url if create else existing_store(settings)
    return closing(JobStore(url, upgrade=settings.store_upgrade))


def print_details(details: dict[str, Any]) -> None:
    """Print the result."""
    output.print_json(details)
    output.print_pairs(details)
