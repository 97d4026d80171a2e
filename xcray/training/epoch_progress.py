"""What users read of a training by epochs or rounds: the time left, and what follows a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from xcray.solvers.declarations import StoppingRule

N_FITTED: Final = 10  # newest points of the curve that are extrapolated
MIN_FITTED: Final = 3  # with fewer the time left is unknown


class CurvePoint(NamedTuple):
    """The quantity that a tolerance bounds, after `seconds` of training."""

    seconds: float
    value: float


def seconds_left(
    rule: StoppingRule, done: float, seconds: float, curve: Sequence[CurvePoint]
) -> float | None:
    """Return the expected seconds to the end of a training; None if they are unknown.

    done: epochs or rounds after `seconds` of training. curve: of the quantity that the rule's
    threshold bounds, in ascending order of time; after an infinite value it starts again. Its
    logarithm is extrapolated linearly to the threshold; the limit of the rule only bounds the
    result, unless the rule has no threshold.
    """
    if done <= 0.0:
        return None
    at_most = max(0.0, rule.limit - done) * seconds / done
    if rule.threshold <= 0.0:
        return at_most
    end = _crossing(curve, rule.threshold)
    return None if end is None else min(at_most, max(0.0, end - seconds))


def resume_note(epoch: int) -> str:
    """Return how a training goes on after a loss; epoch: of its checkpoint, 0 without one."""
    if epoch == 0:
        return ": starting again, there was no checkpoint yet"
    return f": going on from the last checkpoint (epoch {epoch})"


def _crossing(curve: Sequence[CurvePoint], threshold: float) -> float | None:
    """Return the seconds of training at which the curve meets the threshold; None if unknown."""
    start = max((n for n, point in enumerate(curve) if point.value == np.inf), default=-1)
    points = [point for point in curve[start + 1 :] if point.value > 0.0][-N_FITTED:]
    if len(points) < MIN_FITTED or points[0].seconds == points[-1].seconds:
        return None
    seconds, logs = np.array([(point.seconds, np.log(point.value)) for point in points]).T
    centred = seconds - seconds.mean()
    slope = float(centred @ logs / (centred @ centred))
    if slope >= 0.0:
        return None
    return float(seconds.mean() + (np.log(threshold) - logs.mean()) / slope)
