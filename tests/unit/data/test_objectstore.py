"""Data sets in object storage: push, pull, versions, and copies to train from."""

from __future__ import annotations

import json
import re
import shutil
import threading
from pathlib import Path

import pytest

from tests.support.svm_problems import svm_dataset, svm_problem
from xcray.cli.main import main
from xcray.cli.training import data_storage
from xcray.data.dataset import Dataset
from xcray.data.metric_forest.directory import build_forest_directory
from xcray.data.objectstore.remote_dataset import (
    plan_copy,
    push_dataset,
    read_remote_dataset,
    resolve_dataset,
    seal_directory,
)
from xcray.errors import (
    Conflict,
    Corrupt,
    InputError,
    NotFound,
    ParameterError,
    Stopped,
)
from xcray.storage.atomic import file_digests
from xcray.storage.objectstore import transfer
from xcray.storage.objectstore.client import StoragePath
from xcray.storage.objectstore.versions import Pushed, list_versions


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfer small files in several pieces."""
    monkeypatch.setattr(transfer, "PIECE_BYTES", 10_000)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Write a data set with a metric forest."""
    dataset = svm_dataset(svm_problem(3), tmp_path / "svm")
    build_forest_directory(dataset, 32)
    return dataset


def push(uri: str, path: Path, name: str = "svm") -> Pushed:
    """Push a directory under a name."""
    return push_dataset(path, StoragePath.parse(uri) / name)


def test_a_pushed_and_pulled_data_set_has_the_same_bytes(
    uri: str, dataset: Dataset, tmp_path: Path
) -> None:
    done = push(uri, dataset.path)
    assert done.uri == f"{uri}/svm/1-{seal_directory(dataset.path).seal}"
    assert push(uri, dataset.path).moved.sent == 0
    plan = plan_copy(f"{uri}/svm")
    assert plan.fetch(tmp_path / "copy") is not None
    assert plan.fetch(tmp_path / "copy") is None
    assert file_digests(tmp_path / "copy") == file_digests(dataset.path)
    assert Dataset.open(tmp_path / "copy", verify=True).content_hash == dataset.content_hash


