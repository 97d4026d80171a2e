"""`xcray health`: liveness of the local service or runner; imports little because it runs often."""

from __future__ import annotations

import os
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from json import loads
from typing import Annotated
from urllib.parse import urlsplit

import typer

from xcray.cli.terminal import output
from xcray.errors import ParameterError
from xcray.system.user_directories import default_home

TIMEOUT_SECONDS = 5.0  # per response
LOOPBACK_ADDRESSES = {
    "": "127.0.0.1",
    "0.0.0.0": "127.0.0.1",
    "::": "::1",
}  # a wildcard address is checked on loopback


def health(
    ready: Annotated[
        bool,
        typer.Option("--ready", help="Check readiness, not only liveness."),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Port to check; default: XCRAY_PORT and XCRAY_RUNNER_PORT, else the ports in the "
            "home, else 8000.",
        ),
    ] = None,
) -> None:
    """Check the local service or runner. Exit code: 0 alive, 1 not. Needs no key."""
    path = "/readyz" if ready else "/healthz"
    answers = {
        f"{host}:{number}": probe(host, number, path) for host, number in find_endpoints(port)
    }
    good = any(status == "200" for status in answers.values())
    output.print_json({"ok": good, "asked": path, "answers": answers})
    output.print_line(
        f"{'ok' if good else 'failed'}: {path} of "
        + ", ".join(f"{place} returned {status}" for place, status in answers.items())
    )
    raise typer.Exit(output.OK if good else output.FAILURE)


def find_endpoints(port: int | None) -> list[tuple[str, int]]:
    """Return hosts and ports of the service and the runner of this environment.

    Raises ParameterError if a port is invalid.
    """
    host = os.environ.get("XCRAY_HOST", "").strip("[]")
    ports = [port]
    if port is None:
        ports = [
            _port_from_environment("XCRAY_PORT", _port_in_home("serve")),
            _port_from_environment("XCRAY_RUNNER_PORT", _port_in_home("runner")),
        ]
        ports = ports if any(ports) or "XCRAY_PORT" in os.environ else [8000]
    return [(LOOPBACK_ADDRESSES.get(host, host), number) for number in ports if number]


def probe(host: str, port: int, path: str) -> str:
    """Return the status of the response as text, or the reason for a missing response."""
    try:
        connection = _connect(host, port)
        try:
            connection.request("GET", path, headers={"Host": "localhost"})
            return str(connection.getresponse().status)
        finally:
            connection.close()
    except (OSError, HTTPException) as error:
        return f"no response ({type(error).__name__})"


def _connect(host: str, port: int) -> HTTPConnection:
    """Connect, with TLS if the service uses it; the certificate is not verified locally."""
    if not os.environ.get("XCRAY_TLS_CERTFILE"):
        return HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=context)


def _port_in_home(role: str) -> int:
    """Return the port of the process of this role that runs in the home; 0 if there is none."""
    try:
        info = loads((default_home() / f"{role}.json").read_text())
        return urlsplit(info["url"]).port or 0
    except (OSError, ValueError, LookupError, TypeError):
        return 0


def _port_from_environment(name: str, default: int) -> int:
    """Return a port from an environment variable. Raises ParameterError."""
    value = os.environ.get(name) or str(default)
    if not (value.isascii() and value.isdecimal() and int(value) <= 65535):
        raise ParameterError(f"{name} is {value[:40]!r}: it must be a port, like 8000")
    return int(value)
