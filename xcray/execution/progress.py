"""How long work tells how far it is."""

from __future__ import annotations

from typing import NamedTuple


class Progress(NamedTuple):
    """How far work is. phase: of a training LOADING, TRAINING, MERGING, EVALUATING or PUBLISHING, with done and total in classes;
    of a batch prediction LOADING, PREDICTING or PUBLISHING, with done and total in rows. seconds since the start; rate a second;
    eta in seconds, None when not known; note: a line for people."""

    phase: str
    done: int
    total: int
    seconds: float
    rate: float
    eta: float | None
    note: str
