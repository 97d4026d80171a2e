"""Time left of a training by epochs: to its tolerance, not to its limit."""

from __future__ import annotations

import math

import pytest

from xcray.solvers.declarations import StoppingRule
from xcray.training.epoch_progress import CurvePoint, seconds_left
from xcray.training.rotation.trainer import gain_curve

RULE = StoppingRule("tolerance", math.exp(-10.0), 500, "small")
FALLING = [CurvePoint(second, math.exp(-second)) for second in (1.0, 2.0, 3.0, 4.0)]


def test_an_exponential_curve_is_extrapolated_to_the_tolerance() -> None:
    """One epoch per second: the tolerance is met after ten of them, the limit after 500."""
    assert seconds_left(RULE, 4.0, 4.0, FALLING) == pytest.approx(6.0)
    assert seconds_left(RULE, 4.5, 4.5, FALLING) == pytest.approx(5.5)
    assert seconds_left(RULE, 20.0, 20.0, FALLING) == 0.0


def test_the_limit_bounds_it() -> None:
    assert seconds_left(RULE._replace(limit=6), 4.0, 4.0, FALLING) == pytest.approx(2.0)


def test_without_a_tolerance_it_is_the_time_to_the_limit() -> None:
    rule = RULE._replace(threshold=0.0)
    assert seconds_left(rule, 4.0, 8.0, FALLING) == pytest.approx(992.0)
    assert seconds_left(rule, 4.0, 8.0, []) == pytest.approx(992.0)


@pytest.mark.parametrize(
    "curve",
    [
        [],
        FALLING[:2],
        FALLING[::-1],
        [point._replace(value=0.5) for point in FALLING],
        [point._replace(value=math.inf) for point in FALLING],
        [point._replace(seconds=1.0) for point in FALLING],
    ],
    ids=["none", "short", "rising", "constant", "untold", "instant"],
)
def test_it_is_unknown_if_the_curve_tells_nothing(curve: list[CurvePoint]) -> None:
    rising = [CurvePoint(second, point.value) for second, point in enumerate(curve)]
    timed = rising if curve == FALLING[::-1] else curve
    assert seconds_left(RULE, 4.0, 4.0, timed) is None


def test_it_is_unknown_before_the_first_epoch() -> None:
    assert seconds_left(RULE, 0.0, 0.0, FALLING) is None


def test_the_gain_is_per_epoch_over_the_entries_of_the_phase() -> None:
    entries = [
        {"epoch": 1, "seconds": 1.0, "objective": 9.0, "back": False},
        {"epoch": 2, "seconds": 2.0, "objective": 8.0, "back": False, "length": 0.0},
        {"epoch": 3, "seconds": 3.0, "objective": None, "back": True, "length": 1.0},
        {"epoch": 4, "seconds": 5.0, "objective": 4.0, "back": False, "length": 1.0},
    ]
    assert gain_curve(entries) == [CurvePoint(5.0, 0.5)]
    assert gain_curve([]) == []
