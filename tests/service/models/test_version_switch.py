"""Version switches under load: no request fails, each reply is from one version.

Corrupt versions are never used.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.support.clocks import Clock
from tests.support.live_service import client_of, publish, settings_for, text_model
from xcray.errors import Corrupt, NotFound, Refused, Unavailable
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit, hash_point, pick_version
from xcray.predict import Predictor
from xcray.service import constants
from xcray.service.app import create_app
from xcray.service.app_state import AppState
from xcray.service.models.cache import ModelCache, ModelTarget, open_predictor
from xcray.service.models.loading import FIRST_RETRY_SECONDS
from xcray.service.observability.metrics import Metrics

BODY = {"instances": [{"text": "read rows of a csv file"}], "top_k": 4}
SWITCHES = int(os.environ.get("SWITCHES", "4"))  # use 1000 for a long run by hand


class CacheSetup(NamedTuple):
    """A cache over a registry with versions 1 and 2 of docs.

    `opened` lists what was loaded; `gate` lets loading continue.
    """

    registry: Registry
    cache: ModelCache
    clock: Clock
    opened: list[int]
    gate: threading.Event


@pytest.fixture
def cache_setup(tmp_path: Path) -> Iterator[CacheSetup]:
    registry, clock, opened, gate = Registry(tmp_path / "models"), Clock(), [], threading.Event()
    gate.set()

    def opener(path: Path) -> Predictor:
        assert gate.wait(300)
        opened.append(int(path.name))
        return Predictor(Model.open(path, verify=True))

    for version in (1, 2):
        publish(registry, "docs", tmp_path / f"m{version}", seed=version)
    cache = ModelCache(
        lambda tenant: registry,
        Metrics(),
        4,
        opener,
        switch_timeout_seconds=60.0,
        unload_delay_seconds=5.0,
        clock=clock,
    )
    yield CacheSetup(registry, cache, clock, opened, gate)
    gate.set()
    cache.close()


def target(reference: str, key: str = "") -> ModelTarget:
    """Return a target of the tenant `default`."""
    return ModelTarget("default", reference, key)


def settle(cache: ModelCache) -> None:
    """Wait for switches that were started."""
    cache._switch._pool.submit(lambda: None).result(300)


def damage(registry: Registry, version: int, file: str = "bias.arrow") -> Callable[[], int]:
    """Flip a bit of a published version; return a function that repairs it."""
    path = registry.root / "docs" / "versions" / str(version) / file
    before = path.read_bytes()
    content = bytearray(before)
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    return lambda: path.write_bytes(before)


def test_the_old_version_is_used_until_the_new_one_is_loaded(
    cache_setup: CacheSetup, tmp_path: Path
) -> None:
    assert cache_setup.cache.get(target("docs")).version == 2
    cache_setup.gate.clear()
    publish(cache_setup.registry, "docs", tmp_path / "m3", seed=3)
    assert [cache_setup.cache.get(target("docs")).version for _ in range(5)] == [2] * 5
    assert cache_setup.opened == [2]
    cache_setup.gate.set()
    settle(cache_setup.cache)
    assert cache_setup.cache.get(target("docs")).version == 3
    assert cache_setup.opened == [2, 3]


def test_requests_wait_for_the_new_version_after_the_time_limit(
    cache_setup: CacheSetup, tmp_path: Path
) -> None:
    cache_setup.cache.get(target("docs"))
    cache_setup.gate.clear()
    publish(cache_setup.registry, "docs", tmp_path / "m3", seed=3)
    assert cache_setup.cache.get(target("docs")).version == 2
    cache_setup.clock.seconds = 60.5
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(cache_setup.cache.get, target("docs"))
        assert not late.done()
        cache_setup.gate.set()
        assert late.result(300).version == 3


def test_a_poll_switches_versions_without_requests(cache_setup: CacheSetup, tmp_path: Path) -> None:
    """A change by another replica is applied before the first request needs it."""
    cache_setup.registry.aliases.set("docs", "prod", 1)
    assert cache_setup.cache.get(target("docs@prod")).version == 1
    Registry(cache_setup.registry.root).aliases.set("docs", "prod", 2)
    cache_setup.cache.poll()
    settle(cache_setup.cache)
    assert cache_setup.opened == [1, 2]
    assert cache_setup.cache.get(target("docs@prod")).version == 2


def test_a_replaced_version_is_unmapped(cache_setup: CacheSetup, tmp_path: Path) -> None:
    """A version stays mapped while a request holds it, then its pages are released.

    The kernel's list of mapped pages is checked.
    """

    def mapped(version: int) -> bool:
        return f"docs/versions/{version}/" in Path("/proc/self/maps").read_text()

    cache_setup.registry.aliases.set("docs", "prod", 1)
    entry = cache_setup.cache.get(target("docs@prod"))
    gone = weakref.ref(entry)
    assert mapped(1)
    cache_setup.registry.aliases.set("docs", "prod", 2)
    cache_setup.cache.refresh_name("default", "docs")
    settle(cache_setup.cache)
    assert cache_setup.cache.get(target("docs@prod")).version == 2
    cache_setup.clock.seconds = 4.0
    cache_setup.cache.poll()
    # The old version is kept for a moment, so that a rollback is quick.
    assert cache_setup.cache.loaded_versions("default") == {
        ("docs", 1),
        ("docs", 2),
    }
    cache_setup.clock.seconds = 10.0
    cache_setup.cache.poll()
    assert cache_setup.cache.loaded_versions("default") == {("docs", 2)}
    # Requests that still use the version can finish.
    assert entry.predictor.predict(["a csv file"], 1).labels.shape == (
        1,
        1,
    )
    assert mapped(1)
    del entry
    gc.collect()
    assert gone() is None
    assert not mapped(1)
    assert mapped(2)


def test_an_immediate_rollback_loads_nothing(cache_setup: CacheSetup) -> None:
    cache_setup.registry.aliases.set("docs", "prod", 1)
    for version in (1, 2, 1, 2, 1):
        cache_setup.registry.aliases.set("docs", "prod", version)
        cache_setup.cache.refresh_name("default", "docs")
        settle(cache_setup.cache)
        assert cache_setup.cache.get(target("docs@prod")).version == version
    assert sorted(cache_setup.opened) == [1, 2]


def test_deleting_the_active_version_fails_no_request(cache_setup: CacheSetup) -> None:
    entry = cache_setup.cache.get(target("docs"))
    cache_setup.registry.delete("docs", 2)
    cache_setup.cache.refresh_name("default", "docs")
    assert entry.predictor.predict(["a csv file"], 4).labels.shape == (1, 4)
    settle(cache_setup.cache)
    assert cache_setup.cache.get(target("docs")).version == 1
    cache_setup.cache.poll()
    assert cache_setup.cache.loaded_versions("default") == {("docs", 1)}
    with pytest.raises(NotFound):
        cache_setup.cache.get(target("docs:2"))


def test_a_corrupt_version_is_not_activated(cache_setup: CacheSetup, tmp_path: Path) -> None:
    cache_setup.cache.get(target("docs"))
    cache_setup.cache.check()
    publish(cache_setup.registry, "docs", tmp_path / "m3", seed=3)
    repair = damage(cache_setup.registry, 3)
    for _ in range(3):
        assert cache_setup.cache.get(target("docs")).version == 2
        settle(cache_setup.cache)
    cache_setup.clock.seconds = 1000.0  # requests do not wait for a version that cannot be loaded
    assert cache_setup.cache.get(target("docs")).version == 2
    settle(cache_setup.cache)
    states = {state.version: state for state in cache_setup.cache.states("default", "docs")}
    assert states[3].state == "CORRUPT"
    assert "bias.arrow" in states[3].reason
    assert Registry(cache_setup.registry.root).corrupt.versions("docs").keys() == {3}
    with pytest.raises(Unavailable, match="version 3 of model docs can't be loaded"):
        cache_setup.cache.check()
    with pytest.raises(Corrupt):
        cache_setup.cache.get(target("docs:3"))
    repair()
    cache_setup.clock.seconds += 10 * FIRST_RETRY_SECONDS
    cache_setup.cache.poll()
    settle(cache_setup.cache)
    assert cache_setup.cache.get(target("docs")).version == 3
    cache_setup.cache.check()
    assert cache_setup.registry.corrupt.versions("docs") == {}


def test_a_new_process_uses_an_earlier_version(cache_setup: CacheSetup, tmp_path: Path) -> None:
    """A process without history uses a version that the alias pointed to before."""
    publish(cache_setup.registry, "docs", tmp_path / "m3", seed=3)
    cache_setup.registry.aliases.set("docs", "prod", 1)
    cache_setup.registry.aliases.set("docs", "prod", 3)
    damage(cache_setup.registry, 3)
    assert cache_setup.cache.get(target("docs@prod")).version == 1
    assert cache_setup.cache.get(target("docs")).version == 2
    with pytest.raises(Unavailable):
        cache_setup.cache.check()
    damage(cache_setup.registry, 1)
    damage(cache_setup.registry, 2)
    fresh = ModelCache(lambda tenant: cache_setup.registry, Metrics(), 4)
    with pytest.raises(Corrupt, match="version 3 of model docs can't be loaded"):
        fresh.get(target("docs"))
    fresh.close()


def test_an_unreadable_registry_does_not_affect_loaded_models(cache_setup: CacheSetup) -> None:
    path = cache_setup.registry.root / "docs" / "aliases.json"
    cache_setup.registry.aliases.set("docs", "prod", 1)
    assert cache_setup.cache.get(target("docs@prod")).version == 1
    whole = path.read_text()
    path.write_text("{")
    assert cache_setup.cache.get(target("docs@prod")).version == 1
    with pytest.raises(Unavailable, match=r"can.t be updated"):
        cache_setup.cache.check()
    with pytest.raises(Corrupt) as caught:
        cache_setup.cache.get(target("docs@beta"))
    assert caught.value.code == "REGISTRY"
    path.write_text(whole)
    cache_setup.cache.poll()
    cache_setup.cache.check()


def test_a_hanging_file_system_does_not_affect_loaded_models(
    cache_setup: CacheSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find(reference: str) -> int:
        return (await cache_setup.cache.find(target(reference))).version

    assert asyncio.run(find("docs")) == 2
    monkeypatch.setattr("xcray.model.registry.SETTLE_SECONDS", -1e9)
    assert asyncio.run(find("docs")) == 2

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(Registry, "change_token", broken)
    assert asyncio.run(find("docs")) == 2
    with pytest.raises(Corrupt) as caught:
        asyncio.run(find("docs@prod"))
    assert caught.value.code == "REGISTRY"


def test_requests_of_a_millisecond_share_the_check_for_changes(
    cache_setup: CacheSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of this process counts at once, one of another process with the next check."""
    monkeypatch.setattr("xcray.model.registry.SETTLE_SECONDS", -1e9)
    cache_setup.cache.get(target("docs"))
    endpoint = cache_setup.cache._endpoints.of("default", "docs")
    checks, token = list[str](), Registry.change_token

    def note(registry: Registry, name: str) -> Any:
        checks.append(name)
        return token(registry, name)

    monkeypatch.setattr(Registry, "change_token", note)
    assert [endpoint.is_current(now) for now in (1.0, 1.0, 1.001, 1.001)] == [True] * 4
    assert len(checks) == 2
    assert endpoint.is_current()
    assert len(checks) == 3
    endpoint.stale_since = 0.0
    assert not endpoint.is_current(1.001)


