"""Registries and object storage kept alike: what is published goes there, what is there comes here, whatever breaks in between."""

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
from xcray.model.objectstore.client import Place
from xcray.model.objectstore.remote_registry import aliases, names, versions
from xcray.model.objectstore.sync import Follower, Mirror, Shelf
from xcray.model.registry import Registry
from xcray.model.traffic_split import Route
from xcray.service.app import create_app
from xcray.service.settings import Settings
from xcray.storage.atomic import file_digests

PATIENCE = 600.0


@pytest.fixture
def root(tmp_path: Path) -> Place:
    """A storage."""
    return Place.at(f"file://{tmp_path / 'store'}")


@pytest.fixture
def house(tmp_path: Path) -> Registry:
    """Where models are published: two versions of news, the first of which is prod."""
    registry = Registry(tmp_path / "house")
    for seed in (1, 2):
        publish(registry, "news", tmp_path / "staged", seed=seed)
    registry.set_alias("news", "prod", 1)
    return registry


def mirror_of(house: Registry, root: Place, **how: Any) -> Mirror:
    """A mirror of one tenant."""
    return Mirror(lambda: [Shelf(None, house)], root, **how)


def follower_of(tmp_path: Path, root: Place) -> tuple[Follower, Registry]:
    """A follower of one tenant, and its registry."""
    registry = Registry(tmp_path / "replica")
    return Follower(
        lambda tenant: registry if tenant is None else Registry(tmp_path / f"replica-{tenant}"),
        root,
    ), registry


def digests(registry: Registry, reference: str) -> Any:
    """The files of a version."""
    return file_digests(registry.resolve(reference))


def eventually(what: Callable[[], bool]) -> None:
    """Wait until something holds."""
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_what_is_published_goes_there_once(house: Registry, root: Place, tmp_path: Path) -> None:
    behind: list[int] = []
    mirror = mirror_of(house, root, tell=behind.append)
    assert mirror.turn() == (2, 0, None)
    assert behind == [2, 1, 0]
    assert [remote.number for remote in versions(root / "news")] == [1, 2]
    assert aliases(root / "news") == {"prod": Route.to(1)}
    assert mirror.turn() == (0, 0, None)
    publish(house, "news", tmp_path / "staged", seed=3)
    house.set_route("news", "prod", Route.of([(1, 0.5), (3, 0.5)], (2, 0.1)))
    assert mirror.turn() == (1, 0, None)
    assert aliases(root / "news")["prod"].versions == (1, 3, 2)
    before = {path: path.stat().st_mtime_ns for path in Path(root.path).rglob("*")}
    assert mirror_of(house, root).turn() == (3, 0, None)  # another process, which had to find out
    assert {path: path.stat().st_mtime_ns for path in Path(root.path).rglob("*")} == before


def test_a_version_that_can_not_go_holds_up_no_other(
    house: Registry, root: Place, tmp_path: Path
) -> None:
    weights = house.resolve("news:1") / "weights.arrow"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    mirror = mirror_of(house, root)
    turn = mirror.turn()
    assert (turn.moved, turn.behind) == (1, 1)
    assert "weights.arrow" in str(turn.trouble)
    assert aliases(root / "news") == {}  # prod leads to what is not there
    weights.write_bytes(whole)
    assert mirror.turn() == (1, 0, None)
    assert aliases(root / "news") == {"prod": Route.to(1)}


def test_two_houses_do_not_overwrite_each_other(
    house: Registry, root: Place, tmp_path: Path
) -> None:
    mirror_of(house, root).turn()
    other = Registry(tmp_path / "other")
    publish(other, "news", tmp_path / "staged", seed=9)
    turn = mirror_of(other, root).turn()
    assert (turn.moved, turn.behind) == (0, 1)
    assert "another model as version 1" in str(turn.trouble)
    assert [remote.number for remote in versions(root / "news")] == [1, 2]


def test_a_stop_ends_it_and_the_next_does_the_rest(house: Registry, root: Place) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        mirror_of(house, root).turn(stop)
    assert mirror_of(house, root).turn().behind == 0


