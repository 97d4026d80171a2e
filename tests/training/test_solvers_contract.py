"""One contract for all solvers: report and model, same bits on threads, after a stop, a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.small_trainings import (
    DISTINCT,
    PARAMS,
    ROUNDED,
    References,
    compare,
    kill,
    once_at,
    spec_of,
)
from tests.support.toy_solvers import TOYS
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.errors import Stopped
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.solvers import SOLVERS, make_solver
from xcray.storage import checkpoints
from xcray.training import train
from xcray.training.report.render import draw_report
from xcray.training.report.timeline import read_timeline
from xcray.workers.pool import StopFlag
from xcray.workers.timeline import LOST, read_streams

FAMILIES = {name: SOLVERS[name].family for name in PARAMS}


@pytest.fixture(scope="module")
def references(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> References:
    """Return the results on one thread."""
    return References(tiny, tmp_path_factory.mktemp("references"))


@pytest.mark.parametrize("solver", PARAMS)
def test_report_model_card_and_label_table(
    tiny: Dataset, references: References, solver: str
) -> None:
    result = references[solver]
    model, report = Model.open(result.model_path), result.report
    json.dumps(report, allow_nan=False)
    assert (model.sha256, model.measures) == (result.sha256, result.measures)
    assert result.measures["P@1"] > 0.2
    assert report["labels"] == tiny.n_labels
    assert solver in (result.model_path / "card.md").read_text()
    assert model.label_table is not None
    columns = set(model.label_table.column_names)
    assert "positives" not in columns or (
        model.label_table["positives"].to_pylist() == tiny.label_counts.tolist()
    )
    if model.linear is not None:
        assert report["weights"] == model.nnz
    if not report.get("stages"):
        assert set(make_solver(solver, PARAMS[solver]).records.columns) <= columns
    if "gap" in columns and FAMILIES[solver] != "group":
        assert report["labels_certified"] == tiny.n_labels
        assert 0.0 < report["largest_gap"] <= 0.01
    if history := report.get("history"):
        epochs = [each["epoch"] for each in history]
        assert epochs == sorted(epochs)
        assert epochs[-1] == report["epochs"]
    assert tiny.test is not None
    best = Predictor(model).predict(tiny.test.X, k=3)
    hits = [label in tiny.test.Y.row(i) for i, label in enumerate(best.labels[:, 0])]
    assert np.mean(hits) == pytest.approx(result.measures["P@1"], abs=0.011)


@pytest.mark.parametrize("solver", DISTINCT)
def test_threads_give_the_same_model(
    tiny: Dataset, references: References, tmp_path: Path, solver: str
) -> None:
    spec = spec_of(tiny, solver, pool="threads", workers=3)
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    compare(solver, result, references[solver])


@contextmanager
def often() -> Iterator[None]:
    """Write a checkpoint whenever one can be written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "seconds_between", lambda _: 0.0)
        yield


@pytest.mark.parametrize("solver", DISTINCT)
def test_stopped_and_resumed_it_has_the_same_model(
    tiny: Dataset, references: References, tmp_path: Path, solver: str
) -> None:
    spec, stop, steps = spec_of(tiny, solver), StopFlag(), list[Any]()
    folders = {"run_dir": tmp_path / "run", "out": tmp_path / "model"}
    with often(), pytest.raises(Stopped):
        train(spec, **folders, progress=once_at(2, stop.set), stop=stop)
    assert not (tmp_path / "model").exists()
    threads = {} if solver in ROUNDED else {"pool": "threads", "workers": 2}
    result = train(replace(spec, **threads), **folders, progress=steps.append)
    assert result.sha256 == references[solver].sha256
    if "epochs" in result.report:  # no epoch is repeated
        assert next(step.done for step in steps if step.phase == "TRAINING") >= 2
        outcomes = read_streams(tmp_path / "run")["outcome"].to_pylist()
        assert outcomes.count(LOST) <= 1  # a call that ended after the checkpoint


