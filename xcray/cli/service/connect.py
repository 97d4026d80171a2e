"""Which server the commands speak to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from xcray.errors import InputError, NotFound, excerpt

if TYPE_CHECKING:
    from xcray.client import Client

DEFAULT = "http://127.0.0.1:8000"

ServerChoice = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help=f"The server; else XCRAY_SERVER, else {DEFAULT}."),
]


def located(client: Client, reference: str) -> tuple[str, int]:
    """(name, version) that NAME, NAME:VERSION or NAME@ALIAS stands for now. Raises NotFound, InputError."""
    name, colon, number = reference.partition(":")
    if colon:
        if not (number.isascii() and number.isdecimal()):
            raise InputError(
                f"version {excerpt(number)!r} is not a number; write {excerpt(name)}:1",
                code="USAGE",
            )
        return name, int(number)
    name, _, alias = reference.partition("@")
    aliases = client.models.get(name)["aliases"]
    if (alias or "latest") not in aliases:
        raise NotFound(
            f"model {name} has no alias {excerpt(alias)!r}; it has {', '.join(sorted(aliases))}"
        )
    return name, aliases[alias or "latest"]


def client_of(server: str | None) -> Client:
    """A client of the chosen server, to be used as a context."""
    from xcray.client import Client

    return Client(server or os.environ.get("XCRAY_SERVER") or DEFAULT)
