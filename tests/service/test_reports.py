"""Histograms of data sets, reports of versions, their differences, and their files."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from tests.support.live_service import PATIENCE, serving, settings_for
from tests.support.report_data import series_of
from xcray.client import Client
from xcray.data.dataset import Dataset
from xcray.errors import NotFound, ParameterError
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.plots.picture import Picture
from xcray.plots.trainings import runs_picture
from xcray.service.app import create_app
from xcray.service.child_work import compare_in_child
from xcray.service.datasets import histograms
from xcray.service.routes import comparisons
from xcray.service.routes.dataset_requests import find_ready
from xcray.training.edit.labels import rename_labels
from xcray.training.evaluation import evaluate_models
from xcray.training.report.pictures import model_pictures
from xcray.training.run import train
from xcray.training.spec import TrainSpec


class Service(NamedTuple):
    """A served app with a READY and a BUILDING data set and two versions of the model `topics`."""

    http: httpx.Client
    data: Dataset
    dataset_id: str
    building_id: str
    models: dict[int, Model]
    registry: Registry
    store: JobStore


@pytest.fixture(scope="module")
def service(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("reports")
    app = create_app(settings_for(folder / "home"))
    state = app.state.app_state
    shutil.copytree(tiny.path, folder / "data")
    record = state.store.datasets.add("small", str(folder / "data"), stats={"n_labels": 40})
    unfinished = state.store.datasets.add("new", str(folder / "new"), status="BUILDING")
    registry, models = state.registry_of("default"), {}
    for version, lam in ((1, 0.01), (2, 0.1)):
        spec = TrainSpec(dataset=str(tiny.path), pool="serial", params={"lam": lam})
        train(spec, run_dir=folder / f"run{version}", out=folder / f"m{version}")
        registry.publish("topics", folder / f"m{version}")
        models[version] = Model.open(registry.resolve(f"topics:{version}"))
    with (
        serving(app) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE) as http,
    ):
        yield Service(http, tiny, record.id, unfinished.id, models, registry, state.store)


def test_histograms_and_examples_of_a_data_set(service: Service) -> None:
    found = service.http.get(f"/v1/datasets/{service.dataset_id}/histograms?examples=3").json()
    assert sum(found["rows_per_label"]["counts"]) == service.data.n_labels
    train_part, split = found["parts"]["train"], service.data.train
    lengths = np.diff(split.X.indptr)
    edges = train_part["features_per_row"]["edges"]
    assert edges[:4] == [0, 1, 2, 4]
    assert train_part["features_per_row"]["counts"] == np.histogram(lengths, edges)[0].tolist()
    assert edges[-1] > lengths.max()
    assert [row["row"] for row in train_part["examples"]] == [
        0,
        (split.n_rows - 1) // 2,
        split.n_rows - 1,
    ]
    first = train_part["examples"][0]
    assert first["labels"] == [service.data.label_names[j] for j in split.Y.row(0)]
    values = [each["value"] for each in first["features"]]
    assert values == sorted(split.X.row(0)[1].tolist(), key=abs, reverse=True)[:20]


def test_the_rows_read_are_bounded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histograms, "MAX_SAMPLED_ROWS", 10)
    part = histograms.dataset_histograms(service.data, 0)["parts"]["train"]
    assert (part["sampled_rows"], part["n_rows"]) == (10, service.data.train.n_rows)
    assert sum(part["labels_per_row"]["counts"]) == 10
    assert part["examples"] == []


def test_a_data_set_that_is_not_ready_is_refused(service: Service) -> None:
    answer = service.http.get(f"/v1/datasets/{service.building_id}/histograms")
    assert (answer.status_code, answer.json()["code"]) == (409, "DATASET_NOT_READY")
    assert service.http.get("/v1/datasets/ds_none/histograms").status_code == 404


def test_a_name_selects_the_newest_data_set_that_did_not_fail(service: Service) -> None:
    state: Any = SimpleNamespace(store=service.store)
    old = service.store.datasets.add("twice", str(service.data.path))
    service.store.datasets.add("twice", "/nowhere", status="FAILED")
    assert find_ready(state, "default", "twice").id == old.id
    new = service.store.datasets.add("twice", "/nowhere", status="BUILDING")
    body = {"dataset": "twice", "model": "m"}
    refused = service.http.post("/v1/jobs", json=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "DATASET_NOT_READY")
    assert f"{new.id} of the name twice is BUILDING" in refused.json()["detail"]
    assert f"an older one, {old.id}" in refused.json()["detail"]
    assert find_ready(state, "default", old.id).id == old.id


def test_the_report_of_a_version(service: Service) -> None:
    found = service.http.get("/v1/models/topics/versions/2/report").json()
    assert found["params"]["lam"] == 0.1
    assert found["calibration"] is None
    assert found["training"]["labels"] == service.models[2].n_labels
    label_table = service.models[2].label_table
    assert label_table is not None
    positives = label_table.column("positives").to_numpy() > 0
    assert sum(found["gaps"]["counts"]) == positives.sum()
    limit = found["gaps"]["edges"].index(pytest.approx(found["gaps"]["eps"]))
    assert sum(found["gaps"]["counts"][limit:]) == 0  # every label reached its certificate


def test_pictures_are_those_of_the_report(service: Service) -> None:
    path = "/v1/models/topics/versions/2"
    names = service.http.get(f"{path}/report").json()["pictures"]
    drawn = model_pictures(service.models[2], "topics, version 2")
    assert names == [name for name, each in drawn.items() if isinstance(each, Picture)]
    assert {"by_frequency", "certificates", "timeline"} <= set(names)
    for name in names:
        answer = service.http.get(f"{path}/pictures/{name}?width=500")
        assert answer.headers["content-type"].startswith("image/svg+xml")
        picture = drawn[name]
        assert isinstance(picture, Picture)
        assert answer.text == picture.svg(500)
        known = {"if-none-match": answer.headers["etag"]}
        again = service.http.get(f"{path}/pictures/{name}?width=500", headers=known)
        assert again.status_code == 304
    missing = service.http.get(f"{path}/pictures/calibration")
    assert missing.status_code == 404
    assert "there is no picture calibration" in missing.json()["detail"]
    unknown = service.http.get(f"{path}/pictures/nothing").json()["detail"]
    assert unknown.endswith("there are: by_frequency, costs, certificates, timeline")
    assert service.http.get(f"{path}/pictures/timeline?width=10").status_code == 422
    whole, recall = (
        service.http.get(f"{path}/pictures/by_frequency?{query}") for query in ("", "panel=2")
    )
    assert "Recall and precision" in recall.text
    assert {"P@1", "recall@1"} <= set(series_of(whole.text))
    assert "P@1" not in series_of(recall.text)
    missing = service.http.get(f"{path}/pictures/by_frequency?panel=99")
    assert (missing.status_code, missing.json()["detail"]) == (
        404,
        "picture by_frequency has panels 1 to 4",
    )


def test_the_picture_of_a_data_set_has_its_counts(service: Service) -> None:
    found = service.http.get(f"/v1/datasets/{service.dataset_id}/histograms").json()
    svg = service.http.get(f"/v1/datasets/{service.dataset_id}/picture").text
    labels = [int(each.rpartition(": ")[2]) for each in series_of(svg)["labels"]]
    assert labels == found["rows_per_label"]["counts"]
    answer = service.http.get(f"/v1/datasets/{service.building_id}/picture")
    assert (answer.status_code, answer.json()["code"]) == (409, "DATASET_NOT_READY")


def test_the_objective_of_a_job_has_its_epochs(service: Service) -> None:
    store = service.store
    store.jobs.submit(JobSubmission({"dataset": "/nowhere", "name": "m"}, name="m"))
    job = store.attempts.claim("test", lease_seconds=600)
    assert job is not None
    path = f"/v1/jobs/{job.id}/pictures"
    assert service.http.get(f"{path}/objective").status_code == 404
    for epoch, objective in ((1, 9.0), (2, 8.0), (3, 7.0), (2, 6.5), (3, 6.0)):  # it went back
        data = {"epoch": epoch, "objective": objective}
        store.attempts.append_event(job.id, job.attempt, "epoch", data)
    drawn = series_of(service.http.get(f"{path}/objective").text)
    assert drawn == {"training objective": ["1: 9", "2: 6.5", "3: 6"]}
    assert service.http.get(f"{path}/timeline").status_code == 404


def test_models_are_listed_by_page(service: Service, tmp_path: Path) -> None:
    for name in set(service.registry.names()) - {"topics"}:  # of other tests
        for version in service.registry.versions(name):
            service.registry.delete(name, version)
    for name in ("beta", "alpha-1", "alpha-2"):
        shutil.copytree(service.models[1].path, tmp_path / name)
        service.registry.publish(name, tmp_path / name)

    def listed(query: str) -> tuple[list[str], int, str | None]:
        page = service.http.get(f"/v1/models?{query}").json()
        return [each["name"] for each in page["models"]], page["total"], page["next_page_token"]

    everything = ["alpha-1", "alpha-2", "beta", "topics"]
    assert listed("") == (everything, 4, None)
    names, total, token = listed("limit=3")
    assert (names, total) == (everything[:3], 4)
    assert listed(f"limit=3&page_token={token}") == (["topics"], 4, None)
    assert listed("contains=ALPHA&limit=1") == (["alpha-1"], 2, "alpha-1")
    assert listed("contains=alpha&limit=2") == (["alpha-1", "alpha-2"], 2, None)
    assert listed("loaded=true") == ([], 0, None)
    assert service.http.get("/v1/models/beta/labels?limit=1").is_success  # loads it
    assert listed("loaded=true") == (["beta"], 1, None)
    assert listed("page_token=zzz") == ([], 4, None)


def test_models_are_sorted_by_their_latest_versions(service: Service, tmp_path: Path) -> None:
    shutil.copytree(service.models[1].path, tmp_path / "again")
    service.registry.publish("older", tmp_path / "again")

    def names(order: str, **more: Any) -> list[str]:
        found = service.http.get("/v1/models", params={"sort": order, **more}).json()
        return [model["name"] for model in found["models"]]

    created = names("created")
    versions = [service.registry.versions(name)[-1] for name in created]
    found = [service.registry.describe(*each) for each in zip(created, versions, strict=True)]
    assert [each.created for each in found] == sorted((e.created for e in found), reverse=True)
    sizes = {each.name: each.n_bytes for each in found}
    assert [sizes[name] for name in names("size")] == sorted(sizes.values(), reverse=True)
    assert names("created", limit=1, page_token=created[0]) == created[1:2]
    assert names("created", page_token="deleted since") == created
    shown = service.http.get("/v1/models/topics").json()["latest"]
    held_out = service.data.test.n_rows if service.data.test else 0
    assert (shown["dataset_name"], shown["held_out"]) == (service.data.name, held_out)


def test_models_that_are_deleted_while_they_are_listed_are_left_out(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.registry, "names", lambda: ["gone", "topics"])
    for order in ("name", "created"):
        answer = service.http.get("/v1/models", params={"sort": order})
        assert [each["name"] for each in answer.json()["models"]] == ["topics"]

    def deleted(*_: object) -> None:
        raise NotFound("there is no model topics:2")

    monkeypatch.setattr(service.registry, "describe", deleted)
    for order in ("name", "created"):
        answer = service.http.get("/v1/models", params={"sort": order})
        assert [each["latest"] for each in answer.json()["models"]] == [None]


def test_models_are_compared_on_the_same_rows(service: Service) -> None:
    body = {"models": ["topics:1", "topics"], "dataset": "small"}
    with Client(str(service.http.base_url)) as client:
        first, second = client.models.compare(["topics:1", "topics"], "small")["models"]
    expected = evaluate_models([model.path for model in service.models.values()], service.data.path)
    assert [first["model"], second["model"]] == ["topics:1", "topics:2"]
    assert second["differences"] == expected["models"][1]["differences"]
    assert (second["gate"], second["passed"]) == ([], True)
    changed = second["labels_gained"] + second["labels_lost"]
    assert all(1 <= each["rows"] and each["hits"][0] != each["hits"][1] for each in changed)
    with Client(str(service.http.base_url)) as client:
        gate = "P@1 >= -100, nDCG@2 >= 100.5"
        found = client.models.compare(body["models"], "small", gate=gate)["models"][1]
        assert [each["passed"] for each in found["gate"]] == [True, False]
        assert found["gate"][1]["difference"] == 100 * found["differences"]["nDCG@2"]["difference"]
        assert not found["passed"]
        with pytest.raises(ParameterError, match="write a measure"):
            client.models.compare(body["models"], "small", gate="P@1")
    body["models"] = ["topics:1", "topics:9"]
    assert service.http.post("/v1/models:compare", json=body).status_code == 404
    body["models"] = ["topics:1"]
    assert service.http.post("/v1/models:compare", json=body).status_code == 422


def test_a_comparison_names_the_version_that_was_deleted_meanwhile(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        shutil.copytree(service.models[number].path, tmp_path / str(number))
        service.registry.publish("brief", tmp_path / str(number))

    def compare(models: Any, *more: Any) -> dict[str, Any]:
        service.registry.delete("brief", 1)
        return compare_in_child(models, *more)

    monkeypatch.setattr(comparisons, "compare_in_child", compare)
    body = {"models": ["brief:1", "topics:1"], "dataset": "small"}
    answer = service.http.post("/v1/models:compare", json=body)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
    assert "no model brief:1" in answer.json()["detail"]


def test_models_without_a_common_label_and_one_model_twice_are_compared(
    service: Service, tmp_path: Path
) -> None:
    names = service.data.label_names.to_pylist()
    rename_labels(service.models[1].path, tmp_path / "m", {name: f"x{name}" for name in names})
    service.registry.publish("others", tmp_path / "m")
    body = {"models": ["others", "topics:2"], "dataset": "small"}
    answer = service.http.post("/v1/models:compare", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "NO_COMMON_LABEL")
    assert answer.json()["detail"].startswith("model others:1 has no label of data set")
    body["models"] = ["topics:2", "topics"]
    found = service.http.post("/v1/models:compare", json=body).json()["models"]
    assert [each["model"] for each in found] == ["topics:2", "topics:2"]
    assert found[1]["differences"]["P@1"]["difference"] == 0.0


def test_the_trainings_on_a_data_set_are_drawn(service: Service) -> None:
    jobs = service.store.jobs
    spec = {"solver": "ppdsparse"}
    job, _ = jobs.submit(JobSubmission(spec, name="Drawn", dataset_id=service.dataset_id))
    path = f"/v1/datasets/{service.dataset_id}/pictures/runs"
    assert "0 trainings" in service.http.get(path).text
    picture = runs_picture([("ppdsparse", 2.0, 0.5), ("dismec", 4.0, 0.6)], "small").svg(600)
    assert "2 trainings" in picture
    assert list(series_of(picture)) == ["ppdsparse", "dismec"]
    assert series_of(runs_picture([("ppdsparse", 0.003, 0.5)] * 2, "small").svg(600))
    found = service.http.get("/v1/jobs", params={"contains": "drAW"}).json()["jobs"]
    assert [each["id"] for each in found] == [job.id]
    assert service.http.get("/v1/jobs", params={"contains": "%"}).json()["jobs"] == []
    jobs.request_stop(job.id, "default")


def test_differences_of_versions(service: Service) -> None:
    found = service.http.get("/v1/models/topics:diff").json()
    assert [each["version"] for each in found["versions"]] == [1, 2]
    assert found["params"] == {"lam": [0.01, 0.1]}
    assert found["added"] == found["removed"] == {"count": 0, "first": []}
    assert found["identical"] + found["changed"]["count"] == service.models[1].n_labels
    same = service.http.get("/v1/models/topics:diff?from=2&to=2").json()
    assert same["same_content"]
    assert (same["params"], same["changed"]["count"]) == ({}, 0)
    assert service.http.get("/v1/models/topics:diff?from=3").status_code == 404
    assert service.http.get("/v1/models/nothing:diff").status_code == 404


def read_member(archive: tarfile.TarFile, name: str) -> bytes:
    """Return the content of a file in an archive."""
    file = archive.extractfile(name)
    assert file is not None, name
    return file.read()


def test_the_archive_is_the_model_directory(service: Service, tmp_path: Path) -> None:
    answer = service.http.get("/v1/models/topics/versions/1/archive")
    assert int(answer.headers["content-length"]) == len(answer.content)
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as file:
        names = file.getnames()
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(read_member(file, name))
    assert names[0] == "topics-1/manifest.json"
    assert Model.open(tmp_path / "topics-1").sha256 == service.models[1].sha256
