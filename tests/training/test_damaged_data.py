"""A training refuses a data set in which a bit has changed, also after a training on it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from xcray.cli.main import main
from xcray.data.dataset import Dataset, open_verified
from xcray.errors import Corrupt
from xcray.storage.arrow import read_table
from xcray.storage.atomic import file_digests, write_json
from xcray.training.run import train
from xcray.training.spec import TrainSpec
from xcray.training.tune import TuneSpec, tune


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


def test_searches_and_metric_forests_refuse_one_flipped_bit_too(
    tiny: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(tiny.path, data)
    flip_bit(data / "train" / "x_rows.arrow")
    spec = TuneSpec(TrainSpec(str(data), pool="serial"), {"C": (0.1,)})
    with pytest.raises(Corrupt, match="x_rows"):
        tune(spec, run_dir=tmp_path / "run", out=tmp_path / "tuned")
    assert not list(tmp_path.glob("run/settings/*"))
    assert main(["data", "index", str(data)]) == 1
    assert "x_rows" in capsys.readouterr().err
    assert not (data / "metric-forest").exists()


@pytest.mark.parametrize(
    ("file", "column", "value"),
    [
        ("x_rows", "indices", 10**9),
        ("x_rows", "indices", -1),
        ("x_columns", "indices", 10**9),
        ("x_columns", "values", float("nan")),
        ("y_rows", "indices", 10**9),
        ("y_columns", "indices", -1),
    ],
)
def test_a_forged_matrix_with_new_checksums_is_refused(
    tiny: Dataset, tmp_path: Path, file: str, column: str, value: float
) -> None:
    data = tmp_path / "data"
    shutil.copytree(tiny.path, data)
    path = data / "train" / f"{file}.arrow"
    table = read_table(path)
    content, numbers = bytearray(path.read_bytes()), table.column(column).chunk(0).values.to_numpy()
    position = content.index(numbers.tobytes())
    np.frombuffer(content, numbers.dtype, len(numbers), position)[1] = value
    path.write_bytes(content)
    manifest = json.loads((data / "manifest.json").read_text())
    manifest["files"][f"train/{file}.arrow"] = file_digests(data / "train")[f"{file}.arrow"]
    (data / "manifest.json").unlink()
    write_json(data / "manifest.json", manifest)
    with pytest.raises(Corrupt, match=rf"train/{file}.arrow, row \d+: .*build the data set again"):
        open_verified(data)