def test_unreadable_files_are_not_an_internal_error(
    cache_setup: CacheSetup, tmp_path: Path
) -> None:
    """System errors and unexpected errors affect only the version."""
    cache_setup.cache.get(target("docs"))
    for number, error in enumerate(
        (PermissionError(13, "no"), MemoryError(), RuntimeError("unforeseen")), 3
    ):

        def refuse(path: Path, error: Exception = error) -> Predictor:
            raise error

        cache_setup.cache._loader.opener = refuse
        publish(cache_setup.registry, "docs", tmp_path / f"m{number}", seed=number)
        cache_setup.cache.get(target("docs"))
        settle(cache_setup.cache)
        assert cache_setup.cache.get(target("docs")).version == 2
        with pytest.raises(Corrupt) as caught:
            cache_setup.cache.get(target(f"docs:{number}"))
        assert caught.value.code == "UNREADABLE"
    assert cache_setup.registry.corrupt.versions("docs") == {}  # its files can be intact


def test_splits_select_by_key_and_skip_corrupt_versions(
    cache_setup: CacheSetup, tmp_path: Path
) -> None:
    route = TrafficSplit.from_weights([(1, 0.7), (2, 0.3)])
    cache_setup.registry.aliases.set_split("docs", "prod", route)
    keys = [f"k{i}" for i in range(300)]
    expected = [
        route.shares[pick_version(route.shares, hash_point("docs@prod", key))].version
        for key in keys
    ]
    for _ in range(2):
        assert [cache_setup.cache.get(target("docs@prod", key)).version for key in keys] == expected
    publish(cache_setup.registry, "docs", tmp_path / "m3", seed=3)
    damage(cache_setup.registry, 3)
    cache_setup.registry.aliases.set_split(
        "docs", "prod", TrafficSplit.from_weights([(1, 0.5), (3, 0.5)])
    )
    cache_setup.cache.refresh_name("default", "docs")
    settle(cache_setup.cache)
    assert {cache_setup.cache.get(target("docs@prod", key)).version for key in keys} == {1}
    with pytest.raises(Unavailable):
        cache_setup.cache.check()


