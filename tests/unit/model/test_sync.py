"""Synchronisation of registries with object storage, in both directions, under faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_service import client_of, publish, settings_for
from xcray.errors import Stopped, Unavailable
from xcray.jobs.home import Home
from xcray.model.objectstore import sync as mirroring
from xcray.model.objectstore.remote_registry import read_aliases
from xcray.model.objectstore.sync import Follower, Mirror, TenantModels
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit
from xcray.service.app import AppRole, create_app
from xcray.service.settings import Settings
from xcray.storage.atomic import file_digests
from xcray.storage.objectstore.client import StoragePath
from xcray.storage.objectstore.versions import list_names, list_versions

PATIENCE = 600.0


@pytest.fixture
def root(tmp_path: Path) -> StoragePath:
    """Return the path of a storage."""
    return StoragePath.parse(f"file://{tmp_path / 'store'}")


@pytest.fixture
def published(tmp_path: Path) -> Registry:
    """Return a registry with two versions of news, the first of which is prod."""
    registry = Registry(tmp_path / "house")
    for seed in (1, 2):
        publish(registry, "news", tmp_path / "staged", seed=seed)
    registry.aliases.set("news", "prod", 1)
    return registry


def mirror_of(published: Registry, root: StoragePath, **how: Any) -> Mirror:
    """Return a mirror of one tenant."""
    return Mirror(lambda: [TenantModels(None, published)], root, **how)


def follower_of(tmp_path: Path, root: StoragePath) -> tuple[Follower, Registry]:
    """Return a follower of one tenant, and its registry."""
    registry = Registry(tmp_path / "replica")
    return Follower(
        lambda tenant: registry if tenant is None else Registry(tmp_path / f"replica-{tenant}"),
        root,
    ), registry


def digests(registry: Registry, reference: str) -> Any:
    """Return the digests of a version's files."""
    return file_digests(registry.resolve(reference))


