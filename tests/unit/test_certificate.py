"""Gaps relative to null objectives, against values computed by hand."""

import numpy as np
import pytest

from xcray.certificate import is_certified, largest_gap, relative_gaps


@pytest.fixture
def records() -> np.ndarray:
    """Return labels with gaps of 0.25 and 0.1 of their null objectives, and one without rows."""
    names = ("rounds", "positives", "gap", "null")
    out = np.zeros(3, [(name, np.float64) for name in names])
    out["positives"], out["gap"], out["null"] = [3, 1, 0], [1.0, 0.5, 0.0], [4.0, 5.0, 0.0]
    return out


def test_gaps_are_shares_of_the_null_objective(records: np.ndarray) -> None:
    assert relative_gaps(records["gap"], records["null"]).tolist() == [0.25, 0.1, 0.0]
    assert relative_gaps(1.0, 4.0) == 0.25


def test_the_largest_gap_is_that_of_labels_with_positives(records: np.ndarray) -> None:
    assert largest_gap(records) == 0.25
    assert largest_gap(records[2:]) == 0.0
    records["null"][2], records["gap"][2] = 1.0, 9.0
    assert largest_gap(records) == 0.25


def test_labels_are_certified_within_eps_of_the_null_objective(records: np.ndarray) -> None:
    assert is_certified(records, 0.1).tolist() == [False, True, True]
    assert is_certified(records, 0.24).tolist() == [False, True, True]
    assert is_certified(records, 0.25).tolist() == [True, True, True]
    records["rounds"] = -1  # not trained
    assert is_certified(records, 0.25).tolist() == [False, False, True]
