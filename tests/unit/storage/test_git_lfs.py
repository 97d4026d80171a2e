"""Pointers of Git LFS are named wherever a file of a user is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.robustness.badinput.case import LFS
from tests.support.live_service import plain_model
from xcray.data.dataset import Dataset
from xcray.data.weights import read_weights
from xcray.errors import Corrupt, InputError
from xcray.model.exchange.formats import import_model
from xcray.model.model import Model


@pytest.mark.parametrize("name", ["weights.npy", "weights.txt"])
def test_weights_of_rows(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(LFS)
    with pytest.raises(InputError, match="pointer of Git LFS") as caught:
        read_weights(tmp_path / name)
    assert "git lfs pull" in str(caught.value.hint)


@pytest.mark.parametrize("format", ["liblinear", "npz", "dismec"])
def test_models_of_other_programs(tmp_path: Path, format: str) -> None:
    (tmp_path / "source").write_bytes(LFS)
    with pytest.raises(InputError, match="pointer of Git LFS"):
        import_model(format, tmp_path / "source", tmp_path / "model")


@pytest.mark.parametrize("kind", ["data set", "model"])
def test_directories(tmp_path: Path, tiny: Dataset, kind: str) -> None:
    opened: Callable[[Path], Any] = Dataset.open if kind == "data set" else Model.open
    if kind == "model":
        plain_model(tmp_path / "copy")
    else:
        shutil.copytree(tiny.path, tmp_path / "copy")
    (tmp_path / "copy" / ("labels.arrow")).write_bytes(LFS)
    with pytest.raises(Corrupt) as caught:
        opened(tmp_path / "copy")
    assert "git lfs pull" in str(caught.value.hint)
