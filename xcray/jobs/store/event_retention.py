"""Retention of job events, so that a job's history stays readable however long it runs.

Series are thinned evenly, other kinds lose their oldest events. All batches of a training are in
timeline.arrow of its model.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.jobs.database.schema import EVENTS

MAX_SERIES_EVENTS: Final = 500  # events per series kind, after thinning
MAX_OTHER_EVENTS: Final = 1000  # events per other kind: status, stop, phase
SERIES_KINDS: Final = ("progress", "epoch")
# events between two checks; a job exceeds the limits by at most this much
CHECK_INTERVAL: Final = 250


def is_check_due(seq: int) -> bool:
    """Return whether to check a job's history after the event of this number."""
    return seq % CHECK_INTERVAL == 0


def trim_events(connection: Connection, job_id: str) -> None:
    """Thin and trim the events of a job. Costs a count over at most a few thousand rows."""
    query = (
        sa.select(EVENTS.c.kind, sa.func.count())
        .where(EVENTS.c.job_id == job_id)
        .group_by(EVENTS.c.kind)
    )
    for kind, count in connection.execute(query).all():
        mine = (EVENTS.c.job_id == job_id, EVENTS.c.kind == kind)
        if kind in SERIES_KINDS and count > MAX_SERIES_EVENTS:
            _thin_series(connection, mine)
        elif kind not in SERIES_KINDS and count > MAX_OTHER_EVENTS:
            oldest = (
                sa.select(EVENTS.c.seq)
                .where(*mine)
                .order_by(EVENTS.c.seq.desc())
                .offset(MAX_OTHER_EVENTS)
                .limit(1)
            )
            connection.execute(
                sa.delete(EVENTS).where(*mine, EVENTS.c.seq <= oldest.scalar_subquery())
            )


def _thin_series(connection: Connection, mine: tuple[sa.ColumnElement[bool], ...]) -> None:
    """Keep the first event, the last, and evenly spaced ones between, MAX_SERIES_EVENTS at most."""
    seqs = (
        connection.execute(sa.select(EVENTS.c.seq).where(*mine).order_by(EVENTS.c.seq))
        .scalars()
        .all()
    )
    span = max(1, seqs[-1] - seqs[0])
    # One per interval of numbers: earlier thinning stays, and new events join evenly.
    selected: dict[int, int] = {}
    for seq in seqs:
        selected.setdefault((seq - seqs[0]) * (MAX_SERIES_EVENTS - 1) // span, seq)
    remaining = {*selected.values(), seqs[-1]}
    connection.execute(
        sa.delete(EVENTS).where(
            *mine, EVENTS.c.seq.in_([seq for seq in seqs if seq not in remaining])
        )
    )
