"""Models in object storage: atomic pushes and verified pulls under faults, on S3 and on files."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_service import text_model
from tests.support.s3 import BUCKET, FaultProxy, cut_once
from xcray.cli import main as cli
from xcray.errors import (
    Conflict,
    Corrupt,
    NotFound,
    ParameterError,
    Refused,
    Unavailable,
    XcrayError,
)
from xcray.model.manifest import read_manifest, seal_manifest
from xcray.model.model import Model
from xcray.model.objectstore.remote_registry import pull_to_directory, pull_to_registry, push
from xcray.model.registry import Registry
from xcray.storage.atomic import file_digests
from xcray.storage.objectstore import transfer
from xcray.storage.objectstore.client import StoragePath
from xcray.storage.objectstore.transfer import check_files
from xcray.storage.objectstore.versions import list_versions, resolve_versions

# the others are run on files, too, whose errors and atomic steps differ
on_s3 = pytest.mark.parametrize("uri", ["s3"], indirect=True)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfer small files in several pieces."""
    monkeypatch.setattr(transfer, "PIECE_BYTES", 300)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Write a model directory."""
    return text_model(tmp_path / "news")


def code_of(error: pytest.ExceptionInfo[XcrayError]) -> str:
    """Return the code of the raised error."""
    return error.value.code


def pushed(uri: str, model: Model, number: int | None = None) -> StoragePath:
    """Push a model as `news`, and return its folder."""
    return (
        StoragePath.parse(uri)
        / "news"
        / push(model.path, StoragePath.parse(uri) / "news", number).uri.rsplit("/", 1)[1]
    )


def test_a_pushed_and_pulled_model_has_the_same_bytes(
    uri: str, model: Model, tmp_path: Path
) -> None:
    result = push(model.path, StoragePath.parse(uri) / "news")
    assert (result.number, result.moved.kept) == (1, 0)
    assert result.uri == f"{uri}/news/1-{read_manifest(model.path)['seal']}"
    registry = Registry(tmp_path / "models")
    (pulled,) = pull_to_registry(registry, f"{uri}/news", alias=["prod"])
    assert (pulled.name, pulled.number, pulled.sha256) == ("news", 1, model.sha256)
    assert file_digests(pulled.path) == file_digests(model.path)
    assert Model.open(registry.resolve("news@prod")).sha256 == model.sha256
    assert registry.history("news")[0]["source"] == result.uri
    assert [
        path.name for path in (registry.root / "news").iterdir() if path.name.endswith(".part")
    ] == []


@on_s3
def test_a_repeated_sync_transfers_nothing(uri: str, model: Model, tmp_path: Path) -> None:
    pushed(uri, model)
    assert push(model.path, StoragePath.parse(uri) / "news").moved.sent == 0
    registry = Registry(tmp_path / "models")
    (first,) = pull_to_registry(registry, uri)
    (second,) = pull_to_registry(registry, uri)
    assert first.moved is not None
    assert (second.moved, second.path) == (None, first.path)
    assert registry.versions("news") == [1]
    assert pull_to_directory(tmp_path / "m", f"{uri}/news").moved is not None
    assert pull_to_directory(tmp_path / "m", f"{uri}/news").moved is None


@on_s3
def test_numbers_aliases_and_what_a_uri_may_name(uri: str, model: Model, tmp_path: Path) -> None:
    other = text_model(tmp_path / "other", seed=1)
    pushed(uri, model)
    pushed(uri, other)
    assert [
        (each.number, each.seal) for each in list_versions(StoragePath.parse(uri) / "news")
    ] == [
        (1, read_manifest(model.path)["seal"]),
        (2, read_manifest(other.path)["seal"]),
    ]
    push(model.path, StoragePath.parse(uri) / "sport")
    names = [each.name for each in resolve_versions(uri, "model")]
    assert names == ["news", "sport"]
    registry = Registry(tmp_path / "models")
    assert [(each.name, each.number) for each in pull_to_registry(registry, uri)] == [
        ("news", 2),
        ("sport", 1),
    ]
    assert [each.number for each in pull_to_registry(registry, f"{uri}/news:1")] == [1]
    assert [
        each.sha256
        for each in pull_to_registry(registry, resolve_versions(f"{uri}/news", "model")[0].path.uri)
    ] == [other.sha256]
    for wrong, kind in (
        ("news:3", NotFound),
        ("news@prod", NotFound),
        ("nothing", NotFound),
        ("news:x", ParameterError),
    ):
        with pytest.raises(kind):
            pull_to_registry(registry, f"{uri}/{wrong}")
    empty = Registry(tmp_path / "empty")
    with pytest.raises(ParameterError, match="always means the highest version"):
        pull_to_registry(empty, f"{uri}/news", alias=["latest"])
    assert empty.names() == []


@on_s3
def test_a_version_number_belongs_to_one_model(uri: str, model: Model, tmp_path: Path) -> None:
    other = text_model(tmp_path / "other", seed=1)
    pushed(uri, model, 3)
    with pytest.raises(Conflict) as error:
        pushed(uri, other, 3)
    assert code_of(error) == "VERSION_TAKEN"
    registry = Registry(tmp_path / "models")
    registry.publish("news", text_model(tmp_path / "own", seed=2).path, number=3)
    with pytest.raises(Conflict, match="--name"):
        pull_to_registry(registry, f"{uri}/news:3")
    assert [each.number for each in pull_to_registry(registry, f"{uri}/news:3", name="theirs")] == [
        3
    ]


def test_a_truncated_object_and_a_missing_one_are_distinguished(
    uri: str, model: Model, tmp_path: Path
) -> None:
    place = pushed(uri, model)
    bias = place / "bias.arrow"
    bias.write(bias.read(1 << 20)[:-1])
    with pytest.raises(Corrupt, match="bytes"):
        pull_to_directory(tmp_path / "m", uri)
    place.filesystem.delete_file(bias.path)
    with pytest.raises(Corrupt, match="missing"):
        pull_to_directory(tmp_path / "m", uri)
    assert not (tmp_path / "m").exists()


@on_s3
def test_a_damaged_model_is_not_pushed(uri: str, model: Model) -> None:
    path = model.path / "weights.arrow"
    raw = bytearray(path.read_bytes())
    raw[-100] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(Corrupt, match=r"weights\.arrow"):
        push(model.path, StoragePath.parse(uri) / "news")
    assert list_versions(StoragePath.parse(uri) / "news") == []


@pytest.mark.parametrize("selection", [0, 700])
def test_an_interrupted_transfer_is_resumed(
    uri: str, model: Model, tmp_path: Path, selection: int
) -> None:
    place = pushed(uri, model)
    manifest = read_manifest(model.path)
    staged = tmp_path / "models" / "news" / f".pull-{manifest['seal'][:32]}.part"
    staged.mkdir(parents=True)
    (staged / "weights.arrow").write_bytes((model.path / "weights.arrow").read_bytes()[:selection])
    (pulled,) = pull_to_registry(Registry(tmp_path / "models"), place.uri)
    assert pulled.moved is not None
    assert pulled.moved.kept == selection
    assert file_digests(pulled.path) == file_digests(model.path)


@on_s3
def test_a_damaged_partial_transfer_is_fetched_again(
    uri: str, model: Model, tmp_path: Path
) -> None:
    pushed(uri, model)
    staged = tmp_path / "models" / "news" / f".pull-{read_manifest(model.path)['seal'][:32]}.part"
    staged.mkdir(parents=True)
    (staged / "weights.arrow").write_bytes(b"\1" * 500)
    (staged / "bias.arrow").write_bytes(b"\1" * 100_000)
    (pulled,) = pull_to_registry(Registry(tmp_path / "models"), uri)
    assert file_digests(pulled.path) == file_digests(model.path)


@on_s3
def test_several_pull_at_once_into_one_registry(uri: str, model: Model, tmp_path: Path) -> None:
    pushed(uri, model)

    def pull(_: int) -> bool:
        return pull_to_registry(Registry(tmp_path / "models"), uri)[0].moved is not None

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(pull, range(6))) == 1
    assert Registry(tmp_path / "models").versions("news") == [1]


@on_s3
def test_a_pin_accepts_only_the_requested_model(uri: str, model: Model, tmp_path: Path) -> None:
    pushed(uri, model)
    for pin in (model.sha256, read_manifest(model.path)["seal"].upper()):
        shutil.rmtree(tmp_path / "models", ignore_errors=True)
        assert (
            pull_to_registry(Registry(tmp_path / "models"), uri, pinned=pin)[0].sha256
            == model.sha256
        )
    shutil.rmtree(tmp_path / "models")
    with pytest.raises(Corrupt, match="not the requested version"):
        pull_to_registry(Registry(tmp_path / "models"), uri, pinned="0" * 64)
    with pytest.raises(ParameterError):
        pull_to_registry(Registry(tmp_path / "models"), uri, pinned="abc")


def test_a_foreign_manifest_is_not_trusted(uri: str, model: Model, tmp_path: Path) -> None:
    place = StoragePath.parse(uri) / "evil"
    manifest = read_manifest(model.path)
    del manifest["seal"]
    entry = {"bytes": 3, "sha256": "0" * 64}
    for name in (
        "../outside",
        "/etc/outside",
        "a/../../outside",
        "manifest.json",
        "a\\b",
        "./a",
        "a//b",
        "",
    ):
        (place / "manifest.json").write(
            seal_manifest({**manifest, "files": {**manifest["files"], name: entry}}).encode()
        )
        with pytest.raises(Corrupt):
            pull_to_directory(tmp_path / "m", place.uri)
    (place / "manifest.json").write(seal_manifest({**manifest, "schema_version": 99}).encode())
    with pytest.raises(Corrupt, match="use the xcray that wrote it"):
        pull_to_directory(tmp_path / "m", place.uri)
    assert not list(tmp_path.glob("**/outside"))


@pytest.mark.parametrize(
    "files",
    [
        {"a": {"bytes": -1, "sha256": ""}},
        {"a": {"bytes": 1}},
        {"a": 1},
        {},
        {"a": {"bytes": 1, "sha256": ""}, "a/b": {"bytes": 1, "sha256": ""}},
    ],
)
def test_claims_of_files_are_checked(files: Any) -> None:
    with pytest.raises(Corrupt):
        check_files(files, "m")


@on_s3
def test_a_disk_that_is_too_small_is_reported_before_the_transfer(
    uri: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(uri, model)
    monkeypatch.setattr(transfer, "SPARE_DISK_BYTES", 1 << 60)
    with pytest.raises(Refused, match="are free"):
        pull_to_directory(tmp_path / "m", uri)


def test_a_broken_connection_is_resumed(proxy: FaultProxy, model: Model, tmp_path: Path) -> None:
    pushed(uri := f"s3://{BUCKET}/cut", model)
    proxy.fault = cut_once("weights.arrow", 100)
    (pulled,) = pull_to_registry(Registry(tmp_path / "models"), uri)
    assert file_digests(pulled.path) == file_digests(model.path)


def test_a_storage_outage_is_reported_and_transferred_data_are_kept(
    proxy: FaultProxy, model: Model, tmp_path: Path
) -> None:
    pushed(uri := f"s3://{BUCKET}/gone", model)

    def broken(environ: dict[str, Any], answer: Any) -> Any:
        if environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"].endswith("weights.arrow"):
            raise ConnectionResetError("no answer")
        return answer

    proxy.fault = broken
    with pytest.raises(Unavailable) as error:
        pull_to_registry(Registry(tmp_path / "models"), uri)
    assert code_of(error) == "STORAGE_AWAY"
    proxy.fault = None
    (pulled,) = pull_to_registry(Registry(tmp_path / "models"), uri)
    assert pulled.moved is not None
    assert pulled.moved.kept > 0


def test_an_object_replaced_while_it_is_read_is_detected(
    proxy: FaultProxy, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "PIECES_AHEAD", 1)
    place = pushed(uri := f"s3://{BUCKET}/replaced", model)
    weights = place / "weights.arrow"
    other = bytes(reversed(weights.read(1 << 20)))
    values: list[str] = []

    def replacing(environ: dict[str, Any], answer: Any) -> Any:
        if environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"].endswith("weights.arrow"):
            values.append(environ["PATH_INFO"])
            if len(values) == 2:
                proxy.client.put_object(
                    Bucket=BUCKET, Key=weights.path.partition("/")[2], Body=other
                )
        return answer

    proxy.fault = replacing
    with pytest.raises(Corrupt, match=r"weights\.arrow"):
        pull_to_registry(Registry(tmp_path / "models"), uri)
    assert len(values) > 2
    assert Registry(tmp_path / "models").names() == []


def test_large_files_are_sent_in_parts(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "PIECE_BYTES", 1 << 20)
    content = os.urandom(12 << 20)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "big").write_bytes(content)
    place, files = StoragePath.parse(f"s3://{BUCKET}/large"), file_digests(tmp_path / "m")
    transfer.upload_files(tmp_path / "m", files, b"{}", place)
    assert (
        sum(method == "PUT" and path.endswith("/large/big") for method, path in proxy.requests) > 1
    )
    proxy.requests.clear()
    transfer.download_files(place, files, tmp_path / "n")
    assert (
        sum(method == "GET" and path.endswith("/large/big") for method, path in proxy.requests)
        == 12
    )
    assert (tmp_path / "n" / "big").read_bytes() == content


def test_a_missing_bucket_a_refusal_and_an_outage_are_distinguished(
    proxy: FaultProxy, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    for act in (
        lambda uri: push(model.path, StoragePath.parse(uri) / "news"),
        lambda uri: StoragePath.parse(uri).list_entries(),
    ):
        with pytest.raises(NotFound, match="no bucket") as error:
            act("s3://no-such-bucket/models")
        assert code_of(error) == "NO_BUCKET"

    def denied(environ: dict[str, Any], start: Any) -> Any:
        start("403 Forbidden", [("Content-Type", "application/xml")])
        return [
            b"<Error><Code>AccessDenied</Code><Message>key AKIASECRET may not</Message></Error>"
        ]

    monkeypatch.setattr(proxy, "_behind", denied)
    with pytest.raises(Unavailable, match="denies access") as error:
        StoragePath.parse(f"s3://{BUCKET}/x").list_entries()
    assert code_of(error) == "STORAGE_DENIED"
    assert "AKIASECRET" not in str(error.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(Unavailable) as error:
        StoragePath.parse(f"s3://{BUCKET}/x").list_entries()
    assert code_of(error) == "STORAGE_AWAY"


@pytest.mark.parametrize(
    "uri",
    [
        "s3://key:secret@bucket/models",
        "s3://bucket/models?access_key=key&secret_key=secret",
        "ftp://key:secret@host/models",
        "file://host/models",
        "file:///a/../b",
        "s3:///models",
        "/models",
    ],
)
def test_an_invalid_uri_is_refused_without_its_secrets(uri: str) -> None:
    with pytest.raises(ParameterError) as error:
        StoragePath.parse(uri)
    assert "secret" not in str(error.value).replace("AWS_SECRET_ACCESS_KEY", "").replace(
        "secret_key", ""
    )


def test_the_commands(
    proxy: FaultProxy, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri, home = f"s3://{BUCKET}/commands", tmp_path / "home"
    assert cli.main(["models", "push", str(model.path), uri, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 1
    assert cli.main(["models", "pull", uri, "--home", str(home), "--json"]) == 0
    (pulled,) = json.loads(capsys.readouterr().out)["models"]
    assert (pulled["name"], pulled["number"], pulled["sha256"]) == ("news", 1, model.sha256)
    assert cli.main(["models", "push", "news:1", uri, "--home", str(home)]) == 0
    assert "existed already" in capsys.readouterr().out
    assert cli.main(["models", "pull", uri, f"{uri}/x", "--into", str(tmp_path / "m")]) == 2
    assert cli.main(["models", "pull", "s3://no-such-bucket/x", "--home", str(home)]) == 2
