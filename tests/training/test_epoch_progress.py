"""Time left of a training by epochs: to its tolerance, not to its limit."""

from __future__ import annotations

import math

import pytest

from xcray.solvers.declarations import StoppingRule
from xcray.training.epoch_progress import CurvePoint, seconds_left

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


def test_an_unknown_value_starts_the_curve_again() -> None:
    """A new phase of a training falls at another speed."""
    fast = [CurvePoint(second, math.exp(-5.0 * second)) for second in (0.1, 0.2, 0.3)]
    curve = [*fast, CurvePoint(0.5, math.inf), *FALLING]
    assert seconds_left(RULE, 4.0, 4.0, curve) == pytest.approx(6.0)
    assert seconds_left(RULE, 2.0, 2.0, curve[:-2]) is None
