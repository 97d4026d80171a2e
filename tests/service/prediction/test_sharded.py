"""Models in shards: the answers of the whole model, and what happens if a shard is lost."""

from __future__ import annotations

import json
import logging
import shutil
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from tests.support.live_service import PATIENCE, client_of, serving, settings_for, text_model
from xcray.arrays import CSR, csr, csr_from
from xcray.errors import Corrupt, ParameterError, Unavailable
from xcray.index.label_groups import LabelGroups
from xcray.model.manifest import ranges_of
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.model.write import ModelContent, TrainingRecord, write_model
from xcray.predict import Predictor
from xcray.service.app import create_app
from xcray.service.prediction.sharded_scorer import ShardedScorer
from xcray.service.prediction.shards import CONNECT_SECONDS, ShardQuestion, ShardService
from xcray.system.file_lock import try_lock
from xcray.training.edit.shards import _write_shard, range_borders, shard_model

K, D = 41, 24
SHARDS = (1, 2, 4)
RECORD = TrainingRecord("ppdsparse", {}, "0" * 64)


class Split(NamedTuple):
    """A whole model, and its front for each number of shards."""

    whole: Predictor
    fronts: dict[int, Model]


class Shards(NamedTuple):
    """A service that has all shards, and models of two kinds."""

    url: str
    models: dict[str, Split]


def write(path: Path, kind: str) -> Model:
    """Write a model with many equal scores: few different weights, some labels without any."""
    rng = np.random.default_rng(7)
    weights = rng.integers(-1, 2, (K, D)) * (rng.random((K, D)) < 0.4)
    weights[[3, 20, 40]] = 0
    weights[21] = weights[19] = weights[5]
    groups = None
    if kind == "groups":
        groups = LabelGroups(
            (2, 5),
            csr_from(rng.integers(-1, 2, (D, 7)).astype(np.float32)),
            np.ones(7, np.float32),
            np.column_stack([np.arange(K) % 2, 2 + np.arange(K) % 5]).astype(np.int32),
            0.5,
        )
    content = ModelContent(
        csr_from(weights.astype(np.float32)),
        np.zeros(K, np.float32),
        [f"label {j}" for j in range(K)],
        [f"f{j}" for j in range(D)],
        row_norm="l2",
        groups=groups,
    )
    return write_model(path, content, RECORD)


def rows(n: int = 30) -> CSR:
    """Return rows with values that need all bits of float32, one of them empty."""
    rng = np.random.default_rng(3)
    dense = rng.random((n, D)).astype(np.float32) * (rng.random((n, D)) < 0.3)
    dense[4], dense[5:9] = 0, dense[5:9] > 0
    return csr_from(dense)


def split_into(model: Model, out: Path, n_shards: int, registry: Registry) -> Model:
    """Split a model, move the shards into one registry, and return the front."""
    for home, labels in shard_model(model, out, "whole", n_shards):
        if labels is None:
            return Model.open(Registry(home / "models").resolve("whole"))
        path = Registry(home / "models").resolve(labels.name)
        registry.publish(labels.name, path)
    raise AssertionError("no front")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a reply takes seconds."""
    monkeypatch.setattr("xcray.service.prediction.sharded_scorer.REPLY_SECONDS", PATIENCE)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    folder = tmp_path_factory.mktemp("shards")
    app = create_app(settings_for(folder / "home", models_loaded=20))
    registry = app.state.app_state.registry
    models = {}
    for kind in ("plain", "groups"):
        whole = write(folder / kind, kind)
        fronts = {n: split_into(whole, folder / f"{kind}-{n}", n, registry) for n in SHARDS}
        models[kind] = Split(Predictor(whole), fronts)
    with serving(app) as url:
        yield Shards(url, models)


def predictor_of(front: Model, addresses: list[str], **how: Any) -> Predictor:
    """Return the predictor of a front whose shards have these addresses."""
    each = [ShardService(*pair, None) for pair in zip(front.ranges, addresses, strict=True)]
    return Predictor(front, scorer=ShardedScorer(each, front.n_features, **how))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine, a shard that answers late is not a lost one."""
    monkeypatch.setattr("xcray.service.prediction.sharded_scorer.REPLY_SECONDS", 600.0)


