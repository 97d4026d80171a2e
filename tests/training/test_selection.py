"""Selection of parameters on held-out training rows: choice, resuming, and the final model."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.live_service import client_of, settings_for
from xcray.api.options import DEFAULT_MEASURE
from xcray.arrays import frozen
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.errors import ParameterError, Refused, Stopped
from xcray.estimators import PPDSparse
from xcray.service.app import create_app
from xcray.solvers import SOLVERS, make_solver
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.training import Progress, TrainSpec, train
from xcray.training.finished import find_finished
from xcray.training.run import TrainResult
from xcray.training.selection.coordinate_search import Selector, gain_over, is_better
from xcray.training.selection.evaluate import Meter
from xcray.training.selection.held_out import selection_bytes, selection_data
from xcray.training.selection.measure import parse_measure
from xcray.workers.pool import StopFlag


def chosen_params(report: dict[str, Any]) -> dict[str, Any]:
    """Return the setting marked as chosen."""
    (row,) = [row for row in report["auto"]["settings"] if row["chosen"]]
    return dict(row["params"])


@pytest.fixture(scope="module")
def selected(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Return the result of a serial training that chooses its parameters."""
    folder = tmp_path_factory.mktemp("selected")
    spec = TrainSpec(str(tiny.path), pool="serial", workers=1, auto=DEFAULT_MEASURE)
    return train(spec, run_dir=folder / "run", out=folder / "model")


def test_the_model_is_that_of_the_chosen_setting_for_any_workers(
    tiny: Dataset, selected: TrainResult, tmp_path: Path
) -> None:
    spec = TrainSpec(str(tiny.path), pool="threads", workers=3, auto=DEFAULT_MEASURE)
    results = [selected, train(spec, run_dir=tmp_path / "run3", out=tmp_path / "out3")]
    first, second = (result.report["auto"]["settings"] for result in results)
    assert first == second
    assert len(first) > 3
    best = max(row["value"] for row in first)
    (chosen,) = [row["value"] for row in first if row["chosen"]]
    assert first[0]["value"] <= chosen <= best
    plain = train(
        TrainSpec(str(tiny.path), pool="serial", params=chosen_params(results[0].report)),
        run_dir=tmp_path / "run",
        out=tmp_path / "out",
    )
    assert {result.sha256 for result in results} == {plain.sha256}
    spec = TrainSpec(str(tiny.path), auto=DEFAULT_MEASURE)
    assert find_finished(spec, selected.model_path) is not None


def test_test_rows_are_not_used_and_given_parameters_are_kept(
    tiny: Dataset, tmp_path: Path
) -> None:
    data = selection_data(tiny.train.X, tiny.train.Y, None)
    assert data.X.n_rows + data.held_X.n_rows <= tiny.train.n_rows
    spec = TrainSpec(str(tiny.path), pool="serial", params={"C": 2.0}, auto="PSP@1")
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "out")
    assert "C" not in chosen_params(result.report)
    assert result.report["auto"]["select"] == "PSP@1"


def test_a_stopped_selection_resumes_to_the_same_choice(
    tiny: Dataset, selected: TrainResult, tmp_path: Path
) -> None:
    spec, stop = TrainSpec(str(tiny.path), pool="serial", auto=DEFAULT_MEASURE), StopFlag()
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
    setting = "C=1.0 positives=equal lam=0.01 positive_weight=1.0"
    assert notes[0].note == f"parameters, step 1: {setting}"
    assert re.match(r"parameters, step 3, \d+% of the budget: ", notes[2].note)
    resumed = train(spec, run_dir=tmp_path / "run", out=tmp_path / "out")
    assert resumed.sha256 == selected.sha256
    assert resumed.report["auto"]["settings"] == selected.report["auto"]["settings"]


