"""`xcray health`: whether the service or the runner of this machine is alive. It loads little: health checks run it often."""

from __future__ import annotations

import os
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Annotated

import typer

from xcray.cli.terminal import output
from xcray.errors import ParameterError

SECONDS = 5.0  # for one answer
ANY = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # who listens everywhere is asked here


def health(
    ready: Annotated[
        bool,
        typer.Option(
            "--ready", help="Ask whether requests are welcome, not only whether it is alive."
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Its port. [default: XCRAY_PORT or 8000, and XCRAY_RUNNER_PORT]"
        ),
    ] = None,
    json: output.AsJson = False,
) -> None:
    """Ask the service, or the runner, of this machine whether it lives: exit code 0 yes, 1 no. Needs no key."""
    path = "/readyz" if ready else "/healthz"
    told = {f"{host}:{number}": answer(host, number, path) for host, number in places(port)}
    good = any(said == "200" for said in told.values())
    if json:
        output.emit({"ok": good, "asked": path, "answers": told})
    else:
        output.say(
            f"{'ok' if good else 'failed'}: {path} of {', '.join(f'{place} said {said}' for place, said in told.items())}"
        )
    raise typer.Exit(output.OK if good else output.FAILURE)


def places(port: int | None) -> list[tuple[str, int]]:
    """Hosts and ports where the service and the runner of this environment listen. Raises ParameterError for what is no port."""
    host, runner = (
        os.environ.get(name, "").strip("[]") for name in ("XCRAY_HOST", "XCRAY_RUNNER_HOST")
    )
    if port is not None:
        return [(ANY.get(host, host), port)]
    found = [
        (ANY.get(host, host), _number("XCRAY_PORT", 8000)),
        (ANY.get(runner, runner), _number("XCRAY_RUNNER_PORT", 0)),
    ]
    return [(name, number) for name, number in found if number]


def answer(host: str, port: int, path: str) -> str:
    """The status of the reply as text, or why there was none."""
    try:
        connection = _connection(host, port)
        try:
            connection.request("GET", path, headers={"Host": "localhost"})
            return str(connection.getresponse().status)
        finally:
            connection.close()
    except (OSError, HTTPException) as error:
        return f"nothing ({type(error).__name__})"


def _connection(host: str, port: int) -> HTTPConnection:
    """TLS where the service speaks it: it is this machine, so nobody's name is checked."""
    if not os.environ.get("XCRAY_TLS_CERTFILE"):
        return HTTPConnection(host, port, timeout=SECONDS)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return HTTPSConnection(host, port, timeout=SECONDS, context=context)


def _number(name: str, default: int) -> int:
    """A port from the environment."""
    value = os.environ.get(name) or str(default)
    if not (value.isascii() and value.isdecimal() and int(value) <= 65535):
        raise ParameterError(f"{name} is {value[:40]!r}: it must be a port, like 8000")
    return int(value)
