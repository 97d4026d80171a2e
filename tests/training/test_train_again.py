"""`xcray train --run-dir`, `xcray models push`: repeated commands do their work once."""

from __future__ import annotations

from pathlib import Path

import pytest

from xcray.cli import main as cli
from xcray.data.dataset import Dataset
from xcray.errors import Conflict, Corrupt
from xcray.storage.objectstore.client import StoragePath
from xcray.storage.objectstore.versions import list_versions
from xcray.training import TrainSpec
from xcray.training.finished import find_finished


def test_the_same_command_again_finds_the_model_and_pushes_it_once(
    tiny: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, store = tmp_path / "news", f"file://{tmp_path / 'store'}"
    alone = ["train", str(tiny.path), "--pool", "serial", "--out", str(out)]
    words = [*alone, "--run-dir", str(tmp_path / "run")]
    assert cli.main(words) == 0
    assert "nothing to train" not in capsys.readouterr().err
    for _ in range(2):
        assert cli.main(words) == 0
        output = capsys.readouterr()
        assert "nothing to train" in output.err
        assert "sha256" in output.out
        assert cli.main(["models", "push", str(out), store]) == 0
    (remote,) = list_versions(StoragePath.parse(store) / "news")
    assert remote.path.uri in capsys.readouterr().out
    assert cli.main([*words, "-p", "lam=0.5"]) == 1
    assert "another training" in capsys.readouterr().err
    assert cli.main(alone) == 1  # without --run-dir, an existing model is an error

    spec = TrainSpec(str(tiny.path))
    assert find_finished(spec, tmp_path / "nothing") is None
    result = find_finished(spec, out)
    assert result is not None
    assert result.measures
    with pytest.raises(Conflict):
        find_finished(TrainSpec(str(tiny.path), calibrate=True), out)
    with pytest.raises(Conflict, match="not a model"):
        find_finished(spec, tmp_path)
    bias = out / "bias.arrow"
    bias.write_bytes(bias.read_bytes()[:-1] + b"\1")
    with pytest.raises(Corrupt):
        find_finished(spec, out)


def test_a_cluster_that_is_not_there_is_refused_before_training(
    tiny: Dataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["train", str(tiny.path), "--out", str(tmp_path / "news")]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert cli.main([*words, "--pool", "ray", "--ray-address", "auto"]) == 2
    assert "RAY_ADDRESS" in capsys.readouterr().err
    assert not (tmp_path / "news").exists()
