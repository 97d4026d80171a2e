"""`xcray predict` and `explain` refuse a damaged model directory before any kernel reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from xcray.cli.main import main
from xcray.data.build import BuildOptions, build
from xcray.model.manifest import seal_manifest
from xcray.storage.arrow import read_table, write_table
from xcray.storage.atomic import file_digests

FILES = ("weights.arrow", "bias.arrow", "labels.arrow", "features.arrow", "index/lists.arrow")
COMMANDS = ("predict", "explain")


@pytest.fixture(scope="module")
def complete_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small text model."""
    place = tmp_path_factory.mktemp("damaged")
    texts = {"a": "apple pear", "b": "hammer saw", "c": "owl robin", "d": "rain snow"}
    rows = [
        {"text": f"{text} {i}", "labels": [name]} for i in range(6) for name, text in texts.items()
    ]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build("jsonl", {"train": place / "rows.jsonl"}, place / "data", BuildOptions(test_fraction=0.2))
    assert main(["train", str(place / "data"), "--pool", "serial", "--out", str(place / "m")]) == 0
    return place / "m"


@pytest.fixture
def model(complete_model: Path, tmp_path: Path) -> Path:
    """Return a copy of the model that the test can damage."""
    return Path(shutil.copytree(complete_model, tmp_path / "m"))


def refused(model: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that each command fails with the name of the file and prints no prediction."""
    for command in COMMANDS:
        capsys.readouterr()
        assert main([command, str(model), "apple saw"]) == 1
        shown = capsys.readouterr()
        assert shown.out == "", command
        assert "CORRUPT" in shown.err
        assert Path(name).name in shown.err


@pytest.mark.parametrize("name", FILES)
def test_random_bytes_are_refused(
    model: Path, name: str, rng: np.random.Generator, capsys: Any
) -> None:
    assert main(["predict", str(model), "apple saw"]) == 0  # this run caches the checksums
    content = bytearray((model / name).read_bytes())
    middle = len(content) // 2 - 32
    content[middle : middle + 64] = rng.bytes(64)
    (model / name).write_bytes(content)
    refused(model, name, capsys)


@pytest.mark.parametrize("name", ["weights.arrow", "bias.arrow"])
def test_zeroed_numbers_are_refused(model: Path, name: str, capsys: Any) -> None:
    content = bytearray((model / name).read_bytes())
    raw = read_table(model / name).column(-1 if name == "weights.arrow" else 0).chunk(0)
    values = (raw.values if isinstance(raw, pa.LargeListArray) else raw).to_numpy().tobytes()
    start = content.find(values)
    content[start : start + len(values)] = bytes(len(values))
    (model / name).write_bytes(content)
    refused(model, name, capsys)


def changed(table: pa.Table, column: str, change: str) -> pa.Table:
    """Return a table in which one integer list column is valid Arrow, but not a valid index."""
    array = table.column(column).chunk(0)
    values = array.values.to_numpy().copy()
    if change == "large":
        values[len(values) // 2] = np.iinfo(values.dtype).max
    elif change == "equal":
        values[:] = values[len(values) // 2]
    else:
        values = values[::-1].copy()
    forged = pa.LargeListArray.from_arrays(array.offsets, pa.array(values, array.values.type))
    place = table.schema.get_field_index(column)
    return table.set_column(place, table.schema.field(column), forged)


@pytest.mark.parametrize(
    ("name", "column", "change"),
    [
        ("index/lists.arrow", "starts", "large"),
        ("index/lists.arrow", "starts", "equal"),
        ("index/lists.arrow", "starts", "reversed"),
        ("index/lists.arrow", "order", "large"),
        ("index/lists.arrow", "order", "equal"),
        ("weights.arrow", "indices", "large"),
        ("weights.arrow", "indices", "equal"),
        ("weights.arrow", "indices", "reversed"),
    ],
)
def test_forged_arrays_with_valid_checksums_are_refused(
    model: Path, name: str, column: str, change: str, capsys: Any
) -> None:
    table = read_table(model / name)
    forged = changed(table, column, change).replace_schema_metadata(table.schema.metadata)
    (model / name).unlink()
    write_table(model / name, forged)
    manifest = json.loads((model / "manifest.json").read_text())
    del manifest["seal"]
    manifest["files"] = file_digests(model, skip=["manifest.json"])
    (model / "manifest.json").write_text(seal_manifest(manifest))
    refused(model, name, capsys)
