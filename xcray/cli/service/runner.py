"""`xcray runner`: run jobs, build data sets and apply retention without an API, until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from xcray.cli.service.serve import make_settings
from xcray.cli.terminal import output


def runner(
    home: Annotated[
        Path | None,
        typer.Option(
            help="Home directory shared with `xcray serve --no-runner`; default: ~/.xcray."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="URL of a shared job store; default: a file in the home directory."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Port of health and metrics; 0 selects a free one; default: 0.",
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Address of a running Ray; default: jobs on ray start a local Ray."),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="Log level: debug, info, warning or error; default: info.")
    ] = None,
) -> None:
    """Run the jobs that `xcray serve --no-runner` accepts.

    Several runners can share a PostgreSQL store and a home directory. Logs go to stderr.
    """
    from xcray.service.processes.server import run_jobs

    options = {
        "home": home,
        "store": store,
        "runner_port": port,
        "ray_address": ray_address,
        "log_level": log_level,
    }
    settings = make_settings(options)
    run_jobs(settings, on_ready=lambda url: print_address(url, settings))


def print_address(url: str, settings: Any) -> None:
    """Print the addresses of health and metrics."""
    output.print_json(
        {"health": f"{url}/readyz", "metrics": f"{url}/metrics", "home": str(settings.home)}
    )
    output.print_pairs(
        {"running jobs in": settings.home, "health": f"{url}/readyz", "metrics": f"{url}/metrics"}
    )
    output.print_line("press Ctrl-C to stop")
