"""Logs as JSON lines: one event is one parseable line, whatever a stranger put into a name; each bears its request id."""

from __future__ import annotations

import json
import logging
import random
import sys
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from typing import IO, Any

REQUEST_ID: ContextVar[str] = ContextVar("xcray_request_id", default="-")
LOGGER = logging.getLogger("xcray")
LONGEST = 256  # characters of a logged string; tracebacks may be longer

_RANDOM = random.Random()  # seeded by the system
_ENCODER = json.JSONEncoder(ensure_ascii=True, default=str)
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName", "color_message"}


class JSONLines(logging.Formatter):
    """Time, level, logger, event, request id, and what was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of ASCII JSON; control characters, line separators and colours of terminals arrive escaped."""
        entry: dict[str, Any] = {
            "time": f"{_second(int(record.created))}.{int(record.created % 1 * 1000):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage()[:LONGEST],
            "request_id": REQUEST_ID.get(),
        }
        facts = vars(record).get("_facts")  # what `note` was given; else what stands among the record's own attributes
        if facts is None:
            facts = {name: value for name, value in vars(record).items() if name not in _STANDARD and name[0] != "_"}
        entry |= {name: _short(value) for name, value in facts.items()}
        if record.exc_info:
            entry["traceback"] = "".join(traceback.format_exception(*record.exc_info))[-8192:]
        return _ENCODER.encode(entry)


def new_request_id() -> str:
    """A random id of 80 bits, to find a request by; it opens nothing, so nobody gains by guessing one."""
    return f"req_{_RANDOM.getrandbits(80):020x}"


def note(level: int, event: str, facts: dict[str, Any]) -> None:
    """Log what happens thousands of times a second: as LOGGER.log with `extra`, without looking for the line that calls."""
    record = logging.LogRecord(LOGGER.name, level, "", 0, event, (), None)
    vars(record).update(facts, _facts=facts)
    LOGGER.handle(record)


def log_to(stream: IO[str] | None, level: str) -> None:
    """Send the logs of xcray and uvicorn to a stream (stderr when None) as JSON lines, replacing earlier handlers."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JSONLines())
    for name in ("xcray", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
    logging.getLogger("uvicorn.access").disabled = True  # the guard writes one line a request, with its id


@lru_cache(2)
def _second(second: int) -> str:
    """A second since 1970 as date and time, UTC; thousands of lines share it."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _short(value: Any) -> Any:
    """Strings cut to a bearable length."""
    return value[:LONGEST] if isinstance(value, str) else value
