"""Request context of log lines: request id, caller and trace.

The formats are in `xcray.telemetry.logging`.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from contextvars import ContextVar
from typing import IO, Any, Final

from xcray.telemetry.logging import FORMATTERS, BatchingHandler, LogFormat

NO_REQUEST: Final = "-"
REQUEST_ID: ContextVar[str] = ContextVar("xcray_request_id", default=NO_REQUEST)
LOGGER: Final = logging.getLogger("xcray")

_REQUEST_FIELDS: ContextVar[dict[str, Any] | None] = ContextVar(
    "xcray_request_fields", default=None
)
_UNKNOWN: Final = dict.fromkeys(("thread", "threadName", "process", "processName"))
_EMPTY_RECORD: Final = {
    **vars(logging.LogRecord(LOGGER.name, logging.INFO, "", 0, "", (), None)),
    **_UNKNOWN,
}
_RANDOM: Final = random.Random()  # seeded by the system
os.register_at_fork(after_in_child=_RANDOM.seed)  # or all workers would draw the same ids


def new_request_id() -> str:
    """Return a random id of 80 bits for finding a request. It is not a secret."""
    return f"req_{_RANDOM.getrandbits(80):020x}"


def begin_request(request_id: str) -> dict[str, Any]:
    """Attach further log lines of this context to a request, and return its fields.

    `add_log_context` adds to them, also from threads that serve the request.
    """
    REQUEST_ID.set(request_id)
    fields: dict[str, Any] = {}
    _REQUEST_FIELDS.set(fields)
    return fields


def add_log_context(**fields: Any) -> None:
    """Add fields to further log lines of this request: tenant, key id, job, trace.

    Without a request it has no effect. Secrets must not be passed.
    """
    request_fields = _REQUEST_FIELDS.get()
    if request_fields is not None:
        request_fields.update(fields)


def log_context() -> dict[str, Any]:
    """Return the common fields of each log line."""
    return {"request_id": REQUEST_ID.get(), **(_REQUEST_FIELDS.get() or {})}


def log_quickly(level: int, event: str, fields: dict[str, Any]) -> None:
    """Log a frequent event like LOGGER.log with `extra`, without its line, thread and process."""
    # not of the constructor, which finds out the file, the thread and the process
    record = logging.LogRecord.__new__(logging.LogRecord)
    vars(record).update(
        {
            **_EMPTY_RECORD,
            "levelno": level,
            "levelname": logging.getLevelName(level),
            "msg": event,
            **fields,
            "created": time.time(),
            "_fields": fields,
        }
    )
    LOGGER.callHandlers(record)


def configure_logging(stream: IO[str] | None, level: str, form: LogFormat = "json") -> None:
    """Send the logs of xcray, uvicorn and OpenTelemetry to a stream (default stderr).

    Lines are written in batches, see `BatchingHandler`. Earlier handlers are closed.
    """
    handler = BatchingHandler(stream or sys.stderr)
    handler.setFormatter(FORMATTERS[form](log_context))
    for name in ("xcray", "uvicorn", "opentelemetry"):
        logger = logging.getLogger(name)
        for earlier in logger.handlers:
            earlier.close()
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
    # The edge middleware logs requests, with their ids.
    logging.getLogger("uvicorn.access").disabled = True
