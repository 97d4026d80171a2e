"""Training reports: from the model's label table and timeline to pictures, by CLI and REST."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pytest

from tests.support.live_service import serving, settings_for, text_model
from tests.support.report_data import series_of
from xcray.arrays import csr_from, pattern
from xcray.cli.main import main
from xcray.client import Client
from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter
from xcray.errors import InputError, NotFound, Stopped
from xcray.jobs.states import SUCCEEDED
from xcray.measures import precision_at_k
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.schedule.events import Task
from xcray.service.app import create_app
from xcray.service.app_state import AppState
from xcray.solvers.pdsparse import PDSparseSolver
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.training import Progress, TrainResult, TrainSpec, train
from xcray.training.report.render import draw_report
from xcray.training.report.timeline import read_timeline, timeline_document
from xcray.workers.pool import StopFlag
from xcray.workers.timeline import DONE, Span, Timeline

PICTURES = {"by_frequency", "costs", "certificates", "timeline"}


@pytest.fixture(scope="module")
def trained(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Train with two threads and no speculative copies, and remove the run directory."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xcray.schedule.label_scheduler.COPY_MARGIN_SECONDS", 1e9)
        spec = TrainSpec(str(tiny.path), pool="threads", workers=2, name="tiny")
        result = train(spec, run_dir=folder / "run", out=folder / "model")
    shutil.rmtree(folder / "run")
    return result


def run(*arguments: Any) -> int:
    return main([str(each) for each in arguments])


def read(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the one JSON document on stdout; stderr must be empty."""
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_each_class_has_its_seconds_worker_and_certificate(
    trained: TrainResult, tiny: Dataset
) -> None:
    model = Model.open(trained.model_path)
    table, timeline = model.label_table, model.timeline
    assert table.column("label").to_pylist() == list(range(tiny.n_labels))
    assert table.column("positives").to_pylist() == tiny.label_counts.tolist()
    np.testing.assert_array_equal(table.column("nnz").to_numpy(), np.diff(model.W.indptr))
    assert all(table.column("certified").to_pylist())
    np.testing.assert_array_less(
        table.column("support").to_numpy() - 1, table.column("active").to_numpy()
    )
    seconds, worker = (
        table.column("seconds").to_numpy(),
        np.array(table.column("worker").to_pylist()),
    )
    assert (seconds[tiny.label_counts > 0] > 0).all()
    for name, busy in zip(
        *(timeline.column(c).to_pylist() for c in ("worker", "seconds")), strict=True
    ):
        assert name in set(worker)
        assert busy > 0
    for name in set(worker):
        of_worker = np.array(timeline.column("worker").to_pylist()) == name
        assert seconds[worker == name].sum() == pytest.approx(
            timeline.column("seconds").to_numpy()[of_worker].sum()
        )
    assert "labels" not in timeline.column_names  # they are in the class table


def test_a_resumed_training_includes_the_seconds_of_earlier_attempts(
    tiny: Dataset, tmp_path: Path
) -> None:
    stop, spec = StopFlag(), TrainSpec(str(tiny.path), pool="serial")

    def progress(step: Progress) -> None:
        if step.phase == "TRAINING" and step.done > 5:
            stop.set()

    with pytest.raises(Stopped):
        train(spec, run_dir=tmp_path / "run", out=tmp_path / "model", progress=progress, stop=stop)
    so_far = timeline_document(read_timeline(tmp_path / "run"))
    assert 5 < so_far["n_labels"] < tiny.n_labels
    model = Model.open(train(spec, run_dir=tmp_path / "run", out=tmp_path / "model").model_path)
    assert (
        model.label_table.column("seconds").null_count
        == model.label_table.column("worker").null_count
        == 0
    )
    whole = timeline_document(model.timeline)
    assert [each["attempt_of_run"] for each in whole["attempts"]] == [1, 2]
    assert whole["n_labels"] == tiny.n_labels
    done = model.timeline.filter(pc.equal(model.timeline.column("outcome"), DONE))
    assert sum(model.label_table.column("seconds").to_pylist()) == pytest.approx(
        sum(done.column("seconds").to_pylist())
    )
    assert whole["core_seconds"] == pytest.approx(sum(done.column("cpu_seconds").to_pylist()))