def test_a_version_moved_to_another_number_is_detected(cache_setup: CacheSetup) -> None:
    """Both are complete models with valid checksums, but published under other numbers."""
    versions = cache_setup.registry.root / "docs" / "versions"
    os.rename(versions / "1", versions / "x")
    os.rename(versions / "2", versions / "1")
    os.rename(versions / "x", versions / "2")
    for version in (1, 2):
        with pytest.raises(Corrupt):
            cache_setup.cache.get(target(f"docs:{version}"))
    assert "the model differs" in cache_setup.registry.corrupt.versions("docs")[1]


def test_loads_are_pinned_in_every_process(cache_setup: CacheSetup, tmp_path: Path) -> None:
    for name in "abcd":
        publish(cache_setup.registry, name, tmp_path / name)
    other = ModelCache(lambda tenant: cache_setup.registry, Metrics(), 2, unload_delay_seconds=0.0)
    assert cache_setup.cache.load("default", "docs").version == 2
    other.poll()
    assert other.loaded_versions("default") == {("docs", 2)}
    for name in "abcd":
        other.get(target(name))
    # versions that are not pinned were loaded and unloaded
    assert ("docs", 2) in other.loaded_versions("default")
    assert len(other.loaded_versions("default")) == 2
    other.load("default", "a")
    with pytest.raises(Refused) as caught:
        other.load("default", "b")
    assert caught.value.code == "MODELS_LOADED"
    other.poll()
    cache_setup.cache.unload("default", "docs")
    assert cache_setup.cache.loaded_versions("default") == set()
    other.poll()
    assert other.loaded_versions("default") == {("a", 1)}
    cache_setup.cache.load("default", "docs")
    cache_setup.cache.unload("default", "docs:2")  # the current version of `docs`
    assert cache_setup.cache.loaded_versions("default") == set()
    assert cache_setup.registry.pins.read("docs")[0] == []
    assert other.get(target("docs")).version == 2  # the next request loads it again
    with pytest.raises(NotFound):
        cache_setup.cache.load("default", "nothing")
    other.close()


