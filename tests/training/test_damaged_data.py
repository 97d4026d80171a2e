"""A training refuses a data set in which a bit has changed, also after a training on it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from xcray.data.dataset import Dataset
from xcray.errors import Corrupt
from xcray.training.run import train
from xcray.training.spec import TrainSpec


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_one_flipped_bit_in_any_file_is_refused_with_the_name_of_the_file(
    tiny: Dataset, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    spec = TrainSpec(str(data), pool="serial", params={"C": 0.1})
    shutil.copytree(tiny.path, data)
    train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    for name in tiny.files:
        original = (data / name).read_bytes()
        flip_bit(data / name)
        with pytest.raises(Corrupt) as caught:
            train(spec, run_dir=tmp_path / "damaged", out=tmp_path / "other")
        assert Path(name).name in caught.value.message
        assert not (tmp_path / "other").exists()
        (data / name).write_bytes(original)
    train(spec, run_dir=tmp_path / "again", out=tmp_path / "same")