def test_the_command_prints_what_it_tried(
    tiny: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"train {tiny.path} --auto {DEFAULT_MEASURE} --pool serial -o {tmp_path}/m"
    command = words.split()
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["auto"]["settings"][0]["params"]["C"] == 1.0
    assert main([*command[:-1], str(tmp_path / "again")]) == 0
    printed = capsys.readouterr().out
    assert f"selection ended because {report['auto']['ended']}; its work is that of" in printed
    assert main([*command, "--estimate", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["selection_core_seconds"] == 2.0 * document["core_seconds"]
    assert main([*command, "--estimate"]) == 0
    assert "core time of --auto, at most" in capsys.readouterr().out


def test_the_estimator_chooses_too() -> None:
    random = np.random.default_rng(0)
    X, y = random.normal(size=(120, 6)), random.integers(0, 3, 120)
    X[np.arange(120), y] += 2.0
    fitted = PPDSparse(auto=DEFAULT_MEASURE, lam=0.02).fit(X, y)
    (chosen,) = [row["params"] for row in fitted.selection_["settings"] if row["chosen"]]
    plain = PPDSparse(lam=0.02, **chosen).fit(X, y)
    assert (fitted.coef_ != plain.coef_).nnz == 0
    assert np.array_equal(fitted.intercept_, plain.intercept_)


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(ParameterError, match="P@1"):
        parse_measure("accuracy")
    with pytest.raises(ParameterError, match="ppdsparse"):
        TrainSpec("data", solver="dsmlr", auto=DEFAULT_MEASURE)
    with pytest.raises(ParameterError, match="the measure 'P@0'"):
        TrainSpec("data", auto="P@0")


def test_a_job_submitted_over_rest_chooses_too(tiny: Dataset, tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home", dataset_roots=(tiny.path.parent,)))
    with client_of(app) as http:
        data = {"name": "tiny", "format": "dataset", "path": str(tiny.path)}
        dataset = http.post("/v1/datasets", json=data).json()["id"]
        body = {"dataset": dataset, "model": "tiny", "pool": "serial"}
        submitted = http.post("/v1/jobs", json={**body, "auto": "PSP@1"})
        assert submitted.status_code in (200, 201, 202), submitted.text
        spec = http.get(f"/v1/jobs/{submitted.json()['id']}").json()["spec"]
        assert spec["auto"] == "PSP@1"
        refused = http.post("/v1/jobs", json={**body, "auto": "accuracy"})
        assert refused.status_code == 422
        assert "P@1" in refused.text


def selector_of(tiny: Dataset, params: dict[str, Any] | None = None, **options: Any) -> Selector:
    """Return a selector for the training rows of a data set."""
    data = selection_data(tiny.train.X, tiny.train.Y, None)
    return Selector("ppdsparse", data, params or {}, "P@1+nDCG@5", 1, **options)


def test_a_small_budget_ends_the_search_and_names_what_was_not_tried(tiny: Dataset) -> None:
    reports = [selector_of(tiny, budget=budget).run().report for budget in (0.0, 0.8, 1000.0)]
    assert len(reports[0]["settings"]) == 1
    tried = [[row["params"] for row in report["settings"]] for report in reports]
    assert tried[2][: len(tried[1])] == tried[1]
    assert 1 < len(tried[1]) < len(tried[2])
    for report in reports[1:]:
        assert sum(row["work"] for row in report["settings"]) == report["work"] <= report["budget"]
    assert [report["ended"] for report in reports] == [
        "the budget is spent",
        "the budget is spent",
        "no parameter improves the measure",
    ]
    assert reports[0]["not_tried"][0]["C"] == 0.3
    assert reports[2]["not_tried"] == []


def test_the_work_of_a_training_is_estimated_from_below(tiny: Dataset) -> None:
    report = selector_of(tiny, budget=1.0).run().report
    solver = PPDSparseSolver()
    train = tiny.train
    state = solver.load(train.X, train.XT, train.YT)
    meter = Meter()
    labels = np.arange(tiny.n_labels, dtype=np.int32)
    meter.add([solver.solve(state, frozen(labels, np.int32))], train.n_rows)
    assert 0.3 * meter.spent <= report["budget"] <= meter.spent


def test_the_search_goes_on_while_the_last_value_of_a_parameter_is_best(tiny: Dataset) -> None:
    given = {"positives": "equal", "lam": 0.01, "positive_weight": 1.0}
    selector = selector_of(tiny, given, budget=1000.0)
    report = selector.run().report
    tried = [row["params"]["C"] for row in report["settings"]]
    (best,) = [row["params"] for row in report["settings"] if row["chosen"]]
    for step in (1, -1):
        other = selector.neighbour(best, "C", step)
        assert other is None or other["C"] in tried


def test_a_gain_below_its_standard_error_is_chance_of_a_smaller_model_too() -> None:
    default = {"value": 0.5, "folds": [0.5, 0.6, 0.4, 0.5]}
    steady = {"value": 0.51, "folds": [0.51, 0.61, 0.41, 0.51]}
    noisy = {"value": 0.51, "folds": [0.7, 0.4, 0.25, 0.72]}
    assert is_better(steady, default)
    assert not is_better(noisy | {"weights": 1}, default | {"weights": 2})
    fair = {"value": 0.565, "folds": [0.55, 0.72, 0.49, 0.5]}  # 2.5 standard errors
    assert is_better(fair, default, errors=2.0)
    assert not is_better(fair, default, errors=3.0)
    assert not is_better(default, default)


def test_a_gain_on_one_half_of_the_rows_only_is_chance() -> None:
    default = {"value": 0.5, "folds": [0.5, 0.5, 0.5, 0.5]}
    result = {"value": 0.52, "folds": [0.56, 0.49, 0.55, 0.48]}
    assert not is_better(result, default)
    found = gain_over(result, default)
    assert found == pytest.approx({"gain": 0.02, "error": 0.0204124, "lowest_half": -0.015})
    assert is_better(result | {"folds": [0.51, 0.55, 0.52, 0.50]}, default)


def test_steps_that_are_smaller_than_their_error_add_up(
    tiny: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {1.0: 0.5, 0.3: 0.51, 0.1: 0.52, 0.03: 0.53, 0.01: 0.525}
    selector = selector_of(tiny, {"positives": "equal", "lam": 0.01, "positive_weight": 1.0})

    def evaluate(setting: dict[str, Any], start: dict[str, Any] | None) -> dict[str, Any]:
        value = values.get(setting["C"], 0.0)
        noise = 0.0 if start is None else 0.05  # standard error of a difference from C = 1: 0.0129
        folds = [value + noise * sign for sign in (1, 1, -1, -1) * 4]
        result = {
            "params": setting,
            "value": value,
            "folds": folds,
            "weights": 2 - (start is None),
            "work": 0,
        }
        selector.results[repr(setting)] = result
        return result

    monkeypatch.setattr(selector, "_evaluate", evaluate)
    assert selector.run().chosen == {"C": 0.03}


@pytest.mark.parametrize("name", [name for name in SOLVERS if SOLVERS[name].tuning])
def test_every_tuned_parameter_begins_at_its_default(name: str) -> None:
    assert SOLVERS[name].warm_starts
    make_solver(name, SOLVERS[name].tuning.while_compared)
    for parameter, values in SOLVERS[name].tuning.values.items():
        assert getattr(make_solver(name, {}), parameter) in values
        assert len(set(values)) == len(values)


def test_a_solver_without_tuning_is_refused(tiny: Dataset) -> None:
    with pytest.raises(ParameterError, match="not of dismec"):
        TrainSpec(str(tiny.path), "dismec", auto=DEFAULT_MEASURE)


def test_without_time_only_the_first_setting_is_measured(tiny: Dataset, tmp_path: Path) -> None:
    spec = TrainSpec(str(tiny.path), pool="serial", auto=DEFAULT_MEASURE, max_seconds=1e-6)
    with pytest.raises(Refused, match="finished"):
        train(spec, run_dir=tmp_path / "run", out=tmp_path / "out")
    more = replace(spec, max_seconds=600.0)
    result = train(more, run_dir=tmp_path / "run", out=tmp_path / "out")
    assert result.report["auto"]["ended"] == "the time is up"
    assert len(result.report["auto"]["settings"]) == 1
    assert chosen_params(result.report)["C"] == 1.0


def test_a_selection_that_does_not_fit_is_refused_before_it_begins(
    tiny: Dataset, tmp_path: Path
) -> None:
    spec = TrainSpec(str(tiny.path), pool="serial", auto=DEFAULT_MEASURE, memory_limit="1MiB")
    with pytest.raises(Refused, match="memory"):
        train(spec, run_dir=tmp_path / "run", out=tmp_path / "out")
    assert not (tmp_path / "run" / "auto").exists()


def test_the_memory_of_a_selection_covers_its_rows(tiny: Dataset) -> None:
    data = selection_data(tiny.train.X, tiny.train.Y, None)
    rows = sum(8 * part.nnz for part in (data.X, data.XT, data.X, data.held_X))
    assert rows <= selection_bytes(tiny.train.X.nnz, 0) * 1.05 <= 1.2 * rows


@pytest.mark.drill
@pytest.mark.ray
@pytest.mark.usefixtures("ray")
def test_ray_workers_train_the_chosen_setting(
    tiny: Dataset, selected: TrainResult, tmp_path: Path
) -> None:
    spec = TrainSpec(str(tiny.path), pool="ray", workers=2, auto=DEFAULT_MEASURE)
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "out")
    assert result.sha256 == selected.sha256
    assert chosen_params(result.report) == chosen_params(selected.report)
