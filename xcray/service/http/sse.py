"""Server-sent events of a job: each event once, in order. A client resumes after the last event id.

id: 17
event: progress
data: {"time": "...", "phase": "TRAINING", "done": 120, "total": 400, ...}
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from typing import Protocol

from xcray.errors import InputError, NotFound, Unavailable
from xcray.jobs.job import Event
from xcray.jobs.states import TERMINAL
from xcray.jobs.store.job_store import JobStore
from xcray.service import constants
from xcray.service.observability.metrics import Metrics

EVENTS_PER_PAGE = 500
STREAM_HEADERS = {
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",  # proxies must not buffer events
}
# Range of the reconnect delay while the service drains: clients must not reconnect all at once.
RECONNECT_MS = (1000, 4000)
MAX_POLL_SECONDS = 1.0  # between two polls of a job without new events


class StreamingService(Protocol):
    """What a stream of events reads of the service."""

    metrics: Metrics
    store: JobStore
    draining: bool


def start_after(after: int | None, last_event_id: str | None) -> int:
    """Return the event id after which the stream starts.

    This is Last-Event-ID if a client reconnects, else `after`, else 0. Raises InputError.
    """
    if last_event_id is None:
        return after or 0
    if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 19):
        raise InputError("Last-Event-ID is not an event id of this stream", code="LAST_EVENT_ID")
    return int(last_event_id)


async def stream_events(
    service: StreamingService, job_id: str, tenant: str, after: int
) -> AsyncIterator[bytes]:
    """Yield the lines of the stream.

    It ends when the job has ended and all events were sent, the job is deleted, or the service
    drains.
    """
    poll_interval, last_sent_at = constants.EVENT_POLL_SECONDS, time.monotonic()
    service.metrics.streams.inc()
    try:
        yield b"retry: 1000\n\n"
        while not service.draining:
            try:
                ended, events = await asyncio.to_thread(
                    _poll_events, service, job_id, tenant, after
                )
            except Unavailable:
                ended, events = False, []  # keep the stream open until the store is back
            except NotFound:
                return
            if events:
                yield b"".join(_encode_event(event) for event in events)
                after, poll_interval, last_sent_at = (
                    events[-1].seq,
                    constants.EVENT_POLL_SECONDS,
                    time.monotonic(),
                )
            elif ended:
                return
            elif time.monotonic() - last_sent_at >= constants.EVENT_HEARTBEAT_SECONDS:
                yield b": alive\n\n"
                last_sent_at = time.monotonic()
            if len(events) < EVENTS_PER_PAGE and not (ended and events):
                await asyncio.sleep(poll_interval)
                poll_interval = min(
                    poll_interval * 1.2, max(MAX_POLL_SECONDS, constants.EVENT_POLL_SECONDS)
                )
        yield (
            b": the service drains; reconnect to resume after the last id\nretry: %d\n\n"
            % random.randint(*RECONNECT_MS)
        )
    finally:
        service.metrics.streams.dec()


def _poll_events(
    service: StreamingService, job_id: str, tenant: str, after: int
) -> tuple[bool, list[Event]]:
    """Return whether the job had ended, and its new events.

    The status is read first, so the last event is never missed.
    """
    ended = service.store.jobs.get(job_id, tenant).status in TERMINAL
    return ended, service.store.jobs.list_events(job_id, tenant, after=after, limit=EVENTS_PER_PAGE)


def _encode_event(event: Event) -> bytes:
    """Return an event as bytes. JSON contains no raw line ends, so one data line holds it."""
    data = json.dumps({**event.data, "time": event.time}, allow_nan=False)
    return f"id: {event.seq}\nevent: {event.kind}\ndata: {data}\n\n".encode()
