"""`xcray keys` and `xcray audit`: who may ask the service, and who changed what. Both work on the store itself, with or without a
service that runs: whoever can read its files needs no key."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli import output
from xcray.cli.store import Home, Store, address
from xcray.errors import InputError, excerpt

if TYPE_CHECKING:
    from xcray.jobs.keys import Key
    from xcray.jobs.store import JobStore

app = typer.Typer(name="keys", help="Keys of the service: create, list, revoke.", no_args_is_help=True)

KeyId = Annotated[str, typer.Argument(metavar="KEY", help="Its id, key_..., as `xcray keys list` shows it.")]


@app.command()
def create(
    scopes: Annotated[str, typer.Option(help="What it may do, with commas between: read, predict, submit, admin.")],
    name: Annotated[str, typer.Option(help="What people know it by.")] = "key",
    tenant: Annotated[str, typer.Option(help="Whose things it opens.")] = "default",
    expires: Annotated[
        str | None, typer.Option(metavar="SPAN", help="How long it is good: 90d, 12h. [default: until revoked]")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="max_running, max_queued (of the tenant), requests_per_minute, instances_per_minute, upload_bytes. Repeatable.",
        ),
    ] = None,
    home: Home = None,
    store: Store = None,
    json: output.AsJson = False,
) -> None:
    """Make a key and show it, this once. With the first key, a service asks everybody for one."""
    from xcray.files import check_name
    from xcray.jobs.tokens import check_limits, check_scopes, new_token, read_span

    wanted = check_scopes(each.strip() for each in scopes.split(",") if each.strip())
    limits = check_limits(dict(_limit(each) for each in limit or []))
    ends = None if expires is None else time.time() + read_span(expires)
    check_name(tenant, "tenant")
    made = new_token()
    with _opened(home, store) as opened:
        key = opened.add_key(tenant, name, wanted, made.digest, key_id=made.key_id, expires=ends, limits=limits)
    if json:
        output.emit({**_shown(key), "key": made.token})
        return
    output.pairs({"id": key.id, "tenant": key.tenant, "scopes": ", ".join(key.scopes)})
    output.say(made.token)
    output.note("keep it now: it is shown this once. Clients take it from XCRAY_KEY, or from a file named by XCRAY_KEY_FILE")


@app.command("list")
def index(
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.")] = None,
    home: Home = None,
    store: Store = None,
    json: output.AsJson = False,
) -> None:
    """All keys, without their secrets."""
    with _opened(home, store) as opened:
        keys = [_shown(key) for key in opened.list_keys(tenant)]
    if json:
        output.emit({"keys": keys})
        return
    columns = ["id", "tenant", "name", "scopes", "created", "expires", "revoked", "last_used"]
    output.table(columns, [[", ".join(key[c]) if c == "scopes" else key[c] for c in columns] for key in keys])


@app.command()
def revoke(key_id: KeyId, home: Home = None, store: Store = None, json: output.AsJson = False) -> None:
    """Let a key open nothing any more; running services know within five seconds."""
    with _opened(home, store) as opened:
        key = opened.revoke_key(key_id)
    if json:
        output.emit(_shown(key))
    else:
        output.say(f"{key.id} ({output.printable(key.name)}) opens nothing any more")


def audit(
    tenant: Annotated[str | None, typer.Option(help="Only what this tenant's callers did; - for strangers.")] = None,
    action: Annotated[str | None, typer.Option(help="Only this action, like job.submit or login.refused.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Entries, newest first.")] = 50,
    home: Home = None,
    store: Store = None,
    json: output.AsJson = False,
) -> None:
    """Who changed what, by which key and request, newest first."""
    found: list[Any] = []
    with _opened(home, store) as opened:
        token = None
        while len(found) < limit:
            page, token = opened.list_audit(tenant, action=action, limit=min(1000, limit - len(found)), page_token=token)
            found += page
            if token is None:
                break
    if json:
        output.emit({"entries": [vars(entry) for entry in found]})
        return
    columns = ["time", "tenant", "key_id", "action", "subject", "request_id"]
    output.table(columns, [[getattr(entry, column) for column in columns] for entry in found])


@contextmanager
def _opened(home: Path | None, store: str | None) -> Iterator[JobStore]:
    """The store that is meant; an empty one is made when there is none."""
    from xcray.jobs.home import Home as Folder
    from xcray.jobs.store import JobStore
    from xcray.service.settings import Settings

    if store is None:
        given: dict[str, Any] = {} if home is None else {"home": home}
        Folder(Settings(**given).home)
    opened = JobStore(address(home, store))
    try:
        yield opened
    finally:
        opened.close()


def _limit(given: str) -> tuple[str, int]:
    """NAME=N as a pair. Raises InputError."""
    name, equals, number = given.partition("=")
    if not equals or not (number.isascii() and number.isdecimal()):
        raise InputError(f"--limit {excerpt(given)!r} is not NAME=N: write --limit requests_per_minute=600", code="USAGE")
    return name.strip(), int(number)


def _shown(key: Key) -> dict[str, Any]:
    """A key without its digest, times as people read them."""
    from xcray.jobs.job import utc

    told = {name: value for name, value in vars(key).items() if name != "digest"}
    return {**told, "scopes": list(key.scopes), "expires": None if key.expires is None else utc(key.expires)}
