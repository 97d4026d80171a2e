"""The command line: its output on stdout and stderr, and its exit codes, as text and as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from typer.core import TyperOption

from xcray import __main__ as start
from xcray.cli import main as cli
from xcray.cli.terminal import output
from xcray.cli.terminal.interrupt import stop_on_interrupt
from xcray.cli.terminal.progress import (
    LineReporter,
    format_duration,
    format_progress,
    make_reporter,
    progress_from_json,
    speed_of,
)
from xcray.errors import Conflict, DataError, InputError, NotFound, Stopped, Unavailable
from xcray.telemetry.progress import Progress


def step(phase: str = "TRAINING", done: int = 0, total: int = 100, **fields: Any) -> Progress:
    values: dict[str, Any] = {"seconds": 1.0, "rate": 0.0, "eta": None, "note": "", **fields}
    return Progress(phase=phase, done=done, total=total, **values)


def run(*arguments: str) -> int:
    return cli.main(list(arguments))


# progress


def test_format_progress() -> None:
    whole = step(done=1200, total=5000, rate=830.4, eta=4.6, note="two workers")
    assert format_progress(whole) == "TRAINING 1,200 of 5,000 (24 %), 830/s, 5 s left, two workers"
    assert format_progress(step("MERGING", 0, 0)) == "MERGING"
    assert format_progress(step(done=3, total=50, rate=0.25)) == "TRAINING 3 of 50 (6 %), 0.25/s"
    epochs = step(done=3, total=50, rate=2.0, note="objective 1.5")
    assert speed_of(epochs) == "2/s"
    assert speed_of(epochs._replace(newest={"objective": 1.5})) == "2/s, objective 1.5"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_lines_are_written_at_intervals_without_control_codes() -> None:
    stream, now = io.StringIO(), [0.0]
    show = LineReporter(stream, every=5.0, clock=lambda: now[0])
    for second, each in enumerate(
        [step("LOADING", 0, 0), *(step(done=n) for n in range(0, 101, 10)), step("MERGING", 0, 0)]
    ):
        now[0] = float(second)
        show(each)
    lines = stream.getvalue().splitlines()
    assert [line.split(" (")[0] for line in lines] == [
        "LOADING",
        "TRAINING 0 of 100",  # a new phase is written at once
        "TRAINING 50 of 100",  # five seconds later
        "TRAINING 100 of 100",  # ten seconds later
        "MERGING",
    ]
    assert all(line.isprintable() for line in lines)


def test_the_last_line_of_a_phase_is_written_once() -> None:
    stream = io.StringIO()
    show = LineReporter(stream, every=5.0, clock=lambda: 0.0)
    for _ in range(3):
        show(step(done=10))
    for _ in range(3):
        show(step(done=100))
    assert [line.split(" (")[0] for line in stream.getvalue().splitlines()] == [
        "TRAINING 10 of 100",
        "TRAINING 100 of 100",
    ]


def test_progress_from_json_needs_no_field() -> None:
    assert progress_from_json({}, "QUEUED") == Progress("QUEUED", 0, 0, 0.0, 0.0, None, "")
    assert progress_from_json({"phase": "TRAINING", "done": 3, "eta": 1.5}).eta == 1.5
    assert progress_from_json({"newest": {"epoch": 3}}).newest == {"epoch": 3}


def test_bars_need_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(make_reporter()).__name__ == "LineReporter"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with make_reporter() as bars:
        assert type(bars).__name__ == "BarReporter"
        bars(step("LOADING", 0, 0))
        bars(step(done=50, rate=3.0, eta=2.0))
        finished = {task.description: (task.completed, task.total) for task in bars._drawn.tasks}  # type: ignore[attr-defined]
    assert finished == {"LOADING": (1, 1), "TRAINING": (50, 100)}
    monkeypatch.setattr(output.Mode, "is_json", True)
    assert type(make_reporter()).__name__ == "Reporter"


# output


def test_tables_are_tab_separated_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["name", "n"], [["a", 1200], ["b\x1b[31m", None]])
    assert capsys.readouterr().out == "name\tn\na\t1,200\nb\\x1b[31m\t-\n"


def test_json_has_no_nan_keeps_unicode_and_is_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output.print_json({"a": 1})
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(output.Mode, "is_json", True)
    output.print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": "für", "d": Path("x")})
    output.print_line("a line")
    output.print_table(["name"], [["a"]])
    output.print_pairs({"a": 1})
    output.print_note("a note")
    output.print_note("what must be seen", always=True)
    out, err = capsys.readouterr()
    assert err == "what must be seen\n"
    assert json.loads(out) == {"a": None, "b": [None, 1.5], "c": "für", "d": "x"}
    assert "für" in out


def test_control_characters_in_names_never_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.print_line("label \x1b]0;owned\x07 \u202e")
    assert capsys.readouterr().out == "label \\x1b]0;owned\\x07 \\u202e\n"


def test_assignments() -> None:
    assert output.parse_assignments(["lam=0.01", "note=a=b"]) == {"lam": "0.01", "note": "a=b"}
    with pytest.raises(InputError, match="NAME=VALUE"):
        output.parse_assignments(["lam"])


# errors and exit codes


class FailingCommand:
    """A command that raises an error."""

    params = ()

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, **_: Any) -> None:
        raise self.error


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every command raise the error."""
    monkeypatch.setattr(cli, "commands_for", lambda _: FailingCommand(error))