def test_a_killed_mirror_leaves_no_half_and_goes_on(
    house: Registry, root: Place, tmp_path: Path
) -> None:
    code = (
        "import os, sys; from pathlib import Path; from xcray.model import transfer; from xcray.model.objectstore.sync import *\n"
        "from xcray.model.registry import Registry\n"
        "real = transfer._send_file\n"
        "def send(source, target, stop):\n"
        "    done = real(source, target, stop)\n"
        "    print('sent', flush=True); sys.stdin.read()\n"
        "transfer._send_file = send\n"
        f"Mirror(lambda: [Shelf(None, Registry({str(house.root)!r}))], Place.at({root.shown!r})).turn()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"sent"
        os.kill(process.pid, signal.SIGKILL)
    follower, replica = follower_of(tmp_path, root)
    assert follower.turn() == (0, 0, None)
    assert replica.names() == []
    assert mirror_of(house, root).turn() == (2, 0, None)
    assert follower.turn().moved == 2
    assert digests(replica, "news") == digests(house, "news")


def test_a_follower_brings_the_latest_and_what_aliases_lead_to(
    house: Registry, root: Place, tmp_path: Path
) -> None:
    mirror, (follower, replica) = mirror_of(house, root), follower_of(tmp_path, root)
    assert follower.turn() == (0, 0, None)
    mirror.turn()
    assert follower.turn() == (2, 0, None)
    assert follower.turn() == (0, 0, None)
    assert digests(replica, "news") == digests(house, "news:2")
    assert digests(replica, "news@prod") == digests(house, "news:1")
    for seed in (3, 4, 5):
        publish(house, "news", tmp_path / "staged", seed=seed)
        house.set_alias("news", "prod", house.versions("news")[-1])
        mirror.turn()
        assert follower.turn() == (1, 0, None)
    assert replica.locate("news@prod") == ("news", 5)
    assert replica.versions("news") == [4, 5]  # one before the latest stays, what is older goes
    house.delete_alias("news", "prod")
    mirror.turn()
    follower.turn()
    assert replica.aliases("news") == {"latest": 5}


def test_what_was_published_here_is_never_deleted_by_following(
    house: Registry, root: Place, tmp_path: Path
) -> None:
    mirror, (follower, replica) = mirror_of(house, root), follower_of(tmp_path, root)
    publish(replica, "news", tmp_path / "staged", seed=7)
    publish(replica, "own", tmp_path / "staged", seed=8)
    mirror.turn()
    turn = follower.turn()
    assert "another model here" in str(turn.trouble)
    assert digests(replica, "own")
    assert replica.versions("news")[0] == 1
    assert digests(replica, "news:1") != digests(house, "news:1")


def test_other_tenants_lie_beside(house: Registry, root: Place, tmp_path: Path) -> None:
    Mirror(lambda: [Shelf("acme", house)], root).turn()
    assert names(root) == []
    follower, replica = follower_of(tmp_path, root)
    follower.turn()
    assert replica.names() == []
    assert digests(Registry(tmp_path / "replica-acme"), "news") == digests(house, "news")


def test_a_service_mirrors_and_another_follows_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xcray.service.models.sync.MIRROR_SECONDS", 0.05)
    uri = f"file://{tmp_path / 'store'}"
    house = Registry(Home(tmp_path / "a").models)
    publish(house, "news", tmp_path / "staged", seed=1)
    first = create_app(settings_for(tmp_path / "a", models_mirror=uri))
    second = create_app(
        settings_for(tmp_path / "b", models_follow=uri, models_follow_seconds=1, preload=["news"]),
        leads=False,
    )
    for carrier in second.state.rooms.carriers:
        carrier._seconds = 0.05
    body = {"instances": [{"text": "read a csv file"}]}
    with client_of(first) as one, client_of(second) as two:
        eventually(lambda: two.post("/v1/models/news:predict", json=body).status_code == 200)
        assert (
            two.post("/v1/models/news:predict", json=body).json()
            == one.post("/v1/models/news:predict", json=body).json()
        )
        publish(house, "news", tmp_path / "staged", seed=2)

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
        eventually(
            lambda: "xcray_models_unmirrored 0.0" in one.get("/metrics").text
        )  # told when a turn has ended
        figures = one.get("/metrics").text
        assert 'xcray_model_transfer_failures_total{direction="mirror"} 0.0' in figures


def test_a_storage_that_is_not_there_degrades_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(settings_for(tmp_path / "a", models_follow=f"file://{tmp_path / 'store'}"))
    (carrier,) = app.state.rooms.carriers

    def broken(*_: Any) -> Any:
        raise Unavailable("no answer", code="STORAGE_AWAY")

    monkeypatch.setattr(mirroring, "names", broken)
    carrier.turn()
    with pytest.raises(Unavailable, match="no answer"):
        carrier.check()
    monkeypatch.undo()
    carrier.turn()
    carrier.check()
    assert "FOLLOW" in app.state.rooms.readiness.failing()
    app.state.rooms.store.close()


@pytest.mark.parametrize("uri", ["s3://key:secret@bucket/x", "models", "http://host/x", "s3://"])
def test_settings_refuse_what_is_no_storage(uri: str) -> None:
    with pytest.raises(ValueError, match="object storage"):
        Settings(models_mirror=uri)


def test_a_home_leads_or_follows() -> None:
    with pytest.raises(ValueError, match="set one of them"):
        Settings(models_mirror="s3://bucket/models", models_follow="s3://bucket/models")