def test_copies_show_their_progress_and_continue_after_a_stop(
    uri: str,
    dataset: Dataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    push(uri, dataset.path)
    plan, stop, seen = plan_copy(f"{uri}/svm"), threading.Event(), list[int]()

    def report(done: int, total: int) -> None:
        assert total == plan.remote.sealed.n_bytes
        seen.append(done)
        if done > total // 2:
            stop.set()

    with pytest.raises(Stopped):
        plan.fetch(tmp_path / "copy", stop, report)
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert not (tmp_path / "copy").exists()
    monkeypatch.setattr(data_storage, "MB", 1000)
    assert main(["data", "pull", f"{uri}/svm", "--into", str(tmp_path / "copy")]) == 0
    (first, *_, last) = capsys.readouterr().err.splitlines()
    counts = [
        re.match(r"MB COPIED ([\d,]+) of ([\d,]+) \((\d+) %\)", line) for line in (first, last)
    ]
    assert counts[0] is not None
    assert counts[1] is not None
    assert 0 < int(counts[0][3]) < int(counts[1][3]) == 100
    assert file_digests(tmp_path / "copy") == file_digests(dataset.path)


def test_another_forest_is_another_version(uri: str, dataset: Dataset, tmp_path: Path) -> None:
    push(uri, dataset.path)
    build_forest_directory(dataset, 64)
    assert push(uri, dataset.path).number == 2
    shutil.rmtree(dataset.path / "metric-forest")
    assert push(uri, dataset.path).number == 3
    versions = list_versions(StoragePath.parse(uri) / "svm")
    manifest = "metric-forest/manifest.json"
    has_forest = [manifest in read_remote_dataset(each).sealed.files for each in versions]
    assert has_forest == [True, True, False]
    assert resolve_dataset(f"{uri}/svm").number == 3
    assert resolve_dataset(f"{uri}/svm:2").number == 2
    assert resolve_dataset(versions[0].path.uri).number == 1
    assert resolve_dataset(uri).number == 3  # the only data set in the folder
    push(uri, dataset.path, "other")
    with pytest.raises(InputError, match="2 data sets"):
        resolve_dataset(uri)
    for name, kind in (("svm:9", NotFound), ("svm:x", ParameterError), ("none", NotFound)):
        with pytest.raises(kind):
            resolve_dataset(f"{uri}/{name}")


def test_an_incomplete_push_is_not_a_data_set_and_is_completed(
    uri: str, dataset: Dataset, tmp_path: Path
) -> None:
    place = StoragePath.parse(push(uri, dataset.path).uri)
    place.filesystem.delete_file((place / "manifest.json").path)
    place.filesystem.delete_file((place / "labels.arrow").path)
    with pytest.raises(NotFound, match="no complete version"):
        resolve_dataset(f"{uri}/svm")
    with pytest.raises(NotFound) as error:
        read_remote_dataset(resolve_dataset(place.uri))
    assert error.value.code == "HALF_PUSHED"
    assert push(uri, dataset.path).moved.sent == (dataset.path / "labels.arrow").stat().st_size
    assert plan_copy(f"{uri}/svm").fetch(tmp_path / "copy")


@pytest.mark.parametrize("name", ["labels.arrow", "metric-forest/forest.arrow"])
def test_a_damaged_object_is_refused_by_name_and_sent_again(
    uri: str, dataset: Dataset, tmp_path: Path, name: str
) -> None:
    file = StoragePath.parse(push(uri, dataset.path).uri) / name
    raw = bytearray(file.read(1 << 20))
    raw[len(raw) // 2] ^= 1
    file.write(bytes(raw))
    with pytest.raises(Corrupt, match=name.rsplit("/", maxsplit=1)[-1]):
        plan_copy(f"{uri}/svm").fetch(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    push_dataset(dataset.path, StoragePath.parse(uri) / "svm", resend_all=True)
    assert plan_copy(f"{uri}/svm").fetch(tmp_path / "copy")


def test_manifests_are_checked(uri: str, dataset: Dataset, tmp_path: Path) -> None:
    place = StoragePath.parse(push(uri, dataset.path).uri)
    forest = json.loads((place / "metric-forest/manifest.json").read(1 << 20))
    (place / "metric-forest/manifest.json").write(json.dumps({**forest, "n_rows": 1}).encode())
    with pytest.raises(Corrupt, match="something else than its name"):
        plan_copy(f"{uri}/svm")
    manifest = json.loads((dataset.path / "manifest.json").read_bytes())
    plain = StoragePath.parse(uri) / "plain" / "copy"
    for change, kind in (
        ({"files": {"../outside": {"bytes": 1, "sha256": "0" * 64}}}, Corrupt),
        ({"files": []}, Corrupt),
        ({"schema_version": 99}, Corrupt),
        ({"solver": "ppdsparse"}, InputError),
    ):
        (plain / "manifest.json").write(json.dumps({**manifest, **change}).encode())
        with pytest.raises(kind):
            plan_copy(plain.uri).fetch(tmp_path / "copy")
    (plain / "manifest.json").write(b"[1]")
    with pytest.raises(Corrupt):
        plan_copy(plain.uri)


def test_a_plain_copy_of_a_directory_can_be_pulled(dataset: Dataset, tmp_path: Path) -> None:
    plan = plan_copy(f"file://{dataset.path}")
    assert plan.fetch(tmp_path / "copy")
    assert file_digests(tmp_path / "copy") == file_digests(dataset.path)
    build_forest_directory(Dataset.open(tmp_path / "copy"), 64)
    with pytest.raises(Conflict, match="exists already"):
        plan.fetch(tmp_path / "copy")


def test_the_commands(
    uri: str, dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> dict[str, object]:
        assert main(["data", *words, "--json"]) == 0
        content: dict[str, object] = json.loads(capsys.readouterr().out)
        return content

    pushed = run("push", str(dataset.path), uri, "--name", "news")
    assert (pushed["dataset"], pushed["version"]) == ("news", 1)
    assert pushed["uri"] == plan_copy(f"{uri}/news").uri.partition("?")[0]
    target = str(tmp_path / "copy")
    pulled = run("pull", f"{uri}/news:1", "--into", target, "--sha256", dataset.content_hash)
    assert pulled["path"] == target
    assert main(["data", "pull", f"{uri}/news", "--sha256", "0" * 64]) == 1
    assert "not the requested version" in capsys.readouterr().err
    assert main(["data", "show", target]) == 0