def test_tenants_have_their_own_models(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    app_state: AppState = app.state.app_state
    publish(app_state.registry_of("default"), "docs", tmp_path / "a", seed=1)
    publish(app_state.registry_of("acme"), "docs", tmp_path / "b", seed=2)
    ours, theirs = (
        app_state.prediction.model_cache.get(ModelTarget(tenant, "docs"))
        for tenant in ("default", "acme")
    )
    assert ours.served_by != theirs.served_by
    assert (tmp_path / "home" / "tenants" / "acme" / "models" / "docs" / "versions" / "1").is_dir()
    assert app_state.registries.tenants() == ["default", "acme"]
    with pytest.raises(NotFound):
        app_state.prediction.model_cache.get(ModelTarget("third", "docs"))
    app_state.prediction.model_cache.close()


def test_switches_under_load_mix_no_versions_and_fail_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishing, moving aliases, splits, deletes and load at once.

    The labels of each reply are those of the version that it names.
    """
    monkeypatch.setattr(constants, "UNLOAD_DELAY_SECONDS", 0.05)
    app = create_app(settings_for(tmp_path / "home"))
    registry: Registry = app.state.app_state.registry
    hashes: dict[int, str] = {}
    staged = tmp_path / "staged"

    def published(number: int) -> int:
        text_model(staged, seed=number, labels=[f"v{number}-{i}" for i in range(4)])
        hashes[number] = Model.open(staged, verify=False).sha256
        return registry.publish("docs", staged)

    for number in (1, 2):
        assert published(number) == number
    registry.aliases.set("docs", "prod", 1)
    done = threading.Event()
    values: set[int] = set()

    def ask(reference: str) -> int:
        with httpx.Client(base_url=url, trust_env=False, timeout=600) as http:
            count = 0
            while not done.is_set():
                answer = http.post(f"/v1/models/{reference}:predict", json=BODY)
                assert answer.status_code == 200, answer.text
                reply = answer.json()
                version = reply["model"]["version"]
                assert reply["model"]["sha256"] == hashes[version]
                assert {
                    label.split("-")[0] for one in reply["predictions"] for label in one["labels"]
                } == {f"v{version}"}
                values.add(version)
                count += 1
            return count

    with client_of(app) as http, ThreadPoolExecutor(4) as pool:
        url = str(http.base_url)
        asking = [
            pool.submit(ask, reference) for reference in ("docs", "docs@prod", "docs@prod", "docs")
        ]
        try:
            for number in range(3, SWITCHES + 3):
                assert published(number) == number
                alias = "/v1/models/docs/aliases/prod"
                split = [{"version": number, "weight": 0.5}, {"version": number - 1, "weight": 0.5}]
                body = {"split": split, "shadow": number - 2} if number % 2 else {"version": number}
                assert http.put(alias, json=body).status_code == 200
                if number > 4:  # delete only versions without an alias
                    assert http.put(alias, json={"version": number}).status_code == 200
                    assert http.delete(f"/v1/models/docs/versions/{number - 2}").status_code == 204
                ends = time.monotonic() + 600.0
                while (
                    number % 3 == 0
                    and number not in values
                    and not any(each.done() for each in asking)
                ):
                    assert time.monotonic() < ends, "the published version is not picked up"
                    time.sleep(0.01)  # gives slow clients time to observe some versions
        finally:
            done.set()
        counts = [each.result() for each in asking]
    assert min(counts) > 0
    assert len(values) > SWITCHES // 4
    assert "docs/versions/3/" not in Path("/proc/self/maps").read_text()


def test_over_http_a_corrupt_version_is_shown_and_refused(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    registry: Registry = app.state.app_state.registry
    for number in (1, 2):
        publish(registry, "docs", tmp_path / "staged", seed=number)
    registry.aliases.set("docs", "prod", 1)
    damage(registry, 2, "manifest.json")
    publish(registry, "only", tmp_path / "staged")
    shutil.copytree(registry.root / "docs" / "versions" / "1", tmp_path / "kept")
    (registry.root / "only" / "versions" / "1" / "weights.arrow").write_bytes(b"")
    with client_of(app) as http:
        assert http.post("/v1/models/docs@prod:predict", json=BODY).json()["model"]["version"] == 1
        assert http.post("/v1/models/docs:predict", json=BODY).json()["model"]["version"] == 1
        refused = http.put("/v1/models/docs/aliases/prod", json={"version": 2})
        assert (refused.status_code, refused.json()["code"]) == (503, "CORRUPT")
        assert http.post("/v1/models/docs@prod:predict", json=BODY).json()["model"]["version"] == 1
        shown = http.get("/v1/models/docs").json()
        assert (shown["latest"], shown["aliases"]["prod"]) == (None, 1)
        assert [(state["version"], state["state"]) for state in shown["states"]] == [
            (1, "LOADED"),
            (2, "CORRUPT"),
        ]
        only = http.post("/v1/models/only:predict", json=BODY)
        assert (only.status_code, only.json()["code"]) == (503, "CORRUPT")
        assert "version 1 of model only can't be loaded" in only.json()["detail"]
        assert str(tmp_path) not in only.text
        assert {model["name"] for model in http.get("/v1/models").json()["models"]} == {
            "docs",
            "only",
        }
        assert http.get("/readyz").status_code == 200
        with pytest.raises(Unavailable) as caught:
            app.state.app_state.checks["MODEL"]()
        assert caught.value.code == "MODEL"


def test_aliases_over_http(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    for number in (1, 2, 3):
        publish(app.state.app_state.registry, "docs", tmp_path / "staged", seed=number)
    path = "/v1/models/docs/aliases/prod"
    with client_of(app) as http:
        for body, code in (
            ({}, "SPLIT"),
            ({"version": 1, "split": [{"version": 2, "weight": 1.0}]}, "SPLIT"),
            ({"split": [{"version": 1, "weight": 0.5}]}, "SPLIT"),
            ({"version": 1, "shadow": 1}, "SPLIT"),
            ({"split": []}, "LENGTH"),
            ({"version": 1, "shadow": {"version": 2, "share": 0}}, "RANGE"),
            ({"version": 1, "shadow": {"version": 2, "weight": 1}}, "UNKNOWN_FIELD"),
        ):
            answer = http.put(path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
        assert http.put(path, json={"version": 9}).status_code == 404
        assert http.put("/v1/models/docs/aliases/latest", json={"version": 2}).status_code == 422
        assert http.put(path, json={"version": 1}).json()["aliases"] == {"latest": 3, "prod": 1}
        assert http.delete("/v1/models/docs/versions/1").status_code == 409
        split = {
            "split": [{"version": 1, "weight": 0.5}, {"version": 2, "weight": 0.5}],
            "shadow": {"version": 3, "share": 0.5},
        }
        shown = http.put(path, json=split).json()
        assert shown["splits"] == {
            "prod": {"split": split["split"], "shadow": {"version": 3, "weight": 0.5}}
        }
        versions = {}
        for key in ("a", "b", "c", "d", "e", "f"):
            answers = [
                http.post("/v1/models/docs@prod:predict", json=BODY, headers={"X-Routing-Key": key})
                for _ in range(3)
            ]
            (versions[key],) = {answer.json()["model"]["version"] for answer in answers}
        route = TrafficSplit.from_weights([(1, 0.5), (2, 0.5)])
        assert versions == {
            key: route.shares[pick_version(route.shares, hash_point("docs@prod", key))].version
            for key in versions
        }
        assert http.post("/v1/models/docs:3:load").json() == {
            "reference": "docs:3",
            "name": "docs",
            "version": 3,
        }
        assert http.post("/v1/models/docs:unload").status_code == 204
        assert app.state.app_state.prediction.model_cache.loaded_versions("default") == set()
        assert http.delete(path).status_code == 204
        assert http.post("/v1/models/docs@prod:predict", json=BODY).status_code == 404
        assert http.get(path + "/shadow").status_code == 404


def test_the_real_opener_warms_the_model(tmp_path: Path) -> None:
    text_model(tmp_path / "model")
    assert open_predictor(tmp_path / "model").predict(["a csv file"], 1).labels.shape == (1, 1)
