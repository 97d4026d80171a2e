"""Selection of the server, and of the Ray cluster, that commands use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xcray.errors import InputError, NotFound, ParameterError, Unavailable, excerpt

if TYPE_CHECKING:
    from xcray.client import Client

DEFAULT = "http://127.0.0.1:8000"
HOST_PORT = re.compile(r"[^\s/]+:\d{1,5}")

RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        help="Address of a running Ray: host:port, or auto for RAY_ADDRESS; default: "
        "--pool ray starts a local Ray.",
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help=f"Server; default: XCRAY_SERVER, else {DEFAULT}."),
]


def locate_version(client: Client, reference: str) -> tuple[str, int]:
    """Return (name, version) of NAME, NAME:VERSION or NAME@ALIAS.

    Raises NotFound, InputError.
    """
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


@contextmanager
def model_client(server: str | None, model: str) -> Iterator[Client]:
    """Yield a client for a model that is not a directory.

    If no server was chosen and none responds, NotFound says that the directory does not exist.
    """
    with make_client(server) as client:
        try:
            yield client
        except Unavailable as error:
            if error.code != "NO_SERVER" or server or os.environ.get("XCRAY_SERVER"):
                raise
            from xcray.storage.atomic import similar_directory

            raise NotFound(
                f"there is no model directory {excerpt(model)}"
                f"{similar_directory(Path(model), 'manifest.json')}",
                hint=f"for a model on a server: {error.message}",
            ) from None


def resolve_ray_address(pool: str | None, ray_address: str | None) -> str | None:
    """Return the address of Ray; `auto` is the cluster that runs this command as a job.

    Raises InputError for another pool, which would ignore the address, and ParameterError.
    """
    if ray_address is not None and pool != "ray":
        raise InputError("--ray-address needs --pool ray", code="USAGE")
    if ray_address != "auto":
        return ray_address
    address = os.environ.get("RAY_ADDRESS", "")
    if not HOST_PORT.fullmatch(address):
        raise ParameterError(
            "--ray-address auto works only in jobs of a Ray cluster, where RAY_ADDRESS is "
            "set: use host:port",
            code="RAY_ADDRESS",
        )
    return address


def make_client(server: str | None) -> Client:
    """Return a client of the selected server, to be used as a context manager."""
    from xcray.client import Client

    return Client(server or os.environ.get("XCRAY_SERVER") or DEFAULT)
