"""Held-out rows of several workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xcray.solvers.held_out import HeldOut, merge_held_out


def part(loss: float | None, row: int) -> HeldOut:
    """Return one held-out row with one label."""
    one: Any = np.array([[row]])
    return HeldOut(loss, one.astype(np.int32), one.astype(np.float64), np.array([row], np.int64))


@pytest.mark.parametrize(
    ("losses", "merged"), [((0.5, 0.25), 0.75), ((None, None), None), ((0.5, None), None)]
)
def test_a_loss_is_known_if_all_workers_know_it(losses: Any, merged: float | None) -> None:
    held_out = merge_held_out([part(loss, row) for row, loss in enumerate(losses)])
    assert held_out is not None
    assert held_out.loss == merged
    assert held_out.rows.tolist() == [0, 1]
