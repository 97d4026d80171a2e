"""PD-Sparse trainings: every pool, resume, command line, report, card and class table."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest

from xcray.cli.main import main
from xcray.errors import Stopped
from xcray.jobs.home import Home
from xcray.jobs.runner.main import run_attempt
from xcray.jobs.runner.monitor import MonitorOptions
from xcray.jobs.states import SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.model.model import Model
from xcray.solvers import dual_checkpoint
from xcray.training import TrainSpec, train
from xcray.workers.local_pool import ThreadPool
from xcray.workers.pool import StopFlag


@pytest.fixture(scope="module")
def reference(tiny, tmp_path_factory):
    """Return the specification and the result of a serial training."""
    folder = tmp_path_factory.mktemp("reference")
    spec = TrainSpec(str(tiny.path), solver="pdsparse", pool="serial")
    return spec, train(spec, run_dir=folder / "run", out=folder / "model")


def test_report_card_and_class_table(tiny, reference):
    _, result = reference
    model = Model.open(result.model_path)
    assert model.sha256 == result.sha256
    assert result.measures["P@1"] > 0.3
    report = result.report
    assert report["workers"] == 1
    assert report["classes_certified"] == report["classes"] == tiny.n_labels
    assert 0.0 < report["largest_gap"] <= 0.01
    assert report["weights"] == model.W.nnz
    assert report["support_vectors"] > 0
    json.dumps(report)
    classes = model.classes
    assert {
        "label",
        "positives",
        "rounds",
        "support",
        "nnz",
        "pruned",
        "gap",
        "null",
        "certified",
    } <= set(classes.column_names)
    np.testing.assert_array_equal(classes["positives"].to_numpy(), tiny.label_counts)
    np.testing.assert_array_equal(classes["nnz"].to_numpy(), np.diff(model.W.indptr))
    assert classes["gap"].to_numpy().sum() / classes["null"].to_numpy().sum() == pytest.approx(
        report["largest_gap"]
    )
    card = (result.model_path / "card.md").read_text()
    assert "pdsparse" in card


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_give_the_same_model_on_one_core(reference, tmp_path, workers):
    spec, result = reference
    other = train(
        replace(spec, pool="threads", workers=workers),
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
    )
    assert other.sha256 == result.sha256
    assert other.report["workers"] == 1
    assert other.report["batches"] == 1


@pytest.mark.drill
def test_one_ray_worker_gives_the_same_model(reference, tmp_path, ray):
    spec, result = reference
    other = train(
        replace(spec, pool="ray", workers=2),
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
        job="pd",
    )
    assert other.sha256 == result.sha256


def test_a_stopped_training_resumes_from_its_last_saved_pass(reference, tmp_path, monkeypatch):
    spec, result = reference
    monkeypatch.setattr("xcray.solvers.pdsparse.CHECKPOINT_SECONDS", 0.0)
    stop, stopped, saved = StopFlag(), threading.Event(), []
    write, stop_pool = dual_checkpoint.write_table, ThreadPool.stop

    def save(path, table) -> None:
        write(path, table)
        saved.append(path)
        if len(saved) == 2:
            stop.set()
            assert stopped.wait(300), "the pool was not stopped while its one task ran"

    monkeypatch.setattr(dual_checkpoint, "write_table", save)
    monkeypatch.setattr(ThreadPool, "stop", lambda pool: (stop_pool(pool), stopped.set()))
    with pytest.raises(Stopped):
        train(spec, run_dir=tmp_path / "run", out=tmp_path / "model", stop=stop)
    assert saved == [tmp_path / "run" / "pdsparse.arrow"] * 2
    assert not list((tmp_path / "run").glob("part-*"))
    _, state = dual_checkpoint.DualCheckpoint(saved[0], 0.0).load()
    assert state["passes"][0] == 2
    assert train(spec, run_dir=tmp_path / "run", out=tmp_path / "model").sha256 == result.sha256


def test_the_command_line_trains_it(tiny, reference, tmp_path, capsys):
    _, result = reference
    assert (
        main(
            [
                "train",
                str(tiny.path),
                "--out",
                str(tmp_path / "model"),
                "--solver",
                "pdsparse",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["sha256"] == result.sha256
    assert (
        main(
            [
                "train",
                str(tiny.path),
                "--out",
                str(tmp_path / "other"),
                "--solver",
                "pdsparse",
                "-p",
                "lam=0.3",
            ]
        )
        == 0
    )
    assert Model.open(tmp_path / "other").W.nnz < Model.open(tmp_path / "model").W.nnz


def test_the_command_line_lists_its_parameters(capsys):
    assert main(["train", "x", "--solver", "pdsparse", "--parameters", "--json"]) == 0
    names = {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert names >= {"lam", "tau", "C", "eps", "max_passes", "inner", "growth", "sample", "seed"}


def test_a_job_trains_and_publishes_it(reference, tmp_path):
    spec, result = reference
    home = Home(tmp_path / "home")
    store = JobStore(home.store_url)
    try:
        store.jobs.submit(
            JobSubmission(
                {**spec.as_dict(), "name": "margins", "dataset_id": "ds_1"}, name="margins"
            )
        )
        job = store.attempts.claim("test", lease_seconds=600)
        assert (
            run_attempt(
                store,
                home,
                job.id,
                1,
                options=MonitorOptions(
                    lease_seconds=600.0, heartbeat_seconds=0.05, report_seconds=0.02
                ),
            )
            == SUCCEEDED
        )
        assert store.jobs.get(job.id).result["sha256"] == result.sha256
    finally:
        store.close()
