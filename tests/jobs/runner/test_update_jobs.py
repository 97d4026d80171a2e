"""Updates over REST: a data set changed by uploads, and a job that updates a version to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.live_service import LABELS, TEXTS, serving, settings_for
from xcray.cli.main import main
from xcray.client import Client
from xcray.data.dataset import Dataset
from xcray.errors import InputError, NotFound, ParameterError
from xcray.jobs.runner.main import run_attempt
from xcray.jobs.runner.monitor import MonitorOptions
from xcray.jobs.states import SUCCEEDED
from xcray.jobs.store.attempts import AttemptTable
from xcray.model.aliases import Aliases
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.service.app import create_app
from xcray.service.app_state import AppState
from xcray.training.edit.apply import EditOptions
from xcray.training.edit.update import update_model

PATIENT = MonitorOptions(
    lease_seconds=600.0, heartbeat_seconds=0.05, report_seconds=0.02, stop_grace_seconds=600.0
)


class ServerSetup(NamedTuple):
    """A served app and a client; jobs run only when the test runs them."""

    app_state: AppState
    client: Client
    url: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSetup]:
    app = create_app(settings_for(tmp_path_factory.mktemp("updates") / "home", pool="serial"))
    with serving(app) as url, Client(url) as client:
        yield ServerSetup(app.state.app_state, client, url)


def run_next(server: ServerSetup) -> str:
    """Run the pending job in this process and return its new status."""
    store = server.app_state.store
    job = store.attempts.claim("test", lease_seconds=600)
    assert job is not None
    return run_attempt(store, server.app_state.home, job.id, job.attempt, options=PATIENT)


def write_rows(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    """Write rows of an id, a text and a label as JSON lines."""
    keys = ("id", "text", "labels")
    path.write_text(
        "".join(
            json.dumps(dict(zip(keys, (*row[:2], [row[2]]), strict=True))) + "\n" for row in rows
        )
    )
    return path


class Killed(BaseException):
    """Stands in for the death of the process."""


def die(*_: object, **__: object) -> int:
    raise Killed


def die_at(server: ServerSetup, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Run the pending job until it calls a method, where its process dies; queue it again."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(Killed):
            run_next(server)
    job = next(server.client.jobs.list())
    server.app_state.store.attempts.mark_lost(job["id"], job["attempt"], max_attempts=9)


def finish(server: ServerSetup) -> dict[str, Any]:
    """Run the pending job and return its result."""
    assert run_next(server) == SUCCEEDED
    result = next(server.client.jobs.list())["result"]
    assert result is not None
    return result


def test_a_version_is_updated_to_a_changed_data_set(
    server: ServerSetup,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An attempt that dies before it publishes leaves its work; `update_model` gives the same."""
    client, state = server.client, server.app_state
    examples = zip(TEXTS * 6, LABELS * 6, strict=True)
    rows = [(f"r{i}", f"{text} {i % 3}", label) for i, (text, label) in enumerate(examples)]
    file, test = write_rows(tmp_path / "rows", rows), write_rows(tmp_path / "test", rows[:5])
    base = client.datasets.upload(
        file, name="docs", format="jsonl", test=test, options={"id_field": "id"}
    )
    client.datasets.wait(base["id"], seconds=600)
    client.jobs.submit(dataset="docs", model="docs", keep_duals=True)
    assert run_next(server) == SUCCEEDED
    (tmp_path / "ids").write_text("r0\n")
    (tmp_path / "labels").write_text('{"row": "r1", "labels": ["csv"]}\n')
    files = {"remove": tmp_path / "ids", "relabel": tmp_path / "labels"}
    added = write_rows(tmp_path / "new", [("n1", "read a csv file again", "new")])
    made = client.datasets.change("docs", name="docs-2", add=added, **files)
    client.datasets.wait(made["id"], seconds=600)
    path = state.store.datasets.get(made["id"], "default").path
    data = Dataset.open(path)
    assert (data.name, data.train.n_rows) == ("docs-2", len(rows))
    with pytest.raises(InputError, match="or `base` of POST /v1/datasets"):
        client.jobs.update("docs", dataset="docs")
    with pytest.raises(InputError, match="lam"):
        client.jobs.update("docs", dataset="docs-2", lam=1.0)
    with pytest.raises(ParameterError, match="a `base` is changed by uploads"):
        client.datasets.change("docs", name="x")
    for more in ({"base": "docs", "path": "/rows.jsonl"}, {"format": "pydocs", "base": "docs"}):
        body = {"name": "x", "format": "jsonl", "uploads": {"train": "up-1"}, **more}
        with pytest.raises(ParameterError, match="a `base` is changed by uploads"):
            client.datasets._create(body)
    with pytest.raises(ParameterError, match="write a measure"):
        client.jobs.update("docs", dataset="docs-2", gate="P@1")
    with pytest.raises(ParameterError, match="P@900, and the model"):
        client.jobs.update("docs", dataset="docs-2", gate="P@900 >= 0")
    with pytest.raises(ParameterError, match="choose another name"):
        client.jobs.update("docs", dataset="docs-2", alias="latest")
    for what, more, message in (
        ("rows", {"labels": ["csv"]}, "does not take labels"),
        ("calibrate", {"into": "x"}, "does not take into"),
        ("remove", {"labels": ["csv"], "precision": 0.5}, "does not take precision"),
        ("thresholds", {"objective": "precision"}, "give the precision"),
        ("merge", {"labels": ["csv", "io"]}, "set `into`"),
        ("merge", {"labels": ["csv"], "into": "x"}, "at least 2"),
        ("rename", {"labels": ["csv", "io"], "into": "x"}, "one label"),
        ("remove", {}, "at least 1"),
        ("retrain", {"labels": ["csw"]}, "did you mean 'csv'"),
        ("grow", {}, "calibrate"),
    ):
        with pytest.raises((InputError, ParameterError, NotFound), match=message):
            client.jobs.update("docs", dataset="docs-2", change=what, **more)
    state.registry.aliases.set("docs", "prod", 1)
    job = client.jobs.update("docs@latest", dataset="docs-2", idempotency_key="once")
    assert client.jobs.update("docs@latest", dataset="docs-2", idempotency_key="once") == job
    assert (job["kind"], job["spec"]["update"]) == ("train", "docs:1")
    assert str(state.home.path) not in json.dumps(job)
    die_at(server, monkeypatch, Registry, "publish")
    result = finish(server)
    assert (result["version"], result["report"]["update"]["rows"]["relabelled"]) == (2, 1)
    assert "P@1" in result["measures"]
    assert "drift" in result["report"]
    old = state.registry.resolve("docs:1")
    alone = update_model(old, path, tmp_path / "alone", EditOptions(pool="serial"))
    assert alone.sha256 == result["sha256"]
    assert Model.open(state.registry.resolve("docs")).duals is not None
    assert "comparison" not in result
    assert state.registry.aliases.of("docs")["prod"] == 1
    # the alias moves to a version that passes the gate, and also if the attempt after it publishes
    for gate, version in (("P@1 >= 100.5", 1), ("P@1 >= -100, nDCG@2 >= -100", 4)):
        job = client.jobs.update("docs:1", dataset="docs-2", gate=gate, alias="prod")
        if version > 1:
            die_at(server, monkeypatch, Aliases, "set_split")
        result = finish(server)
        assert result["comparison"]["passed"] == (version > 1)
        assert state.registry.aliases.of("docs")["prod"] == version
        status = main(["jobs", "watch", job["id"], "--server", server.url])
        assert (status, "FAILED: P@1 >= +100.5" in capsys.readouterr().out) == (
            int(version == 1),
            version == 1,
        )
    # a canary: the version before keeps the rest, also if the attempt dies after the move
    for alias in (None, "absent"):
        with pytest.raises(ParameterError, match="give an alias that exists"):
            client.jobs.update("docs:1", dataset="docs-2", alias=alias, weight=0.25)
    client.jobs.update("docs:1", dataset="docs-2", alias="prod", weight=0.25)
    die_at(server, monkeypatch, AttemptTable, "finish")
    assert finish(server)["alias"] == "prod"
    split = state.registry.aliases.find_split("docs", "prod")
    assert split is not None
    assert split.shares == ((4, 0.75), (5, 0.25))
    # an attempt that follows leaves the alias where an operator has put it
    client.jobs.update("docs:1", dataset="docs-2", alias="prod")
    die_at(server, monkeypatch, AttemptTable, "finish")
    assert state.registry.aliases.of("docs")["prod"] == 6
    state.registry.aliases.set_split("docs", "prod", split)
    result = finish(server)
    assert ("alias" in result, result["warnings"][0]["code"]) == (False, "ALIAS_CHANGED")
    assert state.registry.aliases.find_split("docs", "prod") == split


