"""`xcray keys` and `xcray audit`: who may ask the service, and who changed what. Both work on the store itself, with or without a
service that runs: whoever can read its files needs no key."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.service.store import Home, Store
from xcray.cli.terminal import output
from xcray.errors import Conflict, InputError, NotFound, excerpt

if TYPE_CHECKING:
    from xcray.jobs.store.job_store import JobStore
    from xcray.jobs.store.keys import Key
    from xcray.jobs.store.tokens import NewToken

app = typer.Typer(
    name="keys", help="Keys of the service: create, list, revoke.", no_args_is_help=True
)

KeyId = Annotated[
    str, typer.Argument(metavar="KEY", help="Its id, key_..., as `xcray keys list` shows it.")
]
BY = {"by": "command line"}  # in the audit log: whoever reads the store needs no key
MOST_FILE = 4096  # bytes of a file with a key that are read


@app.command()
def create(
    scopes: Annotated[
        str, typer.Option(help="What it may do, with commas between: read, predict, submit, admin.")
    ],
    name: Annotated[str, typer.Option(help="What people know it by.")] = "key",
    tenant: Annotated[str, typer.Option(help="Whose things it opens.")] = "default",
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN", help="How long it is good: 90d, 12h. [default: until revoked]"
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="max_running, max_queued (of the tenant), requests_per_minute, instances_per_minute, upload_bytes. Repeatable.",
        ),
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with a key made elsewhere, as by `xcray keys secret`; it is not shown."
        ),
    ] = None,
    if_absent: Annotated[
        bool,
        typer.Option(
            "--if-absent", help="With --secret-file: a key that is there already is left as it is."
        ),
    ] = False,
    older_expire: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN", help="Older keys of this tenant and name end after so long: 24h."
        ),
    ] = None,
    home: Home = None,
    store: Store = None,
    json: output.AsJson = False,
) -> None:
    """Make a key and show it, this once. With the first key, a service asks everybody for one."""
    from xcray.jobs.store.tokens import check_limits, check_scopes, new_token, read_span
    from xcray.storage.atomic import check_name

    wanted: dict[str, Any] = {"tenant": check_name(tenant, "tenant"), "name": name}
    wanted["scopes"] = check_scopes(each.strip() for each in scopes.split(",") if each.strip())
    wanted["limits"] = check_limits(dict(_limit(each) for each in limit or []))
    wanted["expires"] = None if expires is None else time.time() + read_span(expires)
    grace = None if older_expire is None else read_span(older_expire)
    if if_absent and secret_file is None:
        raise InputError(
            "--if-absent needs --secret-file: a key made here is always a new one", code="USAGE"
        )
    token = new_token() if secret_file is None else _token_in(secret_file)
    with _opened(home, store) as opened:
        key, new = _added(opened, token, wanted, if_absent)
        older = (
            grace is not None and key.valid(time.time()) and key.name == name
        )  # known by another name: it follows nobody
        retired = _older_retired(opened, key, time.time() + (grace or 0)) if older else []
    if json:
        output.emit(
            {
                **_shown(key),
                "new": new,
                "retired": retired,
                **({"key": token.token} if secret_file is None else {}),
            }
        )
        return
    facts: dict[str, Any] = {"id": key.id, "tenant": key.tenant, "scopes": ", ".join(key.scopes)}
    facts |= {"new": new} if secret_file is not None else {}
    facts |= {"retired": ", ".join(retired)} if grace is not None else {}
    output.pairs(facts)
    if secret_file is None:
        output.say(token.token)
        output.note(
            "keep it now: it is shown this once. Clients take it from XCRAY_KEY, or from a file named by XCRAY_KEY_FILE"
        )


@app.command()
def secret(
    file: Annotated[
        Path | None, typer.Argument(help="A file to make, for its owner only. [default: shown]")
    ] = None,
) -> None:
    """Make up a key that no store knows yet, for a Kubernetes Secret; with `xcray keys create --secret-file` it opens something."""
    from xcray.jobs.store.tokens import new_token

    token = new_token().token
    if file is None:
        output.say(token)
        return
    try:
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as made:
            made.write(token)
    except FileExistsError:
        raise Conflict(
            f"{file.name} is there already: name another file, or remove it", code="EXISTS"
        ) from None
    output.note(f"made {file.name}; now `xcray keys create --secret-file {file.name} --scopes ...`")


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
    output.table(
        columns, [[", ".join(key[c]) if c == "scopes" else key[c] for c in columns] for key in keys]
    )


@app.command()
def revoke(
    key_id: KeyId,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="Rather let it end after so long, as 24h: until then both old and new open.",
        ),
    ] = None,
    home: Home = None,
    store: Store = None,
    json: output.AsJson = False,
) -> None:
    """Let a key open nothing any more; running services know within five seconds."""
    from xcray.jobs.store.tokens import read_span

    ends = None if after is None else time.time() + read_span(after)
    with _opened(home, store) as opened:
        if ends is None:
            key = opened.revoke_key(key_id)
            opened.record(key.tenant, None, "key.revoke", key.id, BY)
        else:
            found = [each for each in opened.list_keys() if each.id == key_id]
            if not found:
                raise NotFound(
                    f"there is no key {excerpt(key_id)!r}: list them with `xcray keys list`"
                )
            key = (_retired(opened, found, ends) or found)[0]
    if json:
        output.emit(_shown(key))
    elif ends is not None and key.revoked is None:
        output.say(
            f"{key.id} ({output.printable(key.name)}) opens nothing from {_shown(key)['expires']} on"
        )
    else:
        output.say(f"{key.id} ({output.printable(key.name)}) opens nothing any more")


def audit(
    tenant: Annotated[
        str | None, typer.Option(help="Only what this tenant's callers did; - for strangers.")
    ] = None,
    action: Annotated[
        str | None, typer.Option(help="Only this action, like job.submit or login.refused.")
    ] = None,
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
            page, token = opened.list_audit(
                tenant, action=action, limit=min(1000, limit - len(found)), page_token=token
            )
            found += page
            if token is None:
                break
    if json:
        output.emit({"entries": [vars(entry) for entry in found]})
        return
    columns = ["time", "tenant", "key_id", "action", "subject", "request_id"]
    output.table(columns, [[getattr(entry, column) for column in columns] for entry in found])


def _token_in(file: Path) -> NewToken:
    """The key that a file holds. Raises NotFound, ParameterError."""
    from xcray.jobs.store.tokens import given_token

    try:
        with open(file, "rb") as source:
            return given_token(source.read(MOST_FILE).decode("ascii", "replace"))
    except OSError as error:
        raise NotFound(
            f"{excerpt(str(file))!r} can't be read ({error.strerror}): name a file with a key",
            code="NO_FILE",
        ) from None


def _added(
    opened: JobStore, token: NewToken, wanted: dict[str, Any], if_absent: bool
) -> tuple[Key, bool]:
    """The record of a key, and whether it is new. One that is there stays as it is, also when it was revoked."""
    try:
        key = opened.add_key(**wanted, digest=token.digest, key_id=token.key_id)
    except Conflict:
        known = opened.find_key(token.digest)
        if not if_absent or known is None or known.id != token.key_id:
            raise
        if not known.valid(time.time()):
            output.note(
                f"{known.id} was revoked or has expired, and stays so: to open anything, put another secret in its place"
            )
        elif any(
            wanted[name] != value
            for name, value in _shown(known).items()
            if name in ("tenant", "name", "scopes", "limits")
        ):
            output.note(
                f"{known.id} is there with another tenant, name, scopes or limits, and stays so: they need another secret"
            )
        return known, False
    opened.record(
        key.tenant, None, "key.create", key.id, {**BY, "name": key.name, "scopes": wanted["scopes"]}
    )
    return key, True


def _older_retired(opened: JobStore, key: Key, ends: float) -> list[str]:
    """Keys of the same tenant and name, made before this one, end at Unix second `ends`, or sooner; ids of those changed."""
    names = [each for each in opened.list_keys(key.tenant) if each.name == key.name]
    before = names[: [each.id for each in names].index(key.id)]
    return [each.id for each in _retired(opened, before, ends)]


def _retired(opened: JobStore, keys: list[Key], ends: float) -> list[Key]:
    """Let keys end at Unix second `ends`; those changed."""
    changed = opened.retire_keys([key.id for key in keys], ends)
    for key in changed:
        opened.record(key.tenant, None, "key.retire", key.id, {**BY, "expires": ends})
    return changed


@contextmanager
def _opened(home: Path | None, store: str | None) -> Iterator[JobStore]:
    """The store that is meant; where it lies in a home, an empty one is made when there is none."""
    from xcray.cli.service.serve import settings_of
    from xcray.jobs.home import Home as Folder
    from xcray.jobs.store.job_store import JobStore

    settings = settings_of({"home": home, "store": store})
    if settings.store is None:
        Folder(settings.home)
    opened = JobStore(settings.store_url, upgrade=settings.store_upgrade)
    try:
        yield opened
    finally:
        opened.close()


def _limit(given: str) -> tuple[str, int]:
    """NAME=N as a pair. Raises InputError."""
    name, equals, number = given.partition("=")
    if not equals or not (number.isascii() and number.isdecimal()):
        raise InputError(
            f"--limit {excerpt(given)!r} is not NAME=N: write --limit requests_per_minute=600",
            code="USAGE",
        )
    return name.strip(), int(number)


def _shown(key: Key) -> dict[str, Any]:
    """A key without its digest, times as people read them."""
    from xcray.jobs.job import utc

    told = {name: value for name, value in vars(key).items() if name != "digest"}
    return {
        **told,
        "scopes": list(key.scopes),
        "expires": None if key.expires is None else utc(key.expires),
    }
