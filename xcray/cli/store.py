"""`xcray store`: the database of jobs, data sets and keys: look, upgrade, back up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from xcray.cli import output

app = typer.Typer(name="store", help="The job store: check, upgrade, backup.", no_args_is_help=True)

Home = Annotated[Path | None, typer.Option(help="Folder of the service. [default: XCRAY_HOME or ~/.xcray]")]
Store = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Another store than the home's. Rather set XCRAY_STORE: command lines are seen by everybody."),
]


@app.command()
def check(home: Home = None, store: Store = None, json: output.AsJson = False) -> None:
    """Say at which revision the store is, and whether this xcray can use it as it is. Changes nothing."""
    from xcray.jobs.upgrade import look

    shown(look(address(home, store)), json)


@app.command()
def upgrade(home: Home = None, store: Store = None, json: output.AsJson = False) -> None:
    """Make the store one of this xcray's, or make an empty one: in one transaction, so that a crash leaves the old one."""
    from xcray.jobs.store import JobStore
    from xcray.jobs.upgrade import look

    url = address(home, store)
    before = look(url)["revision"]
    JobStore(url).close()
    shown({**look(url), "before": before}, json)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The file to make.")],
    home: Home = None,
    store: Store = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a file that is there.")] = False,
    json: output.AsJson = False,
) -> None:
    """Copy the store (SQLite) to a file while the service runs. To restore: stop the service, and put the file in its place."""
    from xcray.jobs.backup import back_up

    shown(back_up(address(home, store), file, replace=replace), json)


def address(home: Path | None, store: str | None) -> str:
    """The store that is meant: named here, by XCRAY_STORE, or in the home."""
    from xcray.service.settings import Settings

    given: dict[str, Any] = {"home": home, "store": store}
    return Settings(**{name: value for name, value in given.items() if value is not None}).store_url


def shown(facts: dict[str, Any], json: bool) -> None:
    """What was found or done."""
    if json:
        output.emit(facts)
    else:
        output.pairs(facts)
