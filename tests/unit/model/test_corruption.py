"""Damage of every kind to a model directory is detected when it is opened.

`benchmarks.soak.corruption` flips ten thousand bits.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.soak import corruption


def test_no_damage_is_undetected(tmp_path: Path) -> None:
    result = corruption.damage(tmp_path, 300, seed=1)
    assert result["unseen"] == {}
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
    assert kinds | {"wrong version", "wrong shape", "flip"} == set(result["damages"])
    assert result["damages"]["flip"] == 300


def test_an_undamaged_model_counts_as_undetected(tmp_path: Path) -> None:
    """An undamaged model counts as undetected damage, so the count above can be nonzero."""
    assert not corruption.detects_damage(corruption.small_model(tmp_path / "model", 1))
