"""What users read of a training by rounds: measures, the time left, and what follows a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import Pattern, TopK, frozen
from xcray.kernels.sparse import take_pattern_rows
from xcray.measures import f1, precision_at_k, predicted_sets
from xcray.solvers.declarations import StoppingRule
from xcray.solvers.held_out import HeldOut

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


def held_out_measures(held_out: HeldOut | None, truth: Pattern | None) -> dict[str, float]:
    """Return the measures of the evaluated held-out rows; nothing if there are none.

    "held_out" is their loss, if it is known. "P@1", "P@3" and "P@k" are for the k labels returned
    per row, "micro-F1" and "macro-F1" for the first label.
    """
    if held_out is None or truth is None:
        return {}
    top, Y = (
        TopK(frozen(held_out.labels, np.int32), frozen(held_out.scores, np.float64)),
        take_pattern_rows(truth, frozen(held_out.rows, np.int64)),
    )
    k_max = held_out.labels.shape[1]
    precision = {f"P@{k}": precision_at_k(top, Y, k) for k in sorted({1, min(3, k_max), k_max})}
    loss = {} if held_out.loss is None else {"held_out": held_out.loss}
    return {**loss, **precision, **f1(predicted_sets(top, truth.n_cols, k=1), Y)}


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
