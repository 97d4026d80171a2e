"""How a training tells how far it is."""

from __future__ import annotations

from typing import NamedTuple


class Progress(NamedTuple):
    """How far a training is: phase LOADING, TRAINING, MERGING, EVALUATING or PUBLISHING; done and total in classes;
    seconds since the start; rate in classes a second; eta in seconds, None when not known; note: a line for people."""

    phase: str
    done: int
    total: int
    seconds: float
    rate: float
    eta: float | None
    note: str
