"""Model directories that are ready to be published to a registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from xcray.arrays import csr
from xcray.model.model import Model, write_model
from xcray.model.registry import Registry


def staged(path: Path, bias: float = 0.0) -> Path:
    """A small model directory, ready to be published; the bias tells models apart."""
    W = csr([0, 1, 2], [0, 1], [1, 2], 2)
    names = {"label_names": ["a", "b"], "feature_names": ["x", "y"]}
    write_model(
        path,
        W=W,
        b=[bias, 0],
        solver="ppdsparse",
        params={},
        dataset_hash="d",
        measures={"P@1": 0.5},
        **names,
    )
    return path


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Three versions of `news`, whose first bias is their number."""
    out = Registry(tmp_path / "registry")
    for number in (1, 2, 3):
        assert out.publish("news", staged(tmp_path / f"staged-{number}", number)) == number
    return out


def bias(registry: Registry, reference: str) -> float:
    """Which model a reference stands for."""
    return float(Model.open(registry.resolve(reference)).b[0])