def test_certificates_of_records() -> None:
    records = np.array(
        [(3, 2, 0.01, 1.0), (3, 2, 0.011, 1.0), (0, 0, 0.0, 0.0), (2, -1, 0.0, 0.0)],
        [("positives", "i4"), ("rounds", "i4"), ("gap", "f8"), ("null", "f8")],
    )
    # The last label was not solved.
    assert PPDSparseSolver(eps=0.01).certified(records).tolist() == [
        True,
        False,
        True,
        False,
    ]
    joint = np.array([(1, 1), (2, 0)], [("positives", "i4"), ("certified", "u1")])
    assert PDSparseSolver().certified(joint).tolist() == [True, False]


def test_measures_by_frequency_add_up_to_the_total(trained: TrainResult, tiny: Dataset) -> None:
    groups = trained.report["by_frequency"]
    assert set(groups) == {"labels", "positives"}
    for rows in groups.values():
        assert len(rows) == 10
        assert sum(row["labels"] for row in rows) == np.count_nonzero(tiny.label_counts)
        for k in (1, 3, 5):
            assert sum(row[f"P@{k}"] for row in rows) == pytest.approx(trained.measures[f"P@{k}"])
    top = Predictor(Model.open(trained.model_path)).predict(tiny.test.X, 5)
    assert precision_at_k(top, tiny.test.Y, 5) == trained.measures["P@5"]


def test_the_report_has_pictures_and_its_figures(
    trained: TrainResult, tiny: Dataset, tmp_path: Path
) -> None:
    report = draw_report(trained.model_path, tmp_path / "out")
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())
    assert (set(report["pictures"]), report["left_out"]) == (PICTURES, {})
    for file in report["pictures"].values():
        assert series_of((tmp_path / "out" / file).read_text())
    assert report["name"] == tiny.name
    assert report["training"]["labels_certified"] == tiny.n_labels
    assert report["measures"] == trained.measures
    table = Model.open(trained.model_path).label_table
    assert report["labels"]["seconds"]["max"] == pytest.approx(
        max(table.column("seconds").to_pylist())
    )
    assert [each["seconds"] for each in report["dearest"]] == sorted(
        (each["seconds"] for each in report["dearest"]), reverse=True
    )
    assert report["loosest"][0]["relative_gap"] == pytest.approx(trained.report["largest_gap"])
    assert report["timeline"]["n_labels"] == tiny.n_labels


def test_missing_parts_of_a_bare_model_are_reported(tmp_path: Path) -> None:
    text_model(tmp_path / "bare")
    report = draw_report(tmp_path / "bare", tmp_path / "out")
    assert report["pictures"] == {}
    assert set(report["left_out"]) == PICTURES
    assert "no timeline.arrow" in report["left_out"]["timeline"]
    with pytest.raises(NotFound):
        draw_report(tmp_path / "nothing", tmp_path / "other")


def test_an_objective_that_was_never_finite_has_no_picture(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32) * np.float32(1e-42)
    with DatasetWriter(tmp_path / "data", name="data", n_labels=2) as writer:
        writer.add("train", csr_from(X), pattern(np.arange(41), np.arange(40) % 2, 2))
        writer.finish(source={"format": "made"})
    spec = TrainSpec(str(tmp_path / "data"), "dsmlr", pool="serial")
    train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    report = draw_report(tmp_path / "model", tmp_path / "out")
    assert "not a finite number" in report["left_out"]["objective"]


