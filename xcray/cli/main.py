"""The command `xcray`: the command tree and error reporting."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from xcray import __version__
from xcray.cli.terminal.output import (
    BAD_INPUT,
    FAILURE,
    INTERRUPTED,
    JSON_HELP,
    OK,
    exit_code_of,
    print_error,
    print_line,
    set_json,
)
from xcray.cli.terminal.words import in_command_words
from xcray.errors import XcrayError, is_disk_full, missing_extra

# module and name of each command or group; a module is imported when its command is called
COMMANDS: Final = {
    "data": "training.data:app",
    "train": "training.train:train",
    "retrain": "training.labels:retrain",
    "update": "training.labels:update",
    "labels": "labels:app",
    "tune": "training.tune:tune",
    "compare": "training.compare:compare",
    "solvers": "training.solvers:solvers",
    "calibrate": "training.calibrate:calibrate",
    "thresholds": "training.calibrate:thresholds",
    "jobs": "service.jobs:app",
    "models": "models.models:app",
    "store": "service.store:app",
    "keys": "service.keys:app",
    "audit": "service.keys:audit",
    "predict": "models.predict:predict",
    "predict-batch": "models.predict_batch:predict_batch",
    "explain": "models.explain:explain",
    "evaluate": "models.evaluate:evaluate",
    "report": "training.report:report",
    "timeline": "training.report:timeline",
    "serve": "service.serve:serve",
    "runner": "service.runner:runner",
    "demo": "setup.demo:demo",
    "doctor": "setup.doctor:doctor",
    "compile-kernels": "setup.compile_kernels:compile_kernels",
    "health": "service.health:health",
    "top": "service.top:top",
}

HELP_OPTIONS: Final = ["-h", "--help"]
VALUES: Final = {"int": "N", "float": "NUMBER", "path": "PATH", "str": "TEXT"}  # types of Python


def show_version(is_requested: bool) -> None:
    """Print the version and exit, if requested."""
    if is_requested:
        print_line(f"xcray {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Extreme classification on Ray: data sets, trainings, models, exact predictions."""


def commands_for(words: Sequence[str]) -> Any:
    """Return the root command with all commands that the arguments can choose.

    That is one command or group if the first word names it: the others take 0.1 s to import.
    """
    return _commands_named(words[0] if words and words[0] in {*COMMANDS, "--version"} else None)


@functools.cache
def _commands_named(name: str | None) -> Any:
    """Return the root command with the command or group of this name; None for all."""
    app = typer.Typer(
        name="xcray",
        help="Extreme classification on Ray: data sets, trainings, models, exact predictions.",
        epilog="Exit codes: 0 success, 1 failure, 2 invalid input or usage, 130 interrupted. "
        "XCRAY_DEBUG=1 prints tracebacks.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": HELP_OPTIONS},
    )
    app.callback()(root)
    for each in COMMANDS if name is None else COMMANDS.keys() & {name}:
        module, attribute = COMMANDS[each].split(":")
        part = getattr(importlib.import_module(f"xcray.cli.{module}"), attribute)
        if isinstance(part, typer.Typer):
            app.add_typer(part, name=each)
        else:
            app.command(each)(part)
    command = typer.main.get_command(app)
    _complete(command)
    return command


