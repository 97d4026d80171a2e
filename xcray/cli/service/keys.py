"""`xcray keys` and `xcray audit`: keys of the service and the audit log.

Both access the store directly, with or without a running service; they need no key.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.service.store import HomeOption, StoreOption, open_store
from xcray.cli.terminal import output
from xcray.errors import Conflict, InputError, NotFound, excerpt
from xcray.system.units import parse_seconds

if TYPE_CHECKING:
    from xcray.jobs.store.job_store import JobStore
    from xcray.jobs.store.keys import Key
    from xcray.jobs.store.tokens import NewToken

app = typer.Typer(
    name="keys", help="API keys of the service: create, list, revoke.", no_args_is_help=True
)

KeyId = Annotated[
    str, typer.Argument(metavar="KEY", help="Key id (key_...), see `xcray keys list`.")
]
AUDIT_DETAIL = {"by": "command line"}  # direct store access needs no key
MAX_FILE_BYTES = 4096  # bytes of a file with a key that are read


@app.command()
def create(
    scopes: Annotated[
        str, typer.Option(help="Comma-separated scopes: read, predict, submit, metrics, admin.")
    ],
    name: Annotated[str, typer.Option(help="Name of the key.")] = "key",
    tenant: Annotated[str, typer.Option(help="Tenant of the key.")] = "default",
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Lifetime, like 90d or 12h; default: until revoked."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="Limit: max_running, max_queued (of the tenant), requests_per_minute, "
            "instances_per_minute or upload_bytes. Repeatable.",
        ),
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help="File with an existing key, see `xcray keys secret`; the key is not printed."
        ),
    ] = None,
    if_absent: Annotated[
        bool,
        typer.Option(
            "--if-absent", help="With --secret-file: do not change a key that already exists."
        ),
    ] = False,
    older_expire: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Let older keys of this tenant and name expire after this time, like 24h.",
        ),
    ] = None,
    home: HomeOption = None,
    store: StoreOption = None,
) -> None:
    """Create a key and show it once. After the first key, the service requires one.

    Example: xcray keys create --scopes read,predict --expires 90d
    """
    from xcray.jobs.store.tokens import check_limits, check_scopes, create_token
    from xcray.storage.atomic import check_name

    request: dict[str, Any] = {"tenant": check_name(tenant, "tenant"), "name": name}
    request["scopes"] = check_scopes(each.strip() for each in scopes.split(",") if each.strip())
    request["limits"] = check_limits(dict(_parse_limit(each) for each in limit or []))
    request["expires"] = None if expires is None else time.time() + parse_seconds(expires)
    grace = None if older_expire is None else parse_seconds(older_expire)
    if if_absent and secret_file is None:
        raise InputError(
            "--if-absent needs --secret-file: a generated key is always new", code="USAGE"
        )
    token = create_token() if secret_file is None else _read_token(secret_file)
    with open_store(home, store, create=True) as opened:
        key, new = _add_key(opened, token, request, if_absent)
        older = (
            grace is not None and key.is_valid(time.time()) and key.name == name
        )  # a key with another name replaces none
        retired = _retire_older(opened, key, time.time() + (grace or 0)) if older else []
    output.print_json(
        {
            **_key_as_dict(key),
            "new": new,
            "retired": retired,
            **({"key": token.token} if secret_file is None else {}),
        }
    )
    details: dict[str, Any] = {"id": key.id, "tenant": key.tenant, "scopes": ", ".join(key.scopes)}
    details |= {"new": new} if secret_file is not None else {}
    details |= {"retired": ", ".join(retired)} if grace is not None else {}
    output.print_pairs(details)
    if secret_file is None:
        output.print_line(token.token)
        output.print_note(
            "save the key now, it is not shown again. Clients read it from XCRAY_KEY, or from "
            "the file named by XCRAY_KEY_FILE"
        )


@app.command()
def secret(
    file: Annotated[
        Path | None,
        typer.Argument(help="File to write, readable by its owner only; default: print it."),
    ] = None,
) -> None:
    """Generate a key for a Kubernetes Secret.

    It is valid once added by `xcray keys create --secret-file`.
    """
    from xcray.jobs.store.tokens import create_token

    token = create_token().token
    if file is None:
        output.print_json({"key": token})
        output.print_line(token)
        return
    try:
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as target:
            target.write(token)
    except FileNotFoundError:
        raise NotFound(f"there is no folder {file.parent} to write {file.name} to") from None
    except FileExistsError:
        raise Conflict(
            f"{file.name} exists already: choose another file, or remove it", code="EXISTS"
        ) from None
    output.print_json({"file": str(file)})
    output.print_note(
        f"made {file.name}; now `xcray keys create --secret-file {file.name} --scopes ...`"
    )


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Filter by tenant.")] = None,
    home: HomeOption = None,
    store: StoreOption = None,
) -> None:
    """List all keys without their secrets."""
    with open_store(home, store) as opened:
        keys = [_key_as_dict(key) for key in opened.keys.list_all(tenant)]
    output.print_json({"keys": keys})
    columns = ["id", "tenant", "name", "scopes", "created", "expires", "revoked", "last_used"]
    output.print_table(
        columns, [[", ".join(key[c]) if c == "scopes" else key[c] for c in columns] for key in keys]
    )


@app.command()
def revoke(
    key_id: KeyId,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Let the key expire after this time, like 24h, instead of immediately.",
        ),
    ] = None,
    home: HomeOption = None,
    store: StoreOption = None,
) -> None:
    """Revoke a key. Running services stop accepting it within five seconds."""
    ends = None if after is None else time.time() + parse_seconds(after)
    with open_store(home, store) as opened:
        if ends is None:
            key = opened.keys.revoke(key_id)
            opened.audit.record(key.tenant, None, "key.revoke", key.id, AUDIT_DETAIL)
        else:
            keys = [each for each in opened.keys.list_all() if each.id == key_id]
            if not keys:
                raise NotFound(
                    f"key {excerpt(key_id)!r} does not exist: list keys with `xcray keys list`"
                )
            key = (_retire(opened, keys, ends) or keys)[0]
    output.print_json(_key_as_dict(key))
    if ends is not None and key.revoked is None:
        output.print_line(
            f"{key.id} ({output.printable(key.name)}) expires at {_key_as_dict(key)['expires']}"
        )
    else:
        output.print_line(f"{key.id} ({output.printable(key.name)}) is revoked")


def audit(
    tenant: Annotated[
        str | None, typer.Option(help="Filter by tenant; - for unauthenticated callers.")
    ] = None,
    action: Annotated[
        str | None, typer.Option(help="Filter by action, like job.submit or login.refused.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=100_000, help="Maximum number of entries, newest first.")
    ] = 50,
    home: HomeOption = None,
    store: StoreOption = None,
) -> None:
    """Show who changed what, with key and request, newest first."""
    entries: list[Any] = []
    with open_store(home, store) as opened:
        token = None
        while len(entries) < limit:
            page, token = opened.audit.list_page(
                tenant, action=action, limit=min(1000, limit - len(entries)), page_token=token
            )
            entries += page
            if token is None:
                break
    output.print_json({"entries": [vars(entry) for entry in entries]})
    columns = ["time", "tenant", "key_id", "action", "subject", "request_id"]
    output.print_table(
        columns, [[getattr(entry, column) for column in columns] for entry in entries]
    )


def _read_token(file: Path) -> NewToken:
    """Read a key from a file. Raises NotFound, ParameterError."""
    from xcray.jobs.store.tokens import import_token

    try:
        with open(file, "rb") as source:
            return import_token(source.read(MAX_FILE_BYTES).decode("ascii", "replace"))
    except OSError as error:
        raise NotFound(
            f"{excerpt(str(file))!r} cannot be read ({error.strerror}): name a file with a key",
            code="NO_FILE",
        ) from None


def _add_key(
    opened: JobStore, token: NewToken, fields: dict[str, Any], if_absent: bool
) -> tuple[Key, bool]:
    """Add a key; return its record and whether it is new.

    An existing key is not changed, even if it was revoked.
    """
    try:
        key = opened.keys.add(**fields, digest=token.digest, key_id=token.key_id)
    except Conflict:
        known = opened.keys.find(token.digest)
        if not if_absent or known is None or known.id != token.key_id:
            raise
        if not known.is_valid(time.time()):
            output.print_note(
                f"{known.id} was revoked or has expired and is not changed: use another secret",
                always=True,
            )
        elif any(
            fields[name] != value
            for name, value in _key_as_dict(known).items()
            if name in ("tenant", "name", "scopes", "limits")
        ):
            output.print_note(
                f"{known.id} exists with another tenant, name, scopes or limits "
                "and is not changed: use another secret",
                always=True,
            )
        return known, False
    opened.audit.record(
        key.tenant,
        None,
        "key.create",
        key.id,
        {**AUDIT_DETAIL, "name": key.name, "scopes": fields["scopes"]},
    )
    return key, True


def _retire_older(opened: JobStore, key: Key, ends: float) -> list[str]:
    """Retire older keys of the same tenant and name at Unix second `ends`; return their ids."""
    names = [each for each in opened.keys.list_all(key.tenant) if each.name == key.name]
    before = names[: [each.id for each in names].index(key.id)]
    return [each.id for each in _retire(opened, before, ends)]


def _retire(opened: JobStore, keys: list[Key], ends: float) -> list[Key]:
    """Let keys expire at Unix second `ends`; return the changed keys."""
    changed = opened.keys.retire([key.id for key in keys], ends)
    for key in changed:
        opened.audit.record(
            key.tenant, None, "key.retire", key.id, {**AUDIT_DETAIL, "expires": ends}
        )
    return changed


def _parse_limit(text: str) -> tuple[str, int]:
    """Parse NAME=N. Raises InputError."""
    name, equals, number = text.partition("=")
    if not equals or not (number.isascii() and number.isdecimal()):
        raise InputError(
            f"--limit {excerpt(text)!r} is not NAME=N: write --limit requests_per_minute=600",
            code="USAGE",
        )
    return name.strip(), int(number)


def _key_as_dict(key: Key) -> dict[str, Any]:
    """Return a key without its digest, with formatted times."""
    from xcray.jobs.job import format_utc

    fields = {name: value for name, value in vars(key).items() if name != "digest"}
    return {
        **fields,
        "scopes": list(key.scopes),
        "expires": None if key.expires is None else format_utc(key.expires),
    }