def test_only_the_commands_below_the_first_word_are_built() -> None:
    every = cli.commands_for(["--help"]).commands
    for name, whole in every.items():
        (part,) = cli.commands_for([name, "--help"]).commands.values()
        assert [each.name for each in part.params] == [each.name for each in whole.params]
        assert list(getattr(part, "commands", {})) == list(getattr(whole, "commands", {}))
    assert cli.commands_for(["no-such-command"]).commands.keys() == every.keys()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("x"), 2),
        (DataError("LABEL", "bad label", file="a.txt", line=3), 2),
        (NotFound("x"), 2),
        (Conflict("x"), 1),
        (Unavailable("x"), 1),
        (Stopped("x"), 130),
        (KeyboardInterrupt(), 130),
        (PermissionError(13, "Permission denied", "file"), 1),
        (ZeroDivisionError("division by zero"), 1),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_every_error_is_one_line_and_a_code(
    error: BaseException,
    code: int,
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail_with(error, monkeypatch)
    assert run("anything", *(["--json"] if as_json else [])) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    first = captured.err.splitlines()[0]
    assert "Traceback" not in captured.err
    if as_json:
        assert {"code", "message"} <= set(json.loads(captured.err))
    else:
        assert first.startswith("error ")
        assert ": " in first


def test_the_position_of_bad_data_is_in_text_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem: dict[str, Any] = {"file": "a.svm", "line": 3, "column": 7, "value": "x"}
    fail_with(DataError("VALUE", "'x' is not a number", hint="write 1:0.5", **problem), monkeypatch)
    assert run("data") == 2
    assert (
        capsys.readouterr().err
        == "error VALUE: a.svm:3:7: 'x' is not a number\n  hint: write 1:0.5\n"
    )
    assert run("data", "--json") == 2
    written = json.loads(capsys.readouterr().err)
    assert (written["code"], written["line"], written["column"]) == ("VALUE", 3, 7)


def test_debug_raises_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(ZeroDivisionError(), monkeypatch)
    monkeypatch.setenv("XCRAY_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run("x")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonsense"],
        ["nonsense"],
        ["data", "show"],
        ["train", "--workers", "many", "d"],
        ["predict", "m", "-k", "0"],
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error USAGE: ")
    assert "--help" in err


def every_command(group: Any) -> Iterator[Any]:
    """Yield all commands below a group, and the group."""
    yield group
    for each in getattr(group, "commands", {}).values():
        yield from every_command(each)


def test_help_is_shown_as_it_is_written() -> None:
    for command in every_command(cli.commands_for(["--help"])):
        for each in command.params:
            text = each.help or ""
            assert Text.from_markup(text).plain == text, (command.name, each.name)


def test_values_are_described_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "build", "--help") == 0
    shown = capsys.readouterr().out
    assert re.search(r"--n-features +N \[1<=x", shown)
    assert re.search(r"--test +PATH +File", shown)
    assert "<" not in shown.replace("<=x<=", "")  # neither <list[Path]> nor <bool>


