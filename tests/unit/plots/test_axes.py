"""Axes: positions and marked values by hand."""

from __future__ import annotations

import math

import pytest

from xcray.plots.axes import Axis, axis_around, exact_number, named_axis, short_number


def test_positions_are_shares_of_the_axis():
    linear, log = Axis("x", 2.0, 6.0), Axis("x", 1.0, 100.0, is_log=True)
    assert [linear.share(each) for each in (2.0, 3.0, 6.0, 0.0, 9.0)] == [0.0, 0.25, 1.0, 0.0, 1.0]
    assert [log.share(each) for each in (1.0, 10.0, 100.0, 0.0)] == pytest.approx([0, 0.5, 1, 0])


def test_round_values_are_marked():
    assert [value for value, _ in Axis("x", 0.0, 10.0).ticks(4)] == [0.0, 5.0, 10.0]
    assert [value for value, _ in Axis("x", -0.3, 0.9).ticks(6)] == pytest.approx(
        [-0.2, 0.0, 0.2, 0.4, 0.6, 0.8]
    )
    assert [text for _, text in Axis("x", 0.9, 2e6, is_log=True).ticks(8)] == [
        *("1", "100", "10k", "1M")
    ]
    assert [text for _, text in Axis("x", 1.5, 60.0, is_log=True).ticks(8)] == [
        *("2", "5", "10", "20", "50")
    ]
    assert named_axis("x", ["a", "b"]).ticks(9) == [(0.0, "a"), (1.0, "b")]


def test_axes_reach_around_the_finite_values():
    axis = axis_around("x", [1.0, math.nan, 3.0, math.inf], pad=0.1)
    assert (axis.low, axis.high) == pytest.approx((0.8, 3.2))
    axis = axis_around("x", [5.0, 5.0], low=0.0)
    assert axis.low == 0.0
    assert axis.high > 5.0
    for is_log in (False, True):
        empty = axis_around("x", [], is_log=is_log)
        assert empty.low < empty.high
    log = axis_around("x", [0.0, -1.0, 1e-3, 1.0], is_log=True)
    assert 1e-4 < log.low <= 1e-3
    assert log.high >= 1.0
    one = axis_around("x", [0.5], is_log=True)
    assert one.low < 0.5 < one.high


def test_numbers_as_text():
    assert [short_number(each) for each in (0.25, 950, 1200, 12_000, 3e6, 2e9)] == [
        *("0.25", "950", "1.2k", "12k", "3M", "2G")
    ]
    assert [exact_number(each) for each in (1234567, 0.123456, 2.0)] == ["1,234,567", "0.1235", "2"]