def closed_address() -> str:
    """Return an address where nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["plain", "groups"])
@pytest.mark.parametrize("n_shards", SHARDS)
def test_labels_and_scores_are_those_of_the_whole_model(
    shards: Shards, kind: str, n_shards: int
) -> None:
    """Also ties at the borders, more labels than a shard has, filters and several requests."""
    whole, fronts = shards.models[kind]
    sharded, X = predictor_of(fronts[n_shards], [shards.url] * n_shards), rows()
    ends = [each.end for each in fronts[n_shards].ranges]
    filters: list[dict[str, Any]] = [{}, {"allow": [0, 5, 19, 21, 40]}, {"deny": [5, 20]}]
    filters += [{"allow": [ends[0] - 1, *range(ends[0], min(ends[0] + 2, K))]}]
    for k in (1, 3, 7, K, 2 * K):
        for among in filters:
            expected, got = whole.search(X, k, **among), sharded.search(X, k, **among)
            assert got.labels.tolist() == expected.labels.tolist()
            assert got.scores.tobytes() == expected.scores.tobytes()
            assert got.exact.all()
            assert (got.bound_gap >= 0).all()
            assert not got.missing.any()
    assert len(np.unique(whole.search(X, K).scores[5])) < K / 2  # there are ties


def test_the_bound_of_the_certificate_holds(shards: Shards) -> None:
    """No label outside the answer has a score above the k-th one minus `bound_gap`."""
    whole, fronts = shards.models["plain"]
    X, k = rows(), 3
    got = predictor_of(fronts[4], [shards.url] * 4).search(X, k)
    everything = whole.search(X, K).scores
    assert (everything[:, k] <= got.scores[:, k - 1] - got.bound_gap + 1e-12).all()
    assert (got.labels_scored > 0).any()


def test_many_rows_and_none(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are sent in several requests."""
    monkeypatch.setattr("xcray.service.prediction.sharded_scorer.ROWS_PER_REQUEST", 7)
    whole, fronts = shards.models["plain"]
    sharded, X = predictor_of(fronts[2], [shards.url] * 2), rows()
    assert sharded.search(X, 5).scores.tobytes() == whole.search(X, 5).scores.tobytes()
    assert sharded.search(csr([0], [], [], D), 5).labels.shape == (0, 5)


