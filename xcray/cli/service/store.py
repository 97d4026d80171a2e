"""`xcray store`: the database of jobs, data sets and keys: look, upgrade, back up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from xcray.cli.service.serve import settings_of
from xcray.cli.terminal import output

app = typer.Typer(
    name="store", help="The job store: check, upgrade, backup, verify, sweep.", no_args_is_help=True
)

Home = Annotated[
    Path | None, typer.Option(help="Folder of the service. [default: XCRAY_HOME or ~/.xcray]")
]
Store = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Another store than the home's. Rather set XCRAY_STORE: command lines are seen by everybody.",
    ),
]


@app.command()
def check(home: Home = None, store: Store = None, json: output.AsJson = False) -> None:
    """Say at which revision the store is, whether this xcray can use it as it is, and which programs do. Changes nothing."""
    from xcray.jobs.database.upgrade import look

    shown(look(address(home, store)), json)


@app.command()
def upgrade(
    home: Home = None,
    store: Store = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also under programs at work that can't use the store after it."
        ),
    ] = False,
    json: output.AsJson = False,
) -> None:
    """Make the store one of this xcray's, or make an empty one, beside programs that use it; refused when these would have to end.

    Each step is one transaction: a crash leaves whole ones. Programs that the store then still serves go on working.
    """
    from xcray.jobs.database.upgrade import upgrade as bring

    shown(bring(address(home, store), forced=force), json)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The file to make.")],
    home: Home = None,
    store: Store = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a file that is there.")
    ] = False,
    json: output.AsJson = False,
) -> None:
    """Copy the store (SQLite) to a file while the service runs. To restore: stop the service, and put the file in its place."""
    from xcray.jobs.database.backup import back_up

    shown(back_up(address(home, store), file, replace=replace), json)


@app.command()
def verify(
    home: Home = None,
    store: Store = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Compare every file with its SHA-256: reads all bytes.")
    ] = False,
    json: output.AsJson = False,
) -> None:
    """After a restore: say which data sets, versions and aliases are named and not there. Ends with 1 when any is."""
    from xcray.jobs.home import Home as Folder
    from xcray.jobs.store.job_store import JobStore
    from xcray.jobs.supervision.integrity import verified

    settings = settings_of({"home": home, "store": store})
    opened = JobStore(settings.store_url, upgrade=False)
    try:
        found = verified(opened, Folder(settings.home), whole=whole)
    finally:
        opened.close()
    if json:
        output.emit(
            {"looked": found.looked, "dangling": [each._asdict() for each in found.dangling]}
        )
    else:
        for each in found.dangling:
            output.say(f"{each.kind} {each.what}: {each.why}")
        output.pairs({**found.looked, "dangling": len(found.dangling)})
    if found.dangling:
        raise typer.Exit(output.FAILURE)


@app.command()
def sweep(
    home: Home = None,
    store: Store = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what files would go.")
    ] = False,
    json: output.AsJson = False,
) -> None:
    """Forget old jobs and remove what is kept no longer, as the service does by itself now and then; it may be running."""
    from xcray.jobs.home import Home as Folder
    from xcray.jobs.store.job_store import JobStore
    from xcray.service.processes.supervision import retention_of

    settings = settings_of({"home": home, "store": store})
    kept = JobStore(settings.store_url)
    try:
        retention = retention_of(settings, Folder(settings.home), kept)
        things = list(retention.superfluous()) if dry_run else retention.turn()
    finally:
        kept.close()
    if not json:
        for thing in things:
            output.say(f"{thing.n_bytes:>15,}  {thing.path}  ({thing.why})")
    total = {
        "removed": not dry_run,
        "files": len(things),
        "bytes": sum(thing.n_bytes for thing in things),
    }
    shown(total | ({"things": [thing._asdict() for thing in things]} if json else {}), json)


def address(home: Path | None, store: str | None) -> str:
    """The store that is meant: named here, by XCRAY_STORE, or in the home."""
    return settings_of({"home": home, "store": store}).store_url


def shown(facts: dict[str, Any], json: bool) -> None:
    """What was found or done."""
    if json:
        output.emit(facts)
    else:
        output.pairs(facts)
