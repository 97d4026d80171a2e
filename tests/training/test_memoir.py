"""MEMOIR trainings: report, class table, pools, command line, settings of the paper, resume."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest

from xcray.cli.main import main
from xcray.errors import Stopped
from xcray.model.model import Model
from xcray.solvers import describe_solver, make_solver
from xcray.solvers.memoir import state
from xcray.training import TrainSpec, train
from xcray.training.report.render import draw_report
from xcray.workers.local_pool import ThreadPool
from xcray.workers.pool import StopFlag

PARAMS = {"rounds": 12, "batch": 200, "early_stopping_rounds": 10, "row_norm": "l2"}


@pytest.fixture(scope="module")
def reference(tiny, tmp_path_factory):
    """Return the specification and the result of a serial training."""
    folder = tmp_path_factory.mktemp("reference")
    spec = TrainSpec(str(tiny.path), solver="memoir", pool="serial", params=PARAMS)
    return spec, train(spec, run_dir=folder / "run", out=folder / "model")


def test_report_and_class_table(tiny, reference):
    _, result = reference
    model = Model.open(result.model_path)
    report, classes = result.report, model.classes
    assert result.measures["P@1"] > 0.2
    assert model.row_norm == "l2"
    assert report["weights"] == model.W.nnz
    assert report["stopped"] == "all 12 rounds are done"
    assert report["held_out_rows"] == classes["predicted"].to_numpy().sum() > 0
    hits, tested = (classes[name].to_numpy() for name in ("hits", "tested"))
    assert report["held_out_accuracy"] == pytest.approx(hits.sum() / report["held_out_rows"])
    assert (hits <= tested).all()
    assert 0.0 < report["held_out_macro_f1"] < 1.0
    np.testing.assert_array_equal(classes["positives"].to_numpy(), tiny.label_counts)
    json.dumps(report, allow_nan=False)


def test_threads_give_the_same_model_on_one_core(reference, tmp_path):
    spec, result = reference
    other = train(
        replace(spec, pool="threads", workers=3), run_dir=tmp_path / "run", out=tmp_path / "model"
    )
    assert other.sha256 == result.sha256


def test_the_report_says_what_an_approximate_search_missed(tiny, tmp_path):
    params = {"rounds": 6, "batch": 100, "oracle": "lsh", "bits": 128}
    spec = TrainSpec(str(tiny.path), solver="memoir", pool="serial", params=params)
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    rounds = result.report["oracle"]
    assert [each["round"] for each in rounds] == [1, 2, 3, 4, 5, 6]
    assert rounds[0]["agreement"] == 1.0  # W is 0
    assert any(each["mean"] > 0.0 for each in rounds)
    assert all(0.0 <= each["mean"] <= each["p95"] <= each["largest"] for each in rounds[1:])
    report = draw_report(result.model_path, tmp_path / "report")
    assert report["pictures"]["oracle"] == "oracle.svg"
    assert "mean" in (tmp_path / "report" / "oracle.svg").read_text()


@pytest.mark.drill
def test_one_ray_worker_gives_the_same_model(reference, tmp_path, ray):
    spec, result = reference
    other = train(
        replace(spec, pool="ray", workers=2),
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
        job="memoir",
    )
    assert other.sha256 == result.sha256


def test_a_stopped_training_resumes_from_its_last_saved_round(reference, tmp_path, monkeypatch):
    spec, result = reference
    monkeypatch.setattr(state, "CHECKPOINT_SECONDS", 0.0)
    stop, stopped, saved = StopFlag(), threading.Event(), []
    save, stop_pool = state.write_arrays, ThreadPool.stop

    def write_and_stop(path, arrays):
        save(path, arrays)
        saved.append(int(arrays["numbers"][0]))
        if len(saved) == 5:
            stop.set()
            assert stopped.wait(300), "the pool was not stopped while its one task ran"

    monkeypatch.setattr(state, "write_arrays", write_and_stop)
    monkeypatch.setattr(ThreadPool, "stop", lambda pool: (stop_pool(pool), stopped.set()))
    with pytest.raises(Stopped):
        train(spec, run_dir=tmp_path / "run", out=tmp_path / "model", stop=stop)
    assert saved == [1, 2, 3, 4, 5]
    again = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    assert saved == list(range(1, 13))
    assert again.sha256 == result.sha256


def test_the_command_line_trains_it(tiny, reference, tmp_path, capsys):
    _, result = reference
    options = [f"{name}={value}" for name, value in PARAMS.items()]
    arguments = ["train", str(tiny.path), "--out", str(tmp_path / "model"), "--solver", "memoir"]
    flags = [flag for option in options for flag in ("-p", option)]
    assert main([*arguments, *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == result.sha256


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("memoir-paper", {"lam": 1.0, "step": "sample", "early_stopping_rounds": 5}),
        ("memoir-scripts", {"lam": 1.0, "step": "batch", "draws": "classes", "margin": 1e30}),
    ],
)
def test_the_settings_of_the_paper_and_its_scripts(tiny, tmp_path, name, expected):
    solver = make_solver(name, {})
    table4 = {"eta0": 0.1, "eta_step": 0.02, "batch": 0, "rounds": 25}
    assert {**table4, **expected}.items() <= solver.as_dict().items()
    assert describe_solver(name)["family"] == "joint"
    spec = TrainSpec(str(tiny.path), solver=name, pool="serial", params={"rounds": 2})
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    assert np.isfinite(Model.open(result.model_path).W.data).all()
