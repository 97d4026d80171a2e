"""Logs of the service: each line bears its request's id, who asked, and the trace it is part of. Its forms: `xcray.telemetry.logging`."""

from __future__ import annotations

import logging
import random
import sys
from contextvars import ContextVar
from typing import IO, Any, Final

from xcray.telemetry.logging import FORMS, Form

NO_REQUEST: Final = "-"
REQUEST_ID: ContextVar[str] = ContextVar("xcray_request_id", default=NO_REQUEST)
LOGGER: Final = logging.getLogger("xcray")

_ABOUT: ContextVar[dict[str, Any] | None] = ContextVar("xcray_about", default=None)
_RANDOM: Final = random.Random()  # seeded by the system


def new_request_id() -> str:
    """A random id of 80 bits, to find a request by; it opens nothing, so nobody gains by guessing one."""
    return f"req_{_RANDOM.getrandbits(80):020x}"


def begin_request(request_id: str) -> dict[str, Any]:
    """From now on, lines of this context belong to a request; the facts that `tell` adds to, also from threads that serve it."""
    REQUEST_ID.set(request_id)
    facts: dict[str, Any] = {}
    _ABOUT.set(facts)
    return facts


def tell(**facts: Any) -> None:
    """Let further lines of this request say more: tenant, key (its id, never the secret), job, trace. Outside of one: nothing."""
    about = _ABOUT.get()
    if about is not None:
        about.update(facts)


def context() -> dict[str, Any]:
    """What each line says beside its event."""
    return {"request_id": REQUEST_ID.get(), **(_ABOUT.get() or {})}


def note(level: int, event: str, facts: dict[str, Any]) -> None:
    """Log what happens thousands of times a second: as LOGGER.log with `extra`, without looking for the line that calls."""
    record = logging.LogRecord(LOGGER.name, level, "", 0, event, (), None)
    vars(record).update(facts, _facts=facts)
    LOGGER.handle(record)


def log_to(stream: IO[str] | None, level: str, form: Form = "json") -> None:
    """Send the logs of xcray, uvicorn and OpenTelemetry to a stream (stderr when None), replacing earlier handlers."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(FORMS[form](context))
    for name in ("xcray", "uvicorn", "opentelemetry"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
    logging.getLogger(
        "uvicorn.access"
    ).disabled = True  # the guard writes one line a request, with its id
