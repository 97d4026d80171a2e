"""Damage of every kind to a model directory is detected when it is opened.

`benchmarks.soak.corruption` flips ten thousand bits.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.soak import corruption


def test_no_damage_goes_unseen(tmp_path: Path) -> None:
    found = corruption.run(tmp_path, 300, seed=1)
    assert found["unseen"] == {}
    kinds = {
        "truncated",
        "lengthened",
        "zero page",
        "emptied",
        "removed",
        "exchanged",
        "another model's",
        "NaN",
    }
    assert kinds | {"wrong version", "wrong shape", "flip"} == set(found["damages"])
    assert found["damages"]["flip"] == 300


def test_the_judge_would_see_what_goes_unseen(tmp_path: Path) -> None:
    """A sound model counts as unseen damage: the count above can be other than zero."""
    assert not corruption.seen(corruption.small_model(tmp_path / "model", 1))
