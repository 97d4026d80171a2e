"""A job's events as server-sent events: each once, in order; a stream that broke is taken up after the last id.

id: 17
event: progress
data: {"time": "...", "phase": "TRAINING", "done": 120, "total": 400, ...}
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import AsyncIterator
from typing import Any

from xcray.errors import InputError, NotFound, Unavailable
from xcray.jobs.job import Event
from xcray.jobs.states import TERMINAL
from xcray.service.app_state import Rooms

PAGE = 500
HEADERS = {
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
}  # proxies must pass each event on at once
AGAIN_MS = (
    1000,
    4000,
)  # when clients of a service that drains shall come back: not all at the same moment
SLOWEST = 1.0  # seconds between looks at a job where nothing happens


def start_after(after: int | None, last_event_id: str | None) -> int:
    """Where to begin: Last-Event-ID when a client comes back, else `after`, else at the first event. Raises InputError."""
    if last_event_id is None:
        return after or 0
    if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 19):
        raise InputError("Last-Event-ID is not an id that this stream gave", code="LAST_EVENT_ID")
    return int(last_event_id)


async def stream(rooms: Rooms, job_id: str, tenant: str, after: int) -> AsyncIterator[bytes]:
    """Lines of the stream until the job has ended and all is told, the job is deleted, or the service drains."""
    pause, spoken = rooms.settings.poll_seconds, time.monotonic()
    rooms.gauges.streams.inc()
    try:
        yield b"retry: 1000\n\n"
        while not rooms.draining:
            try:
                ended, events = await asyncio.to_thread(_look, rooms, job_id, tenant, after)
            except Unavailable:
                ended, events = False, []  # the store will be back; the stream stays
            except NotFound:
                return
            if events:
                yield b"".join(_spelled(event) for event in events)
                after, pause, spoken = events[-1].seq, rooms.settings.poll_seconds, time.monotonic()
            elif ended:
                return
            elif time.monotonic() - spoken >= rooms.settings.heartbeat_seconds:
                yield b": alive\n\n"
                spoken = time.monotonic()
            if len(events) < PAGE and not (ended and events):
                await asyncio.sleep(pause)
                pause = min(pause * 1.2, max(SLOWEST, rooms.settings.poll_seconds))
        yield (
            b": the service drains; another one takes the stream up after the last id\nretry: %d\n\n"
            % random.randint(*AGAIN_MS)
        )
    finally:
        rooms.gauges.streams.dec()


def _look(rooms: Rooms, job_id: str, tenant: str, after: int) -> tuple[bool, list[Event]]:
    """Whether the job had ended, and then its new events: in this order, so that the last event is never missed."""
    ended = rooms.store.get(job_id, tenant).status in TERMINAL
    return ended, rooms.store.events(job_id, tenant, after=after, limit=PAGE)


def _spelled(event: Event) -> bytes:
    """An event on the wire. JSON has no raw line ends, so one data line holds it."""
    data = json.dumps(finite({**event.data, "time": event.time}), allow_nan=False)
    return f"id: {event.seq}\nevent: {event.kind}\ndata: {data}\n\n".encode()


def finite(value: Any) -> Any:
    """JSON-ready: numbers that are not finite become null, as in every other reply."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: finite(entry) for name, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, list | tuple) else value
