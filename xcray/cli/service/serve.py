"""`xcray serve`: the service, until Ctrl-C."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.errors import ParameterError

if TYPE_CHECKING:
    from xcray.service.settings import Settings


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port; 0 takes a free one. [default: 8000]")
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="Folder for data sets, jobs, models. [default: ~/.xcray]")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(help="Pool of jobs that name none: serial, threads, ray. [default: threads]"),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="A running Ray; without one, jobs on ray start a local one.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=256, help="Processes that answer, for more than one core. [default: 1]"
        ),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error. [default: info]")
    ] = None,
    runner: Annotated[
        bool,
        typer.Option("--runner/--no-runner", help="Run jobs too, or leave them to `xcray runner`."),
    ] = True,
    store: Annotated[
        str | None, typer.Option(help="URL of a shared job store; without one, a file in the home.")
    ] = None,
    insecure_dev: Annotated[
        bool, typer.Option("--insecure-dev", help="Listen on a public address without keys.")
    ] = False,
    json: output.AsJson = False,
) -> None:
    """Serve REST, docs and console. Settings not given here are read from XCRAY_HOST, XCRAY_PORT and so on. Logs go to stderr."""
    from xcray.service.processes.server import serve as run

    given = {
        "host": host,
        "port": port,
        "home": home,
        "pool": pool,
        "ray_address": ray_address,
        "log_level": log_level,
    }
    given |= {"workers": workers, "store": store, "insecure_dev": insecure_dev or None}
    settings = settings_of(given)
    run(settings, runner=runner, ready=lambda url: announce(url, settings, json))


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Settings by arguments, None where one was not given. Raises ParameterError with the name of what is wrong."""
    from xcray.service.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValueError as error:
        raise ParameterError(first_problem(error)) from None


def first_problem(error: ValueError) -> str:
    """The first complaint of the settings, with the name it is about."""
    found: list[dict[str, Any]] = getattr(error, "errors", list)()
    if not found:
        return str(error)
    name = ".".join(str(part) for part in found[0]["loc"])
    return f"{name}: {found[0]['msg']} (--{name.replace('_', '-')} or XCRAY_{name.upper()})"


def announce(url: str, settings: Any, as_json: bool) -> None:
    """Say where it is, once it answers."""
    if as_json:
        output.emit(
            {"url": url, "docs": f"{url}/docs", "home": str(settings.home), "pool": settings.pool}
        )
        return
    output.pairs(
        {"serving": url, "console": f"{url}/", "docs": f"{url}/docs", "home": settings.home}
    )
    output.say("Ctrl-C ends it")
