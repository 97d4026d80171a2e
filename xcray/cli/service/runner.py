"""`xcray runner`: jobs run, data sets built, old things swept, without an API; until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from xcray.cli.service.serve import settings_of
from xcray.cli.terminal import output


def runner(
    home: Annotated[
        Path | None,
        typer.Option(help="Folder shared with `xcray serve --no-runner`. [default: ~/.xcray]"),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="URL of a shared job store; without one, a file in the home.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Port of health and figures; 0 takes a free one. [default: 0]",
        ),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="A running Ray; without one, jobs on ray start a local one.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error. [default: info]")
    ] = None,
    json: output.AsJson = False,
) -> None:
    """Run the jobs that `xcray serve --no-runner` accepts. Several may share a PostgreSQL store and a home. Logs go to stderr."""
    from xcray.service.processes.server import run_jobs

    given = {
        "home": home,
        "store": store,
        "runner_port": port,
        "ray_address": ray_address,
        "log_level": log_level,
    }
    settings = settings_of(given)
    run_jobs(settings, ready=lambda url: announce(url, settings, json))


def announce(url: str, settings: Any, as_json: bool) -> None:
    """Say that jobs are run, and where health and figures are."""
    if as_json:
        output.emit(
            {"health": f"{url}/readyz", "metrics": f"{url}/metrics", "home": str(settings.home)}
        )
        return
    output.pairs(
        {"running jobs of": settings.home, "health": f"{url}/readyz", "figures": f"{url}/metrics"}
    )
    output.say("Ctrl-C ends it")