@pytest.mark.drill
def test_a_version_gets_probabilities_thresholds_and_other_labels(
    server: ServerSetup, tmp_path: Path
) -> None:
    client, registry = server.client, server.app_state.registry
    examples = zip(TEXTS * 60, LABELS * 60, strict=True)
    rows = [
        (f"r{i}", f"{text} a{i % 17} b{i % 19}", label) for i, (text, label) in enumerate(examples)
    ]
    file, test = (
        write_rows(tmp_path / "rows", rows[:100]),
        write_rows(tmp_path / "test", rows[100:]),
    )
    made = client.datasets.upload(file, name="topics", format="jsonl", test=test)
    client.datasets.wait(made["id"], seconds=600)
    client.jobs.submit(dataset="topics", model="topics")
    assert run_next(server) == SUCCEEDED
    first, second, *_ = Model.open(registry.resolve("topics")).answer_names.to_pylist()

    def change(what: str, **more: object) -> Model:
        job = client.jobs.update("topics", dataset="topics", change=what, **more)
        assert job["spec"]["change"] == what
        assert run_next(server) == SUCCEEDED
        result = client.jobs.get(job["id"])["result"]
        assert result is not None
        return Model.open(registry.resolve(f"topics:{result['version']}"))

    assert change("calibrate").calibration is not None
    fitted = change("thresholds", objective="micro-F1")
    assert fitted.manifest["label_thresholds"]["objective"] == "micro-F1"
    assert "other" in change("rename", labels=[first], into="other").answer_names.to_pylist()
    assert second not in change("remove", labels=[second]).answer_names.to_pylist()
    assert change("add", labels=[second]).answer_names.to_pylist()[-1] == second
