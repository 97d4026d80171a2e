"""How much of a job's history the store keeps: what a person can read, however long the job runs.

Series are thinned evenly, everything else is cut at its old end. The whole series of a training lies in Arrow files: batches in
timeline.arrow of its model, epochs in epochs.arrow where they are more than a report holds.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.jobs.database.schema import EVENTS

KEPT_PROGRESS: Final = 500  # events of a kind that is a series, once it was thinned
KEPT_OTHERS: Final = 1000  # events of any other kind: moves, stops, phases
SERIES: Final = ("progress", "epoch")
EVERY: Final = 250  # events between two looks; what a job has is bounded by this much more


def is_due(seq: int) -> bool:
    """Whether to look at a job's history after the event of this number."""
    return seq % EVERY == 0


def bound_events(connection: Connection, job_id: str) -> None:
    """Thin and cut the events of a job. One look costs a count over at most a few thousand rows."""
    counted = (
        sa.select(EVENTS.c.kind, sa.func.count())
        .where(EVENTS.c.job_id == job_id)
        .group_by(EVENTS.c.kind)
    )
    for kind, count in connection.execute(counted).all():
        mine = (EVENTS.c.job_id == job_id, EVENTS.c.kind == kind)
        if kind in SERIES and count > KEPT_PROGRESS:
            _thin(connection, mine)
        elif kind not in SERIES and count > KEPT_OTHERS:
            oldest = (
                sa.select(EVENTS.c.seq)
                .where(*mine)
                .order_by(EVENTS.c.seq.desc())
                .offset(KEPT_OTHERS)
                .limit(1)
            )
            connection.execute(
                sa.delete(EVENTS).where(*mine, EVENTS.c.seq <= oldest.scalar_subquery())
            )


def _thin(connection: Connection, mine: tuple[sa.ColumnElement[bool], ...]) -> None:
    """Keep the first, the last, and evenly of those between, at most KEPT_PROGRESS in all."""
    seqs = (
        connection.execute(sa.select(EVENTS.c.seq).where(*mine).order_by(EVENTS.c.seq))
        .scalars()
        .all()
    )
    span = max(1, seqs[-1] - seqs[0])
    kept: dict[
        int, int
    ] = {}  # one a stretch of numbers: what was thinned before stays, and what is new joins evenly
    for seq in seqs:
        kept.setdefault((seq - seqs[0]) * (KEPT_PROGRESS - 1) // span, seq)
    wanted = {*kept.values(), seqs[-1]}
    connection.execute(
        sa.delete(EVENTS).where(*mine, EVENTS.c.seq.in_([seq for seq in seqs if seq not in wanted]))
    )
