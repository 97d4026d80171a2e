"""Log lines: one event is one line, whatever a stranger put into a name; each says what it belongs to.

Two forms: JSON for machines, and text for people. Control characters, line separators and what turns the direction of writing
arrive escaped in both. Only tracebacks in text take several lines.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias

Form: TypeAlias = Literal["json", "text"]
Context: TypeAlias = Callable[
    [], dict[str, Any]
]  # what each line says beside its event: ids, where it happened

FORM_VARIABLE: Final = "XCRAY_LOG_FORMAT"
LONGEST: Final = 256  # characters of a logged string; tracebacks may be longer
LONGEST_TRACEBACK: Final = 8192

_ENCODER = json.JSONEncoder(ensure_ascii=True, default=str)
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}
_HIDDEN: Final = frozenset(
    {"Cc", "Cf", "Cs", "Zl", "Zp"}
)  # kinds of characters that a terminal obeys instead of showing


class JSONLines(logging.Formatter):
    """Time, level, logger, event, the context, and what was given as `extra`: one line of ASCII JSON."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        entry: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage()[:LONGEST],
            **self._context(),
        }
        entry |= {name: _short(value) for name, value in facts_of(record).items()}
        if record.exc_info:
            entry["traceback"] = "".join(traceback.format_exception(*record.exc_info))[
                -LONGEST_TRACEBACK:
            ]
        return _ENCODER.encode(entry)


class TextLines(logging.Formatter):
    """The same for people: time, level, logger, event, and name=value of the rest; a traceback below it."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """One line, and those of a traceback."""
        rest = {**self._context(), **facts_of(record)}
        told = "".join(f" {name}={visible(_worded(value))}" for name, value in rest.items())
        line = f"{_time(record.created)} {record.levelname} {record.name}: {visible(record.getMessage()[:LONGEST])}{told}"
        if not record.exc_info:
            return line
        lines = "".join(traceback.format_exception(*record.exc_info))[
            -LONGEST_TRACEBACK:
        ].splitlines()
        return "\n".join([line, *(visible(each) for each in lines)])


FORMS: Final[dict[Form, Callable[[Context], logging.Formatter]]] = {
    "json": JSONLines,
    "text": TextLines,
}


class Whereabouts:
    """What a runner is at, for its log lines."""

    def __init__(self, job: str, attempt: int) -> None:
        self.facts: dict[str, Any] = {"job": job, "attempt": attempt}

    def at(self, phase: str) -> None:
        """From now on, lines belong to this phase."""
        self.facts["phase"] = phase

    def __call__(self) -> dict[str, Any]:
        """The context of a line."""
        return self.facts


def log_runner(path: Path | None, where: Whereabouts, form: str | None = None) -> None:
    """Have a runner log to standard error, and to a file of the owner's when one is named.

    form: json or text; when None, as XCRAY_LOG_FORMAT says, and text without it: people read these logs.
    """
    streams: list[IO[str]] = [sys.stderr]
    if path is not None:
        streams.append(os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a"))
    chosen = form or os.environ.get(FORM_VARIABLE)
    handlers = [logging.StreamHandler(stream) for stream in streams]
    for handler in handlers:
        handler.setFormatter(FORMS["json" if chosen == "json" else "text"](where))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as `extra`, or to `note` of the service."""
    facts: dict[str, Any] | None = vars(record).get("_facts")
    if facts is None:
        facts = {
            name: value
            for name, value in vars(record).items()
            if name not in _STANDARD and name[0] != "_"
        }
    return facts


def visible(text: str) -> str:
    r"""A text in which every character can be seen: "a\nb" has a backslash and an n."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _spelled(each) if unicodedata.category(each) in _HIDDEN else each for each in text
    )


def _spelled(character: str) -> str:
    """A character as an escape."""
    return character.encode("unicode_escape").decode("ascii")


def _worded(value: Any) -> str:
    """A value behind its name: bare when that is one plain word."""
    text = str(_short(value))
    return (
        text
        if text and " " not in text and '"' not in text and "=" not in text
        else json.dumps(text, ensure_ascii=False)
    )


def _time(seconds: float) -> str:
    """Unix seconds as date and time, UTC, with milliseconds."""
    return f"{_second(int(seconds))}.{int(seconds % 1 * 1000):03d}Z"


@lru_cache(2)
def _second(second: int) -> str:
    """A second since 1970 as date and time, UTC; thousands of lines share it."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _short(value: Any) -> Any:
    """Strings cut to a bearable length."""
    return value[:LONGEST] if isinstance(value, str) else value
