"""The command `xcray`: the tree of its commands, and what becomes of errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from xcray import __version__
from xcray.cli.models import models, predict
from xcray.cli.models import predict_batch as batch
from xcray.cli.service import health, jobs, keys, runner, serve, store
from xcray.cli.setup import compile_kernels as compile
from xcray.cli.setup import demo, doctor
from xcray.cli.terminal.output import BAD_INPUT, FAILURE, INTERRUPTED, OK, fail, say, status_of
from xcray.cli.training import calibrate, data, labels, report, train
from xcray.cli.training import plan as size
from xcray.cli.training import tune as path
from xcray.errors import XcrayError, lacking

app = typer.Typer(
    name="xcray",
    help="Extreme classification on Ray: data sets, trainings, models, exact answers.",
    epilog="Exit codes: 0 done, 2 bad input or usage, 1 failure, 130 interrupted. XCRAY_DEBUG=1 shows tracebacks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
app.command("train")(train.train)
app.command("retrain", cls=labels.ByLabels)(labels.retrain)
app.add_typer(labels.app, name="labels")
app.command("path", cls=path.ByValues)(path.path)
app.command("calibrate")(calibrate.calibrate)
app.add_typer(jobs.app, name="jobs")
app.add_typer(models.app, name="models")
app.add_typer(store.app, name="store")
app.add_typer(keys.app, name="keys")
app.command("audit")(keys.audit)
app.command("predict")(predict.predict)
app.command("predict-batch")(batch.predict_batch)
app.command("explain")(predict.explain)
app.command("report")(report.report)
app.command("timeline")(report.timeline)
app.command("size")(size.size)
app.command("serve")(serve.serve)
app.command("runner")(runner.runner)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("compile")(compile.compile_kernels)
app.command("health")(health.health)


def show_version(wanted: bool) -> None:
    """Print the version and end, when asked to."""
    if wanted:
        say(f"xcray {__version__}")
        raise typer.Exit


@app.callback()
def everything(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Extreme classification on Ray: data sets, trainings, models, exact answers."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Never lets a traceback out, unless XCRAY_DEBUG=1."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=given, prog_name="xcray", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer has caught Ctrl-C
            raise KeyboardInterrupt
        return code if isinstance(code, int) else OK
    except (KeyboardInterrupt, typer.Abort):
        return explained({"code": "INTERRUPTED", "message": "interrupted"}, INTERRUPTED, given)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the reader left; the exit must not try to flush to it
        return FAILURE
    except XcrayError as error:
        debug(error)
        return explained(error.as_dict(), status_of(error), given)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help was shown
            return BAD_INPUT
        debug(error)
        return explained(*problem_of(error), given)


def explained(problem: dict[str, Any], code: int, arguments: Sequence[str]) -> int:
    """Write the error in the form that was asked for; its exit code."""
    fail(problem, "--json" in arguments)
    return code


def debug(error: Exception) -> None:
    """Let the traceback out when XCRAY_DEBUG=1."""
    if os.environ.get("XCRAY_DEBUG", "") not in ("", "0"):
        raise error


def problem_of(error: Exception) -> tuple[dict[str, Any], int]:
    """Errors that are not ours: of usage (they know their exit code), a missing extra, of the system, and bugs."""
    if hasattr(error, "format_message") and hasattr(
        error, "exit_code"
    ):  # typer's, whichever click it carries
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "xcray"
        return {
            "code": "USAGE",
            "message": error.format_message(),
            "hint": f"{command} --help",
        }, int(error.exit_code)
    if isinstance(error, ModuleNotFoundError) and isinstance(found := lacking(error), XcrayError):
        return found.as_dict(), status_of(found)
    if isinstance(error, OSError):
        place = f": {error.filename}" if error.filename else ""
        return {"code": "SYSTEM", "message": f"{error.strerror or error}{place}"}, FAILURE
    message = f"{type(error).__name__}: {error}"
    return {
        "code": "INTERNAL",
        "message": message,
        "hint": "a bug of xcray; XCRAY_DEBUG=1 shows where, please report it",
    }, FAILURE
