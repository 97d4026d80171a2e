"""Log formatters: one line per event, as JSON for machines or as text for people.

Each line contains its context. Control characters, line separators and characters that change the
direction of writing are escaped in both forms. Only tracebacks in text span several lines.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import traceback
import unicodedata
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias

import msgspec

LogFormat: TypeAlias = Literal["json", "text"]
# Fields of each line next to its event, such as ids.
Context: TypeAlias = Callable[[], dict[str, Any]]

FORMAT_VARIABLE: Final = "XCRAY_LOG_FORMAT"
MAX_CHARS: Final = 256  # characters of a logged string; tracebacks can be longer
MAX_TRACEBACK_CHARS: Final = 8192
WRITE_SECONDS: Final = 0.2  # between two writes of a BatchingHandler
MAX_WAITING_LINES: Final = 1000

_ENCODER = json.JSONEncoder(ensure_ascii=True, default=str, separators=(",", ":"))
_FAST_ENCODER = msgspec.json.Encoder()
_PLAIN_TYPES: Final = frozenset({str, int, float, bool, type(None)})
_STANDARD_ATTRIBUTES = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}
# Unicode categories that a terminal interprets instead of showing.
_ESCAPED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class JSONFormatter(logging.Formatter):
    """Formats time, level, logger, event, context and `extra` as one line of ASCII JSON."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        entry: dict[str, Any] = {
            "time": _format_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage()[:MAX_CHARS],
            **self._context(),
        }
        entry |= {name: _truncate(value) for name, value in extra_fields(record).items()}
        if record.exc_info:
            entry["traceback"] = "".join(traceback.format_exception(*record.exc_info))[
                -MAX_TRACEBACK_CHARS:
            ]
        return _encode(entry)


def _encode(entry: dict[str, Any]) -> str:
    """Return an entry as ASCII JSON, by msgspec if it has simple values and characters only."""
    if _PLAIN_TYPES.issuperset(map(type, entry.values())):
        try:
            line = _FAST_ENCODER.encode(entry)
        except (OverflowError, UnicodeEncodeError):  # a huge number, or a surrogate
            return _ENCODER.encode(entry)
        if line.isascii():
            return line.decode()
    return _ENCODER.encode(entry)


class TextFormatter(logging.Formatter):
    """Formats the same for people: time, level, logger, event, then name=value pairs.

    A traceback follows on its own lines.
    """

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and those of a traceback."""
        rest = {**self._context(), **extra_fields(record)}
        fields = "".join(
            f" {name}={escape_invisible(_format_value(value))}" for name, value in rest.items()
        )
        event = escape_invisible(record.getMessage()[:MAX_CHARS])
        prefix = f"{_format_time(record.created)} {record.levelname} {record.name}"
        line = f"{prefix}: {event}{fields}"
        if not record.exc_info:
            return line
        lines = "".join(traceback.format_exception(*record.exc_info))[
            -MAX_TRACEBACK_CHARS:
        ].splitlines()
        return "\n".join([line, *(escape_invisible(each) for each in lines)])


FORMATTERS: Final[dict[LogFormat, Callable[[Context], logging.Formatter]]] = {
    "json": JSONFormatter,
    "text": TextFormatter,
}


class BatchingHandler(logging.Handler):
    """Writes the lines of a stream in batches from a thread: a write per line is slow.

    Lines are written every WRITE_SECONDS, when the handler closes or the program ends, and at once
    with a warning or error. A process that is killed loses the lines of the last interval.
    """

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._stream = stream
        self._lines: deque[str] = deque()
        self._writes = threading.Lock()
        self._is_closed = threading.Event()
        self._process = os.getpid()
        threading.Thread(target=self._write_regularly, name="xcray-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Add a line."""
        try:
            self._lines.append(self.format(record))
        except Exception:  # as any handler of `logging`
            self.handleError(record)
        if record.levelno >= logging.WARNING or len(self._lines) >= MAX_WAITING_LINES:
            self.flush()

    def flush(self) -> None:
        """Write the waiting lines. A failure does not fail the caller, whose work is another."""
        if os.getpid() != self._process:  # a fork: the lines belong to the other process
            return
        with self._writes, contextlib.suppress(OSError, ValueError):
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            # one string, because standard error is written at each call, and after each write the
            # thread waits for the interpreter lock while requests wait for the thread
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()

    def close(self) -> None:
        """Write the waiting lines and end the thread."""
        self._is_closed.set()
        self.flush()
        super().close()

    def _write_regularly(self) -> None:
        """Write the lines of each interval."""
        while not self._is_closed.wait(WRITE_SECONDS):
            if self._lines:
                self.flush()


class LogContext:
    """The context of a runner's log lines: job, attempt and phase."""

    def __init__(self, job: str, attempt: int) -> None:
        self.fields: dict[str, Any] = {"job": job, "attempt": attempt}

    def set_phase(self, phase: str) -> None:
        """Set the phase of all following lines."""
        self.fields["phase"] = phase

    def __call__(self) -> dict[str, Any]:
        """Return the fields of a line."""
        return self.fields


def configure_runner_logging(path: Path | None, context: LogContext) -> None:
    """Log to standard error, and to a file that only its owner can read, if given.

    The format is XCRAY_LOG_FORMAT, or text without it, because people read these logs.
    """
    streams: list[IO[str]] = [sys.stderr]
    if path is not None:
        streams.append(os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a"))
    log_format = os.environ.get(FORMAT_VARIABLE)
    handlers = [logging.StreamHandler(stream) for stream in streams]
    for handler in handlers:
        handler.setFormatter(FORMATTERS["json" if log_format == "json" else "text"](context))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields from `extra`, or from the service's `note`."""
    fields: dict[str, Any] | None = vars(record).get("_fields")
    if fields is None:
        fields = {
            name: value
            for name, value in vars(record).items()
            if name not in _STANDARD_ATTRIBUTES and name[0] != "_"
        }
    return fields


def escape_invisible(text: str) -> str:
    r"""Return a text with all invisible characters escaped: "a\nb" has a backslash and an n."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escape(each) if unicodedata.category(each) in _ESCAPED_CATEGORIES else each
        for each in text
    )


def _escape(character: str) -> str:
    """Return a character as an escape sequence."""
    return character.encode("unicode_escape").decode("ascii")


def _format_value(value: Any) -> str:
    """Return the value of a field, without quotes if it is one plain word."""
    text = str(_truncate(value))
    return (
        text
        if text and " " not in text and '"' not in text and "=" not in text
        else json.dumps(text, ensure_ascii=False)
    )


def _format_time(seconds: float) -> str:
    """Return Unix seconds as date and time in UTC with milliseconds."""
    return f"{_format_second(int(seconds))}.{int(seconds % 1 * 1000):03d}Z"


@lru_cache(2)
def _format_second(second: int) -> str:
    """Return a Unix second as date and time in UTC, cached because many lines share it."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _truncate(value: Any) -> Any:
    """Return strings cut to MAX_CHARS, other values as they are."""
    return value[:MAX_CHARS] if isinstance(value, str) else value
