"""`train`: resume, stop and refusals."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter
from xcray.errors import Conflict, InputError, NotFound, ParameterError, Stopped
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.storage.arrow import read_table
from xcray.training import TrainSpec, train
from xcray.training.report.timeline import read_timeline
from xcray.workers.pool import StopFlag


def spec(dataset: Dataset, **changes) -> TrainSpec:
    """Return the specification of a serial training of `dataset`, with changes."""
    return TrainSpec(**{"dataset": str(dataset.path), "pool": "serial", **changes})


@pytest.fixture(scope="module")
def reference(tiny, tmp_path_factory):
    """Return the result of a serial training."""
    folder = tmp_path_factory.mktemp("reference")
    return train(spec(tiny), run_dir=folder / "run", out=folder / "model")


def test_model_measures_and_report(tiny, reference):
    model = Model.open(reference.model_path)
    assert model.sha256 == reference.sha256
    assert model.measures == reference.measures
    again = Predictor(model).evaluate(
        tiny.test.X, tiny.test.Y, label_counts=tiny.label_counts, n_train=tiny.train.n_rows
    )
    assert again == pytest.approx(reference.measures)
    assert reference.measures["P@1"] > 0.3
    report = reference.report
    assert report["labels_certified"] == report["labels"] == tiny.n_labels
    assert 0 < report["largest_gap"] <= 0.01
    assert report["makespan_over_ideal"] >= 0.999
    assert set(report["seconds"]) == {"LOADING", "TRAINING", "MERGING", "EVALUATING"}
    assert model.label_table.num_rows == tiny.n_labels
    json.dumps(report)


def test_stop_and_resume_do_only_what_is_missing(tiny, reference, tmp_path, monkeypatch):
    stop, steps = StopFlag(), []

    def progress(p) -> None:
        steps.append(p)
        if p.phase == "TRAINING" and p.done > 3:
            stop.set()

    with pytest.raises(Stopped, match="finished batches are kept"):
        train(
            spec(tiny),
            run_dir=tmp_path / "run",
            out=tmp_path / "model",
            progress=progress,
            stop=stop,
        )
    assert not (tmp_path / "model").exists()
    selection = {
        label
        for path in (tmp_path / "run").glob("part-*")
        for label in read_table(path).column("label").to_pylist()
    }
    assert 3 < len(selection) < tiny.n_labels

    solved = []
    from xcray.solvers.ppdsparse import PPDSparseSolver

    whole = PPDSparseSolver.solve
    monkeypatch.setattr(PPDSparseSolver, "warm_up", lambda *_: None)
    monkeypatch.setattr(
        PPDSparseSolver,
        "solve",
        lambda self, local, labels, stopped=lambda: False: (
            solved.extend(labels) or whole(self, local, labels, stopped)
        ),
    )
    stopped_at, steps = steps[-1], []
    result = train(
        spec(tiny), run_dir=tmp_path / "run", out=tmp_path / "model", progress=steps.append
    )
    first = next(p for p in steps if p.phase == "TRAINING" and p.total == tiny.n_labels)
    assert first.done >= stopped_at.done - 1  # the time and the rate are those of both attempts
    assert first.rate > 0
    assert first.eta is not None
    # some twice: the probe of the estimate solves them, too
    assert set(solved) == set(range(tiny.n_labels)) - selection
    assert result.sha256 == reference.sha256


def test_progress_reports_phases_in_order_and_ends_complete(tiny, tmp_path):
    steps = []
    train(spec(tiny), run_dir=tmp_path / "run", out=tmp_path / "model", progress=steps.append)
    phases = list(dict.fromkeys(p.phase for p in steps))
    assert phases == ["LOADING", "TRAINING", "MERGING", "EVALUATING", "PUBLISHING"]
    training = [p for p in steps if p.phase == "TRAINING"]
    assert training[-1].done == training[-1].total == tiny.n_labels
    assert all(a.done <= b.done for a, b in pairwise(training))
    assert training[-1].rate > 0


def test_a_run_directory_belongs_to_one_run(tiny, tmp_path):
    train(spec(tiny), run_dir=tmp_path / "run", out=tmp_path / "model")
    with pytest.raises(Conflict, match="other params"):
        train(spec(tiny, params={"lam": 0.5}), run_dir=tmp_path / "run", out=tmp_path / "other")
    with pytest.raises(Conflict, match="exists already"):
        train(spec(tiny), run_dir=tmp_path / "run", out=tmp_path / "model")


def test_timeline_accounts_for_every_class(tiny, tmp_path, monkeypatch):
    # No speculative copies, because a thread that waits for a core is late.
    monkeypatch.setattr("xcray.schedule.label_scheduler.COPY_MARGIN_SECONDS", 1e9)
    result = train(
        spec(tiny, pool="threads", workers=2), run_dir=tmp_path / "run", out=tmp_path / "model"
    )
    timeline = read_timeline(tmp_path / "run").to_pydict()
    assert sum(timeline["n_labels"]) == tiny.n_labels
    assert set(timeline["worker"]) == set(result.report["busy_share"]) <= {"worker-0", "worker-1"}
    assert set(timeline["outcome"]) == {"done"}
    assert sum(timeline["certified"]) == result.report["labels_certified"]
    assert result.report["makespan_over_ideal"] >= 1.0
    assert result.report["work_lost_seconds"] == 0.0


def test_without_a_test_part_there_are_no_measures(tmp_path, tiny):
    writer = DatasetWriter(
        tmp_path / "data", name="notest", n_features=tiny.n_features, n_labels=tiny.n_labels
    )
    writer.add("train", tiny.train.X, tiny.train.Y)
    dataset = writer.finish(source={})
    result = train(spec(dataset), run_dir=tmp_path / "run", out=tmp_path / "model")
    assert result.measures == {}


def test_a_set_without_labelled_rows_is_refused(tmp_path, tiny):
    from xcray.arrays import pattern

    writer = DatasetWriter(tmp_path / "data", name="bare", n_features=tiny.n_features, n_labels=3)
    writer.add("train", tiny.train.X, pattern(np.zeros(tiny.train.n_rows + 1), [], 3))
    dataset = writer.finish(source={})
    with pytest.raises(InputError) as caught:
        train(spec(dataset), run_dir=tmp_path / "run", out=tmp_path / "model")
    assert caught.value.code == "NO_POSITIVES"


@pytest.mark.parametrize(
    ("values", "fix"),
    [
        ({}, "needs `dataset`"),
        ({"dataset": "d", "solvr": "x"}, "unknown key 'solvr'"),
        ({"dataset": "d", "solver": "svm"}, "there are: ppdsparse"),
        ({"dataset": "d", "pool": "gpu"}, "serial, threads, ray"),
        ({"dataset": "d", "workers": -1}, "workers must be"),
        ({"dataset": "d", "workers": 1.5}, "workers must be"),
        ({"dataset": "d", "ks": [0]}, "ks must be"),
        ({"dataset": "d", "ks": 5}, "wrong type"),
        ({"dataset": "d", "name": "../x"}, "not allowed"),
        ({"dataset": "d", "params": {"lam": -1}}, "lam must be at least"),
        ({"dataset": "d", "params": ["lam"]}, "params"),
    ],
)
def test_bad_specs_name_the_fix(values, fix):
    with pytest.raises(ParameterError) as caught:
        TrainSpec.from_dict(values)
    assert fix in str(caught.value)


def test_spec_round_trip_and_missing_data(tmp_path):
    one = TrainSpec.from_dict({"dataset": "d", "params": {"lam": 0.1}, "ks": [5, 1, 5]})
    assert TrainSpec.from_dict(json.loads(json.dumps(one.as_dict()))) == one
    assert one.ks == (1, 5)
    with pytest.raises(NotFound):
        train(
            TrainSpec(str(tmp_path / "nothing")), run_dir=tmp_path / "run", out=tmp_path / "model"
        )
