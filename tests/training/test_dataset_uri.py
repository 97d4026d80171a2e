"""`xcray train URI`: the data set is copied first, once, and the model is that of the directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.s3 import BUCKET, FaultProxy
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.data.metric_forest.directory import build_forest_directory
from xcray.data.objectstore.remote_dataset import push_dataset
from xcray.storage.objectstore.client import StoragePath
from xcray.system.user_directories import cache_directory

SOLVER = ["--solver", "indexed-bcd", "--pool", "serial", "--memory-limit", "8GiB"]


def test_it_trains_from_a_copy(
    tiny: Dataset, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = shutil.copytree(tiny.path, tmp_path / "local")
    build_forest_directory(Dataset.open(local))
    uri = f"s3://{BUCKET}/trainings/news"
    push_dataset(local, StoragePath.parse(uri))

    def train(place: str, name: str) -> tuple[str, str]:
        """Return the model's sha256, and the notes of the command."""
        assert main(["train", place, "-o", str(tmp_path / name), *SOLVER, "--json"]) == 0
        output = capsys.readouterr()
        return json.loads(output.out)["sha256"], output.err

    sha256, _ = train(str(local), "a")
    assert train(uri, "b")[0] == sha256
    (copy,) = (cache_directory() / "datasets").glob("[!.]*")
    assert Dataset.open(copy, verify=True).content_hash == tiny.content_hash
    proxy.requests.clear()
    assert train(uri, "c")[0] == sha256
    assert not any(path.endswith(".arrow") for _, path in proxy.requests)  # no second copy
    words = ["train", uri, "--estimate", "--pool", "serial"]
    shutil.rmtree(copy)
    assert main(words) == 0
    assert "copying s3://" in capsys.readouterr().err
    assert main(["train", f"{uri}:7", "-o", str(tmp_path / "none")]) == 2
    assert "no complete version 7" in capsys.readouterr().err
