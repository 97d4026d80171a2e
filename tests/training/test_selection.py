"""Selection of parameters on held-out training rows: choice, resuming, and the final model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.live_service import client_of, settings_for
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.errors import ParameterError, Stopped
from xcray.estimators import PPDSparse
from xcray.service.app import create_app
from xcray.training import Progress, TrainSpec, train
from xcray.training.finished import find_finished
from xcray.training.selection.choose import SEARCH, selection_data
from xcray.training.selection.measure import parse_measure
from xcray.workers.pool import StopFlag


def chosen_params(report: dict[str, Any]) -> dict[str, Any]:
    """Return the setting marked as chosen."""
    (row,) = [row for row in report["auto"]["settings"] if row["chosen"]]
    return dict(row["params"])


def test_the_model_is_that_of_the_chosen_setting_for_any_workers(
    tiny: Dataset, tmp_path: Path
) -> None:
    results = [
        train(
            TrainSpec(str(tiny.path), pool=pool, workers=workers, auto=True),
            run_dir=tmp_path / f"run{workers}",
            out=tmp_path / f"out{workers}",
        )
        for pool, workers in (("serial", 1), ("threads", 3))
    ]
    first, second = (result.report["auto"]["settings"] for result in results)
    assert first == second
    assert len(first) > 3
    best = max(row["value"] for row in first)
    assert [row["value"] for row in first if row["chosen"]] == [best]
    plain = train(
        TrainSpec(str(tiny.path), pool="serial", params=chosen_params(results[0].report)),
        run_dir=tmp_path / "run",
        out=tmp_path / "out",
    )
    assert {result.sha256 for result in results} == {plain.sha256}
    spec = TrainSpec(str(tiny.path), auto=True)
    assert find_finished(spec, tmp_path / "out1") is not None


def test_test_rows_are_not_used_and_given_parameters_are_kept(
    tiny: Dataset, tmp_path: Path
) -> None:
    data = selection_data(tiny.train.X, tiny.train.Y, None)
    assert data.X.n_rows + data.held_X.n_rows <= tiny.train.n_rows
    spec = TrainSpec(str(tiny.path), pool="serial", params={"C": 2.0}, auto=True, select="PSP@1")
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "out")
    assert "C" not in chosen_params(result.report)
    assert result.report["auto"]["select"] == "PSP@1"


def test_a_stopped_selection_resumes_to_the_same_choice(tiny: Dataset, tmp_path: Path) -> None:
    spec, stop = TrainSpec(str(tiny.path), pool="serial", auto=True), StopFlag()
    notes: list[Progress] = []

    def stop_at_third(progress: Progress) -> None:
        notes.append(progress)
        if progress.phase == "SELECTING" and progress.done == 2:
            stop.set()

    with pytest.raises(Stopped):
        train(
            spec,
            run_dir=tmp_path / "run",
            out=tmp_path / "out",
            progress=stop_at_third,
            stop=stop,
        )
    assert len(list((tmp_path / "run" / "auto").glob("*.json"))) == 2
    assert notes[0].total == 1 + sum(len(values) for _, values in SEARCH)
    resumed = train(spec, run_dir=tmp_path / "run", out=tmp_path / "out")
    fresh = train(spec, run_dir=tmp_path / "run2", out=tmp_path / "out2")
    assert resumed.sha256 == fresh.sha256
    assert resumed.report["auto"]["settings"] == fresh.report["auto"]["settings"]


def test_the_command_prints_what_it_tried(
    tiny: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", str(tiny.path), "--auto", "--pool", "serial", "-o", str(tmp_path / "m")]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["auto"]["settings"][0]["params"]["C"] == 1.0


def test_the_estimator_chooses_too() -> None:
    random = np.random.default_rng(0)
    X, y = random.normal(size=(120, 6)), random.integers(0, 3, 120)
    X[np.arange(120), y] += 2.0
    fitted = PPDSparse(auto=True, lam=0.02).fit(X, y)
    (chosen,) = [row["params"] for row in fitted.selection_["settings"] if row["chosen"]]
    plain = PPDSparse(lam=0.02, **chosen).fit(X, y)
    assert (fitted.coef_ != plain.coef_).nnz == 0
    assert np.array_equal(fitted.intercept_, plain.intercept_)


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(ParameterError, match="P@1"):
        parse_measure("accuracy")
    with pytest.raises(ParameterError, match="ppdsparse"):
        TrainSpec("data", solver="dsmlr", auto=True)
    with pytest.raises(ParameterError, match="select"):
        TrainSpec("data", auto=True, select="P@0")


def test_a_job_submitted_over_rest_chooses_too(tiny: Dataset, tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home", dataset_roots=(tiny.path.parent,)))
    with client_of(app) as http:
        data = {"name": "tiny", "format": "dataset", "path": str(tiny.path)}
        dataset = http.post("/v1/datasets", json=data).json()["id"]
        body = {"dataset": dataset, "model": "tiny", "pool": "serial", "auto": True}
        submitted = http.post("/v1/jobs", json={**body, "select": "PSP@1"})
        assert submitted.status_code in (200, 201, 202), submitted.text
        spec = http.get(f"/v1/jobs/{submitted.json()['id']}").json()["spec"]
        assert (spec["auto"], spec["select"]) == (True, "PSP@1")
        refused = http.post("/v1/jobs", json={**body, "select": "accuracy"})
        assert refused.status_code == 422
        assert "P@1" in refused.text
