"""Trainings with a time limit: partial models, their serving, and their completion."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.observers import FunctionObserver
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.errors import ParameterError, Refused
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.schedule.events import Drain
from xcray.training import TrainResult, TrainSpec, solve_labels, train
from xcray.training.edit.labels import add_labels, remove_labels, retrain_labels
from xcray.workers.driver import run_schedule
from xcray.workers.observer import RunProgress

Run = Callable[..., TrainResult]


@pytest.fixture(scope="module")
def reference(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Return the model of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("reference")
    return train(
        TrainSpec(str(tiny.path), pool="serial"), run_dir=folder / "run", out=folder / "model"
    )


def short(labels: int, timed: bool = True) -> Callable[..., None]:
    """Return a `run_schedule` whose time is up after `labels` labels.

    A clock would make the test depend on the machine.
    """

    def until(schedule: Any, pool: Any, observer: Any, *, stop: Any, seconds: Any) -> None:
        assert (seconds is not None) == timed

        def report(progress: RunProgress) -> None:
            if seconds is not None and schedule.done_labels >= labels:
                schedule.on(Drain(), pool.now())
            observer.report(progress)

        if labels == 0:
            schedule.on(Drain())
        shorter = FunctionObserver(observer.commit, report, observer.record, observer.sync)
        run_schedule(schedule, pool, shorter, stop=stop, seconds=None)

    return until


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tiny: Dataset, tmp_path: Path) -> Run:
    """Return a function that trains until a number of labels are done."""

    def after(labels: int, out: str, **changes: Any) -> TrainResult:
        spec = TrainSpec(
            **{"dataset": str(tiny.path), "pool": "serial", "max_seconds": 1.0, **changes}
        )
        with monkeypatch.context() as patch:
            patch.setattr(solve_labels, "run_schedule", short(labels, spec.max_seconds is not None))
            return train(spec, run_dir=tmp_path / "run", out=tmp_path / out)

    return after


def done_of(result: TrainResult) -> np.ndarray:
    """Return a mask of the labels of a model that were trained."""
    classes = Model.open(result.model_path).label_table
    assert classes is not None
    return classes.column("rounds").to_numpy() >= 0


def test_the_most_valuable_labels_come_first_and_the_model_says_what_it_lacks(
    tiny: Dataset, timed: Run
) -> None:
    result = timed(5, "part")
    model, done = Model.open(result.model_path), done_of(result)
    counts = tiny.label_counts
    assert 5 <= done.sum() < 40
    assert counts[done].min() >= counts[~done].max()
    ties = np.flatnonzero(counts == counts[done].min())
    # Ties are solved in the order of labels.
    assert np.array_equal(np.sort(done[ties])[::-1], done[ties])
    missing = int((~done).sum())
    assert model.manifest["partial"] == {"missing": missing}
    assert result.report["partial"] == {
        "done": 40 - missing,
        "missing": missing,
        "max_seconds": 1.0,
        "positives_share": round(float(counts[done].sum() / counts.sum()), 6),
        "most_rows_missing": int(counts[~done].max()),
    }
    assert result.report["labels_certified"] == 40 - missing + int((counts[~done] == 0).sum())
    card = " ".join((model.path / "card.md").read_text().replace("\n> ", " ").split())
    assert f"before {missing} of 40 labels were trained" in card
    json.dumps(result.report)


def test_a_partial_model_answers(tiny: Dataset, timed: Run) -> None:
    result = timed(5, "part")
    model, done = Model.open(result.model_path), done_of(result)
    assert tiny.test is not None
    top = Predictor(model).predict(tiny.test.X, k=5)
    assert np.isin(top.labels[:, 0], np.flatnonzero(done)).mean() > 0.9
    assert (model.b[~done] == -1.0).all()
    assert not np.diff(model.W.indptr)[~done].any()
    assert result.measures["P@1"] > 0.1


@pytest.mark.parametrize(
    "more",
    [
        {"max_seconds": None},
        {"max_seconds": 100.0},
        {"max_seconds": None, "pool": "threads", "workers": 2},
    ],
)
def test_more_time_gives_the_model_of_an_uninterrupted_run(
    timed: Run, reference: TrainResult, more: dict[str, Any]
) -> None:
    part = timed(5, "part")
    further = timed(12, "further")
    assert done_of(part).sum() < done_of(further).sum() < 40
    whole = timed(1000, "whole", **more)
    assert whole.sha256 == reference.sha256
    assert len({part.sha256, further.sha256, whole.sha256}) == 3
    assert whole.measures == reference.measures
    assert "partial" not in whole.report
    assert "partial" not in Model.open(whole.model_path).manifest


def test_labels_done_in_time_are_those_of_the_whole_model(
    timed: Run, reference: TrainResult
) -> None:
    part = timed(5, "part")
    done = np.flatnonzero(done_of(part))
    a, b = Model.open(part.model_path), Model.open(reference.model_path)
    for k in done:
        assert a.W.row(k)[1].tobytes() == b.W.row(k)[1].tobytes()
    assert np.array_equal(a.b[done], b.b[done])


def test_no_label_in_time_is_refused_and_the_run_goes_on(timed: Run, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no label was finished in 1 s; allow more time") as caught:
        timed(0, "part")
    assert caught.value.code == "NO_TIME"
    assert not (tmp_path / "part").exists()
    assert timed(5, "part").report["partial"]["missing"] > 0


def test_changed_labels_keep_count_of_what_is_missing(
    tiny: Dataset, timed: Run, reference: TrainResult, tmp_path: Path
) -> None:
    part = timed(5, "part")
    done = done_of(part)
    missing = [str(k) for k in np.flatnonzero(~done) if tiny.label_counts[k]]
    n = int((~done).sum())
    less = remove_labels(part.model_path, tmp_path / "less", missing[:2])
    assert Model.open(less.model_path).manifest["partial"] == {"missing": n - 2}
    again = add_labels(less.model_path, tiny.path, tmp_path / "again", missing[:2])
    assert Model.open(again.model_path).manifest["partial"] == {"missing": n - 2}
    filled = retrain_labels(part.model_path, tiny.path, tmp_path / "filled", missing)
    # Labels without rows cannot be trained.
    assert n - len(missing) == int((tiny.label_counts == 0).sum())
    assert np.array_equal(
        Model.open(filled.model_path).W.data, Model.open(reference.model_path).W.data
    )


def test_partial_from_the_command_line(
    tiny: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(solve_labels, "run_schedule", short(5))
    words = ["train", str(tiny.path), "--pool", "serial"]
    assert main([*words, "--max-seconds", "1", "--out", str(tmp_path / "model")]) == 0
    shown = capsys.readouterr()
    done = int(done_of(TrainResult(tmp_path / "model", "", {}, {})).sum())
    assert f"PARTIAL: {done} of 40 labels are trained" in shown.out
    assert "--run-dir" in shown.err
    assert (tmp_path / "model.run").is_dir()  # kept for a run with more time
    monkeypatch.setattr(solve_labels, "run_schedule", run_schedule)
    more = f"--run-dir {tmp_path}/model.run --out {tmp_path}/whole --json"
    assert main([*words, *more.split()]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["sha256"] != Model.open(tmp_path / "model").sha256
    assert "partial" not in result["report"]
    assert main([*words, "--max-seconds", "0", "--out", str(tmp_path / "bad"), "--json"]) == 2
    assert "not a valid time" in json.loads(capsys.readouterr().err)["message"]
    assert main(["models", "show", str(tmp_path / "model")]) == 0
    assert f"{40 - done} of 40 labels were not trained" in capsys.readouterr().out


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "9", True])
def test_bad_times_name_the_fix(seconds: Any) -> None:
    with pytest.raises(ParameterError, match="max_seconds must be"):
        TrainSpec.from_dict({"dataset": "d", "max_seconds": seconds})