def test_each_request_has_its_own_time_and_what_is_left_of_the_deadline(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rows take several requests: the limit of a reply is not for all of them."""
    monkeypatch.setattr("xcray.service.prediction.sharded_scorer.ROWS_PER_REQUEST", 7)
    asked: list[ShardQuestion] = []
    send = ShardService.send
    monkeypatch.setattr(
        ShardService, "send", lambda shard, each: (asked.append(each), send(shard, each))[1]
    )
    sharded = predictor_of(shards.models["plain"].fronts[1], [shards.url])
    sharded.search(rows(), 5, deadline_ms=5e4)
    ends, deadlines = [], []
    for each in asked:
        deadlines.append(json.loads(each.body)["deadline_ms"])
        ends.append(each.end - deadlines[-1] / 1e3)
    assert len(asked) == 5
    assert deadlines == sorted(set(deadlines), reverse=True)
    assert ends == sorted(set(ends))


def test_a_shard_that_is_not_reached_leaves_time_for_the_others(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of a machine that is off: its packets are lost, and nothing refuses them."""
    asked: list[float] = []

    class Unreached(HTTPConnection):
        def connect(self) -> None:
            asked.append(float(self.timeout or 0.0))
            raise TimeoutError

    sharded = predictor_of(
        shards.models["plain"].fronts[2], ["http://127.0.0.1:1", shards.url], partial=True
    )
    lost = sharded.scorer._shards[0]  # type: ignore[attr-defined]
    monkeypatch.setattr(lost, "_connect", lambda: Unreached("127.0.0.1", 1))
    answer = sharded.search(rows(), 5)
    assert asked == [CONNECT_SECONDS]
    assert (answer.missing == lost.labels.end).all()


def test_a_lost_shard_is_an_error_or_a_marked_answer(
    shards: Shards, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the labels, not the address; the log has it, once."""
    whole, fronts = shards.models["plain"]
    front, gone, X = fronts[4], closed_address(), rows()
    addresses = [shards.url, gone, shards.url, shards.url]
    lost = front.ranges[1]
    strict = predictor_of(front, addresses)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(Unavailable, match="shard 2 of 4") as error:
                strict.search(X, 5)
    assert error.value.code == "SHARD"
    assert gone.rpartition(":")[2] not in str(error.value)
    assert f"labels {lost.begin} to {lost.end - 1}" in str(error.value)
    assert sum("does not answer" in record.message for record in caplog.records) == 1
    partial = predictor_of(front, addresses, partial=True).search(X, 5)
    expected = whole.search(X, 5, deny=list(range(lost.begin, lost.end)))
    assert partial.labels.tolist() == expected.labels.tolist()
    assert not partial.exact.any()
    assert (partial.missing == lost.end - lost.begin).all()
    # a range without allowed labels is not asked
    got = strict.search(X, 5, allow=[lost.end, lost.begin - 1])
    assert got.exact.all()
    assert got.labels.shape == (30, 2)
    with pytest.raises(Unavailable):  # none is left to answer
        predictor_of(front, [gone] * 4, partial=True).search(X, 5)


def test_a_shard_of_another_model_is_not_an_answer(shards: Shards) -> None:
    """The content hash in each reply is compared."""
    front = shards.models["plain"].fronts[2]
    first, second = front.ranges
    wrong = [ShardService(first._replace(sha256="0" * 64), shards.url, None)]
    scorer = ShardedScorer([*wrong, ShardService(second, shards.url, None)], D)
    with pytest.raises(Unavailable, match="shard 1 of 2"):
        Predictor(front, scorer=scorer).search(rows(), 5)


def test_a_connection_that_the_service_closed_is_opened_again(shards: Shards) -> None:
    """As a service does with idle connections."""
    front = shards.models["plain"].fronts[1]
    shard = ShardService(front.ranges[0], shards.url, None)
    sharded = Predictor(front, scorer=ShardedScorer([shard], D))
    first = sharded.search(rows(), 5)
    [connection] = shard._idle
    connection.sock.shutdown(socket.SHUT_RDWR)
    assert sharded.search(rows(), 5).labels.tolist() == first.labels.tolist()
    assert list(shard._idle) == [connection]


def test_ranges_have_about_the_same_cost_and_are_never_empty(shards: Shards) -> None:
    whole = shards.models["plain"].whole.model
    for n_shards in (1, 2, 7, K):
        borders = range_borders(whole, n_shards)
        assert borders[0] == 0
        assert borders[-1] == K
        assert (np.diff(borders) > 0).all()
    assert abs(range_borders(whole, 2)[1] - K / 2) < 5


def test_what_cannot_be_split_says_why(shards: Shards, tmp_path: Path) -> None:
    whole, front = shards.models["plain"].whole.model, shards.models["plain"].fronts[2]
    with pytest.raises(ParameterError, match="42 shards: it must be 1 to 41"):
        list(shard_model(whole, tmp_path, "a", 42))
    with pytest.raises(ParameterError, match="not allowed"):
        list(shard_model(whole, tmp_path, "My Model", 2))
    assert not list(tmp_path.iterdir())  # before the shards are written
    softmax = ModelContent(whole.W, whole.b, whole.labels, whole.features, link="softmax")
    with pytest.raises(ParameterError, match="sums over all labels"):
        list(shard_model(write_model(tmp_path / "s", softmax, RECORD), tmp_path, "a", 2))
    with pytest.raises(ParameterError, match="in 2 shards") as error:
        Predictor(front)
    assert error.value.code == "IN_SHARDS"
    with pytest.raises(ParameterError, match="explain them with the model before"):
        predictor_of(front, [shards.url] * 2).explain(csr_from(np.eye(1, D)), 0)


def test_what_a_killed_call_left_is_removed_and_another_call_waits(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a call would remove what another one writes, or publish a shard twice."""

    def write(model: Model, path: Path, begin: int, end: int) -> None:
        with open(tmp_path / "shard-1" / ".sharding.lock") as lock:
            assert not try_lock(lock)
        _write_shard(model, path, begin, end)

    monkeypatch.setattr("xcray.training.edit.shards._write_shard", write)
    homes = [tmp_path / name for name in ("shard-1", "front")]
    for home in homes:
        (home / ".sharding-abc" / "whole").mkdir(parents=True)
    list(shard_model(shards.models["plain"].whole.model, tmp_path, "whole", 1))
    for home in homes:
        assert {path.name for path in home.iterdir()} == {"models", ".sharding.lock"}


def test_the_entries_of_a_manifest_are_checked(shards: Shards) -> None:
    manifest = shards.models["plain"].fronts[2].manifest
    first, second = manifest["stages"][0]["shards"]
    for wrong in (
        [first],
        [second, first],
        [first, {**second, "name": "../a"}],
        [first, {**second, "end": 40.5}],
        [first, {"name": "a"}],
        [1],
    ):
        with pytest.raises(Corrupt):
            ranges_of({**manifest, "stages": [{"shards": wrong}]})


def test_the_service_answers_for_a_model_in_shards(tmp_path: Path) -> None:
    """Over /v1 and /v2, with texts; a lost shard is 503, or an answer with a warning."""
    shards_app = create_app(settings_for(tmp_path / "shards"))
    whole = text_model(tmp_path / "whole")
    front = split_into(whole, tmp_path / "split", 2, shards_app.state.app_state.registry)
    body = {"instances": [{"text": "rows of a csv file"}], "top_k": 3, "certificate": True}
    rows_file = tmp_path / "rows.jsonl"
    rows_file.write_text('{"text": "rows of a csv file"}\n')
    expected = Predictor(whole).search("rows of a csv file", 3)

    def ask(http: httpx.Client, path: str = "v1/models/whole:predict") -> httpx.Response:
        return http.post(path, json=body)

    with serving(shards_app) as url:
        for addresses, partial, status in (
            ((url,), False, 200),
            ((url, closed_address()), False, 503),
            ((url, closed_address()), True, 200),
            ((url, url, url), False, 503),
        ):
            name = f"front-{len(addresses)}-{partial}"
            settings = settings_for(
                tmp_path / name,
                shards=addresses,
                shards_partial=partial,
                dataset_roots=[tmp_path],
            )
            app = create_app(settings)
            Registry(settings.home / "models").publish("whole", _copy(front, tmp_path / "copy"))
            with client_of(app) as http:
                reply = ask(http)
                assert reply.status_code == status, reply.text
                batch = http.post(
                    "v1/models/whole:batchPredict",
                    json={"path": str(rows_file), "format": "jsonl"},
                )
                assert (batch.status_code, batch.json()["code"]) == (422, "IN_SHARDS")
                v2 = http.post(
                    "v2/models/whole/infer",
                    json={
                        "inputs": [
                            {
                                "name": "text",
                                "shape": [1],
                                "datatype": "BYTES",
                                "data": ["rows of a csv file"],
                            }
                        ]
                    },
                )
                assert v2.status_code == (200 if len(addresses) == 1 else 503), v2.text
            if status == 503:
                assert reply.json()["code"] == "SHARD"
                continue
            [prediction] = reply.json()["predictions"]
            if partial:
                assert reply.json()["warnings"][0]["code"] == "PARTIAL"
                assert prediction["certificate"]["exact"] is False
                continue
            assert reply.json()["model"]["sha256"] == whole.sha256
            assert prediction["scores"] == expected.scores[0].tolist()
            assert prediction["labels"] == [whole.label_name(j) for j in expected.labels[0]]


def _copy(model: Model, target: Path) -> Path:
    """Copy the directory of a model."""
    shutil.copytree(model.path, target)
    return target