def eventually(what: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_published_version_is_copied_once(
    published: Registry, root: StoragePath, tmp_path: Path
) -> None:
    behind: list[int] = []
    mirror = mirror_of(published, root, on_pending=behind.append)
    assert mirror.sync() == (2, 0, None)
    assert behind == [2, 1, 0]
    assert [remote.number for remote in list_versions(root / "news")] == [1, 2]
    assert read_aliases(root / "news") == {"prod": TrafficSplit.single(1)}
    assert mirror.sync() == (0, 0, None)
    publish(published, "news", tmp_path / "staged", seed=3)
    published.aliases.set_split(
        "news", "prod", TrafficSplit.from_weights([(1, 0.5), (3, 0.5)], (2, 0.1))
    )
    assert mirror.sync() == (1, 0, None)
    assert read_aliases(root / "news")["prod"].versions == (1, 3, 2)
    before = {path: path.stat().st_mtime_ns for path in Path(root.path).rglob("*")}
    # Another process, which has to compare all versions.
    assert mirror_of(published, root).sync() == (
        3,
        0,
        None,
    )
    assert {path: path.stat().st_mtime_ns for path in Path(root.path).rglob("*")} == before


def test_a_version_that_cannot_be_copied_delays_no_other(
    published: Registry, root: StoragePath, tmp_path: Path
) -> None:
    weights = published.resolve("news:1") / "weights.arrow"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    mirror = mirror_of(published, root)
    turn = mirror.sync()
    assert (turn.copied, turn.pending) == (1, 1)
    assert "weights.arrow" in str(turn.error)
    assert read_aliases(root / "news") == {}  # prod refers to a version that is missing
    weights.write_bytes(whole)
    assert mirror.sync() == (1, 0, None)
    assert read_aliases(root / "news") == {"prod": TrafficSplit.single(1)}


def test_two_homes_do_not_overwrite_each_other(
    published: Registry, root: StoragePath, tmp_path: Path
) -> None:
    mirror_of(published, root).sync()
    other = Registry(tmp_path / "other")
    publish(other, "news", tmp_path / "staged", seed=9)
    turn = mirror_of(other, root).sync()
    assert (turn.copied, turn.pending) == (0, 1)
    assert "something else as version 1" in str(turn.error)
    assert [remote.number for remote in list_versions(root / "news")] == [1, 2]


def test_a_stopped_sync_is_completed_by_the_next(published: Registry, root: StoragePath) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        mirror_of(published, root).sync(stop)
    assert mirror_of(published, root).sync().pending == 0


def test_a_killed_mirror_leaves_no_partial_version_and_resumes(
    published: Registry, root: StoragePath, tmp_path: Path
) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from xcray.storage.objectstore import transfer\n"
        "from xcray.model.objectstore.sync import *\n"
        "from xcray.model.registry import Registry\n"
        "real = transfer._upload_file\n"
        "def upload(source, target, stop):\n"
        "    sent = real(source, target, stop)\n"
        "    print('sent', flush=True); sys.stdin.read()\n"
        "transfer._upload_file = upload\n"
        f"models = TenantModels(None, Registry({str(published.root)!r}))\n"
        f"Mirror(lambda: [models], StoragePath.parse({root.uri!r})).sync()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"sent"
        os.kill(process.pid, signal.SIGKILL)
    follower, replica = follower_of(tmp_path, root)
    assert follower.sync() == (0, 0, None)
    assert replica.names() == []
    assert mirror_of(published, root).sync() == (2, 0, None)
    assert follower.sync().copied == 2
    assert digests(replica, "news") == digests(published, "news")


def test_a_follower_pulls_the_latest_version_and_those_of_aliases(
    published: Registry, root: StoragePath, tmp_path: Path
) -> None:
    mirror, (follower, replica) = mirror_of(published, root), follower_of(tmp_path, root)
    assert follower.sync() == (0, 0, None)
    mirror.sync()
    assert follower.sync() == (2, 0, None)
    assert follower.sync() == (0, 0, None)
    assert digests(replica, "news") == digests(published, "news:2")
    assert digests(replica, "news@prod") == digests(published, "news:1")
    for seed in (3, 4, 5):
        publish(published, "news", tmp_path / "staged", seed=seed)
        published.aliases.set("news", "prod", published.versions("news")[-1])
        mirror.sync()
        assert follower.sync() == (1, 0, None)
    assert replica.resolve_version("news@prod") == ("news", 5)
    assert replica.versions("news") == [4, 5]  # one version before the latest is kept
    published.aliases.delete("news", "prod")
    mirror.sync()
    follower.sync()
    assert replica.aliases.of("news") == {"latest": 5}


def test_what_was_published_here_is_never_deleted_by_following(
    published: Registry, root: StoragePath, tmp_path: Path
) -> None:
    mirror, (follower, replica) = mirror_of(published, root), follower_of(tmp_path, root)
    publish(replica, "news", tmp_path / "staged", seed=7)
    publish(replica, "own", tmp_path / "staged", seed=8)
    mirror.sync()
    turn = follower.sync()
    assert "another model here" in str(turn.error)
    assert digests(replica, "own")
    assert replica.versions("news")[0] == 1
    assert digests(replica, "news:1") != digests(published, "news:1")


def test_other_tenants_are_separate(published: Registry, root: StoragePath, tmp_path: Path) -> None:
    Mirror(lambda: [TenantModels("acme", published)], root).sync()
    assert list_names(root) == []
    follower, replica = follower_of(tmp_path, root)
    follower.sync()
    assert replica.names() == []
    assert digests(Registry(tmp_path / "replica-acme"), "news") == digests(published, "news")


def test_a_service_mirrors_and_another_follows_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xcray.service.models.sync.MIRROR_SECONDS", 0.05)
    uri = f"file://{tmp_path / 'store'}"
    published = Registry(Home(tmp_path / "a").models)
    publish(published, "news", tmp_path / "staged", seed=1)
    first = create_app(settings_for(tmp_path / "a", models_mirror=uri))
    second = create_app(
        settings_for(tmp_path / "b", models_follow=uri, preload=["news"]),
        role=AppRole(leader_eligible=False),
    )
    for worker in second.state.app_state.sync_workers:
        worker._seconds = 0.05
    body = {"instances": [{"text": "read a csv file"}]}
    with client_of(first) as one, client_of(second) as two:
        eventually(lambda: two.post("/v1/models/news:predict", json=body).status_code == 200)
        assert (
            two.post("/v1/models/news:predict", json=body).json()
            == one.post("/v1/models/news:predict", json=body).json()
        )
        publish(published, "news", tmp_path / "staged", seed=2)

        def version() -> int:
            answer = two.post("/v1/models/news:predict", json=body)
            assert answer.status_code == 200
            return int(answer.json()["model"]["version"])

        eventually(lambda: version() == 2)
        eventually(
            lambda: one.post("/v1/models/news:predict", json=body).json()["model"]["version"] == 2
        )
        assert (
            two.post("/v1/models/news:predict", json=body).json()
            == one.post("/v1/models/news:predict", json=body).json()
        )
        # It is updated at the end of a synchronisation.
        eventually(
            lambda: 'xcray_model_sync_pending{direction="mirror"} 0.0' in one.get("/metrics").text
        )
        figures = one.get("/metrics").text
        assert 'xcray_model_transfer_failures_total{direction="mirror"} 0.0' in figures


def test_a_missing_storage_degrades_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(settings_for(tmp_path / "a", models_follow=f"file://{tmp_path / 'store'}"))
    (worker,) = app.state.app_state.sync_workers

    def broken(*_: Any) -> Any:
        raise Unavailable("no answer", code="STORAGE_AWAY")

    monkeypatch.setattr(mirroring, "list_names", broken)
    worker.sync_once()
    with pytest.raises(Unavailable, match="no answer"):
        worker.check()
    monkeypatch.undo()
    worker.sync_once()
    worker.check()
    assert "FOLLOW" in app.state.app_state.readiness.failing_checks()
    app.state.app_state.store.close()


@pytest.mark.parametrize("uri", ["s3://key:secret@bucket/x", "models", "http://host/x", "s3://"])
def test_settings_refuse_an_invalid_storage(uri: str) -> None:
    with pytest.raises(ValueError, match="object storage"):
        Settings(models_mirror=uri)


def test_a_home_cannot_mirror_and_follow() -> None:
    with pytest.raises(ValueError, match="set one of them"):
        Settings(models_mirror="s3://bucket/models", models_follow="s3://bucket/models")