@functools.cache
def _json_option() -> Any:
    """Return the option --json, as typer makes it for a command that has it alone."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def command(
        json: Annotated[
            bool,
            typer.Option("--json", help=JSON_HELP, callback=set_json, expose_value=False),
        ] = False,
    ) -> None:
        pass

    return typer.main.get_command(app).params[0]


def _complete(command: Any) -> None:
    """Give all commands --json, and describe values of options in plain words in the help.

    Groups have no --json. Typer shows types of Python; flags take no value, arguments have names.
    """
    inner = getattr(command, "commands", None)
    if inner is None:
        command.params.append(_json_option())
    context = command.context_class(command, help_option_names=HELP_OPTIONS)
    for option in [*command.params, command.get_help_option(context)]:
        if getattr(option, "is_flag", False):
            option.metavar = ""
        elif not hasattr(option, "display_type"):
            continue  # typer before 0.28 writes INTEGER and TEXT, no types of Python
        elif option.param_type_name == "argument":
            option.display_type = lambda _context: ""
        elif option.metavar is None:
            (kind,) = re.findall(r"int|float|path|str", option.display_type(context).lower())
            option.metavar = VALUES[kind]
    for each in (inner or {}).values():
        _complete(each)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Prints no traceback unless XCRAY_DEBUG=1.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stdout is None:  # closed by the shell: >&-
        sys.stdout = io.StringIO()
    if isinstance(sys.stdout, io.TextIOWrapper):  # UTF-8 for every locale, as JSON requires
        sys.stdout.reconfigure(encoding="utf-8")
    set_json("--json" in words)  # also for usage errors, which reach no command
    try:
        code = commands_for(words)(args=words, prog_name="xcray", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer has caught Ctrl-C
            raise KeyboardInterrupt
        return code if isinstance(code, int) else OK
    except (KeyboardInterrupt, typer.Abort):
        return report_error({"code": "INTERRUPTED", "message": "interrupted"}, INTERRUPTED, words)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the reader left; the exit must not try to flush to it
        return FAILURE
    except XcrayError as error:
        reraise_in_debug(error)
        return report_error(error.as_dict(), exit_code_of(error), words)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help was shown
            return BAD_INPUT
        reraise_in_debug(error)
        return report_error(*problem_from(error), words)
    finally:
        set_json(False)


def parameter_hint(error: Exception) -> str:
    """Return how to set the parameter of a solver that was given as an option; "" for others."""
    context = getattr(error, "ctx", None)
    options = {name for each in context.command.params for name in each.opts} if context else ()
    if not hasattr(error, "option_name") or "--param" not in options:
        return ""
    from xcray.solvers import loaded_solvers

    name = str(error.option_name).lstrip("-").replace("-", "_")
    solvers = [
        solver
        for solver, parameters in loaded_solvers()[0].items()
        if name in {field.name for field in dataclasses.fields(parameters)}
    ]
    return f"--param {name}=VALUE sets a parameter of {', '.join(solvers)}" if solvers else ""


def report_error(problem: dict[str, Any], code: int, arguments: Sequence[str]) -> int:
    """Write the error as text or JSON, in the words of the command, and return its exit code."""
    message = in_command_words(problem, commands_for(arguments), arguments)
    print_error(message)
    return code


def reraise_in_debug(error: Exception) -> None:
    """Raise the error again if XCRAY_DEBUG=1."""
    if os.environ.get("XCRAY_DEBUG", "") not in ("", "0"):
        raise error


def problem_from(error: Exception) -> tuple[dict[str, Any], int]:
    """Return the problem and the exit code of an error that is not an XcrayError.

    These are usage errors (with their own exit code), missing extras, system errors and bugs.
    """
    if hasattr(error, "format_message") and hasattr(
        error, "exit_code"
    ):  # typer's, whichever click it carries
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "xcray"
        return {
            "code": "USAGE",
            "message": error.format_message(),
            "hint": parameter_hint(error) or f"{command} --help",
        }, int(error.exit_code)
    if isinstance(error, ModuleNotFoundError) and isinstance(
        problem := missing_extra(error), XcrayError
    ):
        return problem.as_dict(), exit_code_of(problem)
    if isinstance(error, OSError):
        file = error.filename2 or error.filename  # of a rename: the name that was asked for
        place = f": {file}" if file else ""
        failure = {"code": "SYSTEM", "message": f"{error.strerror or error}{place}"}
        if is_disk_full(error):
            failure["hint"] = "free space on the disk of the output, then run the command again"
        return failure, FAILURE
    message = f"{type(error).__name__}: {error}"
    return {
        "code": "INTERNAL",
        "message": message,
        "hint": "this is a bug in xcray; please report it with the traceback of XCRAY_DEBUG=1",
    }, FAILURE
