"""`xcray serve`: run the service until Ctrl-C."""

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
        str | None, typer.Option(help="Address to listen on; default: 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port; 0 selects a free one; default: 8000."),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(help="Home directory for data sets, jobs and models; default: ~/.xcray."),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(help="Default pool of jobs: serial, threads or ray; default: threads."),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Address of a running Ray; default: jobs on ray start a local Ray."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Number of serving processes; default: 1."),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="Log level: debug, info, warning or error; default: info.")
    ] = None,
    runner: Annotated[
        bool,
        typer.Option(
            "--runner/--no-runner", help="Also run jobs, or leave them to `xcray runner`."
        ),
    ] = True,
    store: Annotated[
        str | None,
        typer.Option(help="URL of a shared job store; default: a file in the home directory."),
    ] = None,
    insecure_dev: Annotated[
        bool,
        typer.Option(
            "--insecure-dev", help="Listen on a public address without keys (closed networks only)."
        ),
    ] = False,
) -> None:
    """Serve the REST API, its documentation and the console.

    Settings that are not options are read from XCRAY_HOST, XCRAY_PORT and so on. Logs go to stderr.
    """
    from xcray.service.processes.server import serve as run

    options = {
        "host": host,
        "port": port,
        "home": home,
        "pool": pool,
        "ray_address": ray_address,
        "log_level": log_level,
    }
    options |= {"processes": processes, "store": store, "insecure_dev": insecure_dev or None}
    settings = make_settings(options)
    run(settings, with_runner=runner, on_ready=lambda url: print_address(url, settings))


def make_settings(options: Mapping[str, Any]) -> Settings:
    """Return the settings for the given options; None means not given.

    Raises ParameterError with the name of the invalid setting.
    """
    from xcray.service.settings import Settings

    try:
        return Settings(**{name: value for name, value in options.items() if value is not None})
    except ValueError as error:
        raise ParameterError(describe_first_error(error)) from None


def describe_first_error(error: ValueError) -> str:
    """Describe the first validation error with its setting."""
    errors: list[dict[str, Any]] = getattr(error, "errors", list)()
    if not errors:
        return str(error)
    name = ".".join(str(part) for part in errors[0]["loc"])
    return f"{name}: {errors[0]['msg']} (--{name.replace('_', '-')} or XCRAY_{name.upper()})"


def print_address(url: str, settings: Any) -> None:
    """Print the address of the service once it responds."""
    output.print_json(
        {"url": url, "docs": f"{url}/docs", "home": str(settings.home), "pool": settings.pool}
    )
    output.print_pairs(
        {"serving": url, "console": f"{url}/", "docs": f"{url}/docs", "home": settings.home}
    )
    output.print_line("press Ctrl-C to stop")