@pytest.mark.parametrize(
    ("solver", "done", "seconds"),
    [
        ("indexed-bcd", 1, 0.0),
        ("dsmlr", 4, 0.0),
        ("lbfgs", 4, 1e9),
        *(
            pytest.param(*case, marks=pytest.mark.drill)
            for case in [("dsmlr", 4, 1e9), *((toy, 2, 0.0) for toy in TOYS)]
        ),
    ],
)
def test_killed_and_resumed_it_has_the_same_bits_and_reports_the_lost_work(
    tiny: Dataset,
    references: References,
    tmp_path: Path,
    solver: str,
    done: int,
    seconds: float,
) -> None:
    """Without a checkpoint, in 1e9 s, all work is lost; results of single labels are never lost."""
    spec, whole = spec_of(tiny, solver), references[solver]
    kill(spec, tmp_path / "run", done, seconds)
    before = read_streams(tmp_path / "run").num_rows
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    assert result.sha256 == whole.sha256
    rows = read_timeline(tmp_path / "model").to_pylist()
    lost = [row["seconds"] for row in rows if row["outcome"] == LOST]
    assert result.report["work_lost_seconds"] == pytest.approx(sum(lost), abs=0.001)
    # Rounds of toys take as long as their checkpoints, so a kill can cost none of them.
    if FAMILIES[solver] != "independent" and solver not in TOYS:
        assert result.report["batches"] == whole.report["batches"]
        assert 0 < len(lost)
        assert len(lost) < before if seconds == 0.0 else len(lost) == before


@pytest.mark.parametrize("solver", ["dsmlr", "lbfgs", "lc"])
def test_lost_parts_are_written_again(
    tiny: Dataset, references: References, tmp_path: Path, solver: str
) -> None:
    spec, run = spec_of(tiny, solver), tmp_path / "run"
    train(spec, run_dir=run, out=tmp_path / "model")
    history = Model.open(tmp_path / "model").manifest["report"].get("history")
    again = train(spec, run_dir=run, out=tmp_path / "again")
    assert again.sha256 == references[solver].sha256
    assert again.report.get("history") == history  # nothing was trained
    min(run.glob("part-*.arrow")).unlink()
    assert train(spec, run_dir=run, out=tmp_path / "third").sha256 == references[solver].sha256


@pytest.mark.parametrize("solver", ["indexed-bcd", "memoir", "dsmlr", "lbfgs"])
def test_the_command_line_estimates_and_trains(
    tiny: Dataset,
    references: References,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    solver: str,
) -> None:
    values = [word for pair in PARAMS[solver].items() for word in ("-p", f"{pair[0]}={pair[1]}")]
    words = ["train", str(tiny.path), "--out", str(tmp_path / "model"), "--solver", solver]
    words += ["--pool", "serial", *values, "--json"]
    assert main([*words, "--estimate"]) == 0
    estimate = json.loads(capsys.readouterr().out)
    assert min(estimate[name] for name in ("memory_bytes", "disk_bytes", "core_seconds")) > 0
    assert main(words) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["sha256"] == references[solver].sha256
    compared = out["report"]["preflight"]["compared"]
    assert {"weights", "model", "core_seconds", "seconds", "memory"} <= set(compared)
    assert not (tmp_path / "model.run").exists()


@pytest.mark.parametrize("solver", ["ppdsparse", "dsmlr", "lbfgs", "stagewise"])
def test_pictures_of_the_report(references: References, tmp_path: Path, solver: str) -> None:
    result = references[solver]
    report = draw_report(result.model_path, tmp_path / "report")
    assert {"timeline", "by_frequency"} <= set(report["pictures"])
    assert ("certificates" in report["left_out"]) == (solver != "ppdsparse")
    assert report["timeline"]["batches_total"] == report["training"]["batches"]
    assert report["solver"] == solver
    assert ("objective" in report["pictures"]) == (solver in ("dsmlr", "lbfgs"))


def test_all_softmax_solvers_reach_one_objective(references: References) -> None:
    names = ("dsmlr", "lbfgs", "lc")
    objectives = [references[name].report["objective"] for name in names]
    assert max(objectives) <= 1.01 * min(objectives)
    for name in names:
        history = [each["objective"] for each in references[name].report["history"]]
        assert all(b <= a * 1.02 for a, b in pairwise(history))
    for name in (*names, "generalized-least-squares", "stagewise"):
        assert {"seconds", "micro-F1", "macro-F1"} <= references[name].report["history"][-1].keys()