def test_commands_draw_pictures_and_print_results(
    trained: TrainResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("report", trained.model_path, "--out", tmp_path / "out", "--json") == 0
    assert set(read(capsys)["pictures"]) == PICTURES
    assert run("report", trained.model_path) == 0
    assert "certificates.svg" in capsys.readouterr().out
    assert (trained.model_path.parent / "model.report" / "report.json").is_file()
    assert run("timeline", trained.model_path, "--picture", tmp_path / "t.svg", "--json") == 0
    assert read(capsys) == json.loads(
        json.dumps(timeline_document(read_timeline(trained.model_path)))
    )
    assert "done" in series_of((tmp_path / "t.svg").read_text())
    assert run("timeline", trained.model_path) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split("\t")[:3] == ["worker", "batches", "labels"]
    assert {line.split("\t")[0] for line in out[1:3]} <= {"worker-0", "worker-1", out[-1]}
    assert run("timeline", tmp_path / "nothing") == 2
    assert "xcray jobs timeline" in capsys.readouterr().err


class Served(NamedTuple):
    """A service and its client."""

    app_state: AppState
    client: Client


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Yield a service in which no training runs."""
    app = create_app(settings_for(tmp_path / "home"))
    app.state.app_state.store.datasets.add("ready", str(tmp_path / "nowhere"))
    with serving(app) as url, Client(url, timeout=600.0) as client:
        yield Served(app.state.app_state, client)


def running(served: Served) -> tuple[str, int]:
    """Submit and claim a job; return its ID and attempt."""
    job = served.client.jobs.submit(dataset="ready", model="tiny")
    claimed = served.app_state.store.attempts.claim("test", lease_seconds=600)
    assert claimed is not None
    assert claimed.id == job["id"]
    return claimed.id, claimed.attempt


def test_a_jobs_timeline_and_labels_outlive_its_run(
    served: Served,
    trained: TrainResult,
    tiny: Dataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job, attempt = running(served)
    jobs = served.client.jobs
    for ask in (jobs.timeline, lambda one: list(jobs.labels(one))):
        with pytest.raises(NotFound, match=job):
            ask(job)
    folder = served.app_state.home.run(job)
    folder.mkdir(parents=True)
    with Timeline(folder) as record:
        record.add(Span("w-0", Task(4, (7, 9), 1.0), 0.5, 2.0, "done"))
        record.flush()
        so_far = jobs.timeline(job)  # while the job runs
        assert [(each["task"], each["n_labels"], each["ended"]) for each in so_far["batches"]] == [
            (4, 2, 2.5)
        ]

    expected = json.loads(
        json.dumps({"job": job, **timeline_document(read_timeline(trained.model_path))})
    )
    shutil.copytree(trained.model_path, tmp_path / "staged")
    version = served.app_state.registry.publish("tiny", tmp_path / "staged")
    served.app_state.store.attempts.finish(
        job, attempt, SUCCEEDED, result={"model": "tiny", "version": version, "measures": {}}
    )
    shutil.rmtree(folder)
    assert jobs.timeline(job) == expected
    few = jobs.timeline(job, limit=3)
    assert 1 <= len(few["batches"]) <= 3
    assert (few["thinned"], few["core_seconds"]) == (True, expected["core_seconds"])

    table = Model.open(trained.model_path).label_table.to_pylist()
    names = tiny.label_names.to_pylist()
    assert "done" in series_of(jobs.picture(job, "timeline", width=600))
    assert list(jobs.labels(job)) == [
        {**row, "number": row["label"], "label": names[row["label"]]} for row in table
    ]

    words = ("jobs", "timeline", job, "--server", served.client.url)
    assert run(*words, "--picture", tmp_path / "job.svg", "--json") == 0
    assert read(capsys) == expected
    assert "done" in series_of((tmp_path / "job.svg").read_text())
    assert run(*words) == 0
    assert f"{tiny.n_labels} labels" in capsys.readouterr().out.splitlines()[-1]


def test_pages_of_labels_and_bad_queries(
    served: Served, trained: TrainResult, tiny: Dataset, tmp_path: Path
) -> None:
    job, attempt = running(served)
    shutil.copytree(trained.model_path, tmp_path / "staged")
    version = served.app_state.registry.publish("tiny", tmp_path / "staged")
    served.app_state.store.attempts.finish(
        job, attempt, SUCCEEDED, result={"model": "tiny", "version": version, "measures": {}}
    )
    ask, sizes, token = served.client._connection.request, [], None
    while True:
        page = ask("GET", f"/v1/jobs/{job}/labels", query={"limit": 9, "page_token": token})
        sizes.append(len(page["labels"]))
        token = page["next_page_token"]
        if token is None:
            break
    assert sizes == [9] * (tiny.n_labels // 9) + [tiny.n_labels % 9] * (tiny.n_labels % 9 > 0)
    bad = [
        ("labels", {"limit": 0}),
        ("labels", {"limit": 1001}),
        ("labels", {"page_token": "zz"}),
    ]
    for noun, query in [*bad, ("timeline", {"limit": 0}), ("timeline", {"limit": 20_001})]:
        with pytest.raises(InputError):
            ask("GET", f"/v1/jobs/{job}/{noun}", query=query)
    served.app_state.registry.delete("tiny", version)
    with pytest.raises(NotFound):
        served.client.jobs.timeline(job)