def test_a_short_option_means_the_same_everywhere() -> None:
    options = [
        each.opts
        for command in every_command(cli.commands_for(["--help"]))
        for each in command.params
        if any(len(name) == 2 for name in each.opts)
    ]
    for short, long in {"-o": "--out", "-p": "--param"}.items():
        assert {long in names for names in options if short in names} == {True}


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    import xcray

    assert run("--version") == 0
    assert capsys.readouterr().out == f"xcray {xcray.__version__}\n"
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert all(
        name in shown
        for name in (
            "data",
            "train",
            "jobs",
            "models",
            "predict",
            "explain",
            "serve",
            "demo",
            "doctor",
        )
    )


def test_texts_of_arguments_and_of_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from xcray.cli.models.predict import read_texts

    file = tmp_path / "new.txt"
    file.write_text("a text\n")
    assert read_texts([str(file)]) == [str(file)]
    assert f"xcray predict MODEL < {file}" in capsys.readouterr().err
    assert read_texts(["a text"]) == ["a text"]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stdin", io.StringIO("rows of a file\r\n"))
    assert read_texts(["-"]) == ["rows of a file"]


def test_stdout_is_utf_8_for_every_locale_and_can_be_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    for each in (stream, None):
        monkeypatch.setattr("sys.stdout", each)
        assert cli.main(["solvers"]) == 0
    assert stream.encoding == "utf-8"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("call", ['main(["--help"])', "import xcray.client"])
def test_help_and_the_client_load_no_heavy_library(call: str) -> None:
    code = f"""
import sys
from xcray.cli.main import main
{call}
print("heavy:", *[m for m in ("numpy", "numba", "ray", "fastapi", "sklearn", "pyarrow") if m in sys.modules])
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.splitlines()[-1] == "heavy:"


# Ctrl-C


class Flag:
    times = 0

    def set(self) -> None:
        self.times += 1


def test_the_first_interrupt_stops_gracefully_and_the_second_at_once() -> None:
    flag, before = Flag(), signal.getsignal(signal.SIGINT)

    def twice() -> None:
        with stop_on_interrupt(flag):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            assert flag.times == 1
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_of_the_first_imports_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Importing:
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "xcray.cli.main", Importing())
    assert start.run() == 130
    assert capsys.readouterr().err == "error INTERRUPTED: interrupted\n"


def test_an_interrupted_watch_names_the_job_that_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(client: Any, job: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("xcray.cli.service.jobs.follow_events", interrupt)
    assert run("jobs", "watch", "job_a") == 130
    assert "the job goes on: xcray jobs watch job_a" in capsys.readouterr().err


def test_commands_run_with_a_typer_that_does_not_describe_types(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With typer 0.12 to 0.27, every command ended with an AttributeError."""
    for each in TyperOption.__mro__:
        if "display_type" in vars(each):
            monkeypatch.delattr(each, "display_type")
    monkeypatch.setattr(cli, "_commands_named", cli._commands_named.__wrapped__)
    assert run("keys", "secret", "--json") == 0
    assert json.loads(capsys.readouterr().out).keys() == {"key"}


# a terminal


def test_on_a_terminal_tables_are_aligned() -> None:
    code = "from xcray.cli.terminal import output; output.print_table(['name', 'n'], [['alpha', 1], ['b', 22]])"
    controller, terminal = pty.openpty()
    process = subprocess.run(
        [sys.executable, "-c", code], stdout=terminal, stderr=subprocess.PIPE, check=True
    )
    os.close(terminal)
    pieces = []
    with contextlib.suppress(OSError):  # EIO: the writer is closed and all output was read
        while piece := os.read(controller, 4096):
            pieces.append(piece)
    os.close(controller)
    shown = re.sub(r"\x1b\[\d*m", "", b"".join(pieces).decode())
    assert process.stderr == b""
    assert "\t" not in shown
    assert [line.split() for line in shown.splitlines()] == [
        ["name", "n"],
        ["alpha", "1"],
        ["b", "22"],
    ]


def test_mappings_are_printed_as_lists(capsys: pytest.CaptureFixture[str]) -> None:
    """Counts by name were shown as Python code."""
    output.print_pairs({"programs": {"0004": 1, "0005": 2_000}, "none": {}})
    assert capsys.readouterr().out.splitlines() == ["programs  0004: 1, 0005: 2,000", "none      -"]
