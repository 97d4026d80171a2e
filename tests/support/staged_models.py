"""Model directories that are ready to be published to a registry."""

from __future__ import annotations

from pathlib import Path

from tests.support.flat_models import write_fields
from xcray.arrays import csr
from xcray.model.model import Model
from xcray.model.registry import Registry


def staged(path: Path, bias: float = 0.0) -> Path:
    """Write a small model directory, ready to be published; models differ by their bias."""
    W = csr([0, 1, 2], [0, 1], [1, 2], 2)
    names = {"label_names": ["a", "b"], "feature_names": ["x", "y"]}
    write_fields(
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


def bias(registry: Registry, reference: str) -> float:
    """Return the bias of a model, which identifies it."""
    return float(Model.open(registry.resolve(reference)).b[0])
