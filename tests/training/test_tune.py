"""Hyper-parameter search: order of points, results, choice, resuming, and the final model."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.data.splits import HashSplit
from xcray.errors import Conflict, ParameterError, Stopped
from xcray.kernels.sparse import take_rows
from xcray.model.model import Model
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.storage.arrow import read_csr
from xcray.storage.atomic import read_json
from xcray.training import Progress, TrainSpec, train
from xcray.training.selection.evaluate import Evaluator
from xcray.training.selection.grid import params_key, plan_points
from xcray.training.selection.held_out import held_out_rows, hold_out
from xcray.training.selection.warm_start import dual_scale
from xcray.training.tune import TuneResult, TuneSpec, choose_setting, tune
from xcray.workers.pool import StopFlag

GRID = {"lam": (0.1, 0.01), "C": (1.0,)}


def spec_of(data: Dataset, grid: Any = None, **more: Any) -> TuneSpec:
    """Return the specification of a serial search over a small grid."""
    return TuneSpec(TrainSpec(str(data.path), pool="serial"), grid or GRID, **more)


@pytest.fixture(scope="module")
def tuning_result(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """Return a finished search."""
    folder = tmp_path_factory.mktemp("path")
    return tune(spec_of(tiny), run_dir=folder / "run", out=folder / "out")


def test_the_order_starts_sparse_and_goes_to_neighbours() -> None:
    order = plan_points({"C": [1, 10, 100], "lam": [0.1, 0.001, 0.01], "tau": [1]})
    assert order[0].params == {"lam": 0.1, "tau": 1.0, "C": 1.0}
    assert order[0].start is None
    assert len({json.dumps(point.params) for point in order}) == 9
    for point in order[1:]:
        assert point.start is not None
        assert point.start < point.number
        steps = [
            abs(np.log10(point.params[name] / order[point.start].params[name]))
            for name in point.params
        ]
        # Each point starts from an earlier one that is one step of one parameter away.
        assert sum(steps) == pytest.approx(1.0)
    assert [point.number for point in order] == list(range(9))


def test_distances_are_in_decades_and_zero_is_allowed() -> None:
    order = plan_points({"lam": [0.0, 1.0, 0.1]})
    assert [point.params["lam"] for point in order] == [1.0, 0.1, 0.0]
    assert [point.start for point in order] == [None, 0, 1]
    far = plan_points({"C": [1, 1000, 900, 2]})
    assert [(point.params["C"], point.start) for point in far] == [
        (1, None),
        (2, 0),
        (900, 1),
        (1000, 2),
    ]
    assert [point.params for point in plan_points({"lam": [0.0]})] == [{"lam": 0.0}]


def test_duals_grow_with_the_root_of_c() -> None:
    assert dual_scale({"lam": 0.1, "C": 1.0}, {"lam": 0.01, "C": 4.0}) == 2.0
    assert dual_scale({"lam": 0.1}, {"lam": 0.01}) == 1.0


def test_repeated_values_are_one_point_and_keys_are_of_values() -> None:
    assert len(plan_points({"lam": [0.1, 0.1], "C": [1, 1.0]})) == 1
    assert (
        plan_points({"lam": [0.1], "C": [1]})[0].key
        == plan_points({"C": [1.0], "lam": [0.1]})[0].key
        == params_key({"lam": 0.1, "C": 1.0})
    )


def test_points_are_solved_on_one_part_and_measured_on_the_other(
    tiny: Dataset, tuning_result: TuneResult, tmp_path: Path
) -> None:
    holdout = hold_out(tiny, 0.2, 0, tmp_path / "held")
    mask = HashSplit(0.2, 0).mask(0, tiny.train.n_rows)
    assert holdout.test is not None
    for split, chosen in ((holdout.train, ~mask), (holdout.test, mask)):
        rows = take_rows(tiny.train.X, np.flatnonzero(chosen))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(split.X[:3], rows[:3], strict=True))
    assert 0.1 < mask.mean() < 0.3
    for point in tuning_result.settings:
        params = point["params"]
        spec = TrainSpec(str(holdout.path), pool="serial", params=params)
        alone = train(
            spec,
            run_dir=tmp_path / params_key(params) / "run",
            out=tmp_path / params_key(params) / "model",
        )
        # A cold start gives the same bits, a warm start nearly the same optimum.
        if point["start"] is None:
            assert (point["measures"], point["weights"]) == (
                alone.measures,
                alone.report["weights"],
            )
        assert point["measures"]["P@1"] == pytest.approx(alone.measures["P@1"], abs=0.03)
        assert point["certified"] == point["labels"] == tiny.n_labels


def test_the_best_point_makes_the_final_model(
    tiny: Dataset, tuning_result: TuneResult, tmp_path: Path
) -> None:
    best = max(point["value"] for point in tuning_result.settings)
    (chosen,) = [point for point in tuning_result.settings if point["chosen"]]
    assert chosen["value"] == best
    assert chosen["params"] == tuning_result.chosen
    alone = train(
        TrainSpec(str(tiny.path), pool="serial", params=tuning_result.chosen),
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
    )
    model = Model.open(tuning_result.model.model_path)
    assert model.path == tuning_result.path / "model"
    assert model.sha256 == tuning_result.model.sha256 == alone.sha256
    assert model.measures == alone.measures
    assert [point["params"] for point in model.manifest["report"]["path"]["settings"]] == [
        point["params"] for point in tuning_result.settings
    ]


def test_all_points_are_reported(tuning_result: TuneResult) -> None:
    report = read_json(tuning_result.path / "path.json")
    assert report["settings"] == tuning_result.settings
    assert [report[name] for name in ("select", "holdout", "seed", "chosen")] == [
        "P@1+nDCG@5",
        0.2,
        0,
        tuning_result.chosen,
    ]
    assert (report["model"], report["grid"]) == (
        tuning_result.model.sha256,
        {"lam": [0.1, 0.01], "C": [1.0]},
    )
    assert len(tuning_result.settings) == 2
    assert [point["chosen"] for point in tuning_result.settings].count(True) == 1
    assert all({"P@1", "P@5"} <= set(point["measures"]) for point in tuning_result.settings)
    costs = {"weights", "seconds", "core_seconds", "certified", "start"}
    assert all(costs <= set(point) for point in tuning_result.settings)
    assert sorted(path.name for path in tuning_result.path.iterdir()) == ["model", "path.json"]


def test_equal_values_take_the_sparser() -> None:
    results: list[dict[str, Any]] = [
        {"value": value, "weights": n}
        for value, n in ((0.5, 9), (0.6, 8), (0.6, 7), (0.6, 7), (0.4, 1))
    ]
    assert choose_setting(results) == 2


def test_a_stopped_search_keeps_its_points_and_is_resumed(
    tiny: Dataset, tuning_result: TuneResult, tmp_path: Path
) -> None:
    stop = StopFlag()

    def look(step: Progress) -> None:
        if step.note.startswith("point 2") and step.done > tiny.n_labels + 5:
            stop.set()

    with pytest.raises(Stopped, match="finished settings are kept"):
        tune(
            spec_of(tiny), run_dir=tmp_path / "run", out=tmp_path / "out", progress=look, stop=stop
        )
    entries = {
        path.name: path.stat().st_mtime_ns
        for path in (tmp_path / "run" / "settings").glob("*.json")
    }
    assert len(entries) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    steps_seen: list[Progress] = []
    result = tune(
        spec_of(tiny), run_dir=tmp_path / "run", out=tmp_path / "out", progress=steps_seen.append
    )
    for name, when in entries.items():
        assert (tmp_path / "run" / "settings" / name).stat().st_mtime_ns == when
    timeless = [
        {name: value for name, value in point.items() if "seconds" not in name}
        for point in result.settings
    ]
    assert timeless == [
        {name: value for name, value in point.items() if "seconds" not in name}
        for point in tuning_result.settings
    ]
    assert result.model.sha256 == tuning_result.model.sha256
    steps = [step for step in steps_seen if step.phase == "POINTS"]
    assert all(a.done <= b.done for a, b in pairwise(steps))
    assert {step.total for step in steps[1:]} == {2 * tiny.n_labels}


def test_a_wider_grid_solves_only_the_new_points(tiny: Dataset, tmp_path: Path) -> None:
    first = tune(spec_of(tiny, {"C": [1]}), run_dir=tmp_path / "run", out=tmp_path / "first")
    results = list((tmp_path / "run" / "settings").glob("*.json"))
    before = results[0].stat().st_mtime_ns
    second = tune(
        spec_of(tiny, {"C": [1, 3], "lam": [0.01]}),
        run_dir=tmp_path / "run",
        out=tmp_path / "second",
    )
    assert len(first.settings) == 1
    assert len(second.settings) == 2
    assert results[0].stat().st_mtime_ns == before
    with pytest.raises(Conflict, match="another search"):
        tune(spec_of(tiny, {"C": [1]}, seed=1), run_dir=tmp_path / "run", out=tmp_path / "third")


def test_threads_give_the_same_points(
    tiny: Dataset, tuning_result: TuneResult, tmp_path: Path
) -> None:
    spec = TuneSpec(TrainSpec(str(tiny.path), pool="threads", workers=3), GRID)
    result = tune(spec, run_dir=tmp_path / "run", out=tmp_path / "out")
    assert [point["measures"] for point in result.settings] == [
        point["measures"] for point in tuning_result.settings
    ]
    assert result.model.sha256 == tuning_result.model.sha256


def test_each_point_starts_from_the_duals_of_its_neighbour(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: list[Any] = []
    whole = PPDSparseSolver.solve

    def recording_solve(
        self: Any,
        local: Any,
        labels: Any,
        stopped: Any,
        start: Any = None,
        keep_duals: bool = False,
    ) -> Any:
        values.append((self.lam, labels, start, keep_duals))
        return whole(self, local, labels, stopped, start=start, keep_duals=keep_duals)

    monkeypatch.setattr(PPDSparseSolver, "warm_up", lambda *_: None)
    monkeypatch.setattr(PPDSparseSolver, "solve", recording_solve)
    data = held_out_rows(hold_out(tiny, 0.2, 0, tmp_path / "held"))
    evaluator = Evaluator("ppdsparse", {}, data, "P@1", pool="serial", folder=tmp_path / "settings")
    first, second = (point.params for point in plan_points(GRID))
    assert evaluator.evaluate(first)["start"] is None
    (path,) = (tmp_path / "settings").glob("*.arrow")
    duals = read_csr(path)
    assert duals.shape == (tiny.n_labels, data.X.n_rows)
    assert evaluator.evaluate(second, first)["start"] == first
    cold, warm = [[one for one in values if one[0] == params["lam"]] for params in (first, second)]
    assert all(start is None and keep for _, _, start, keep in cold)
    assert sum(len(labels) for _, labels, _, _ in warm) == tiny.n_labels
    for _, labels, start, keep in warm:
        assert keep
        assert all(np.array_equal(start.row(i)[1], duals.row(k)[1]) for i, k in enumerate(labels))
    evaluator.keep_duals([second])
    assert not path.exists()
    again = Evaluator("ppdsparse", {}, data, "P@1", pool="serial", folder=tmp_path / "settings")
    before, third = len(values), {"lam": 0.001, "C": 1.0}
    again.evaluate(first)
    assert len(values) == before  # it is stored, and its duals are made again where they are needed
    assert again.evaluate(third, first) == evaluator.evaluate(third, first)


@pytest.mark.drill
@pytest.mark.ray
@pytest.mark.usefixtures("ray")
def test_on_ray_points_depend_on_no_other(tiny: Dataset, tmp_path: Path) -> None:
    spec = TuneSpec(TrainSpec(str(tiny.path), pool="ray", workers=2), GRID)
    result = tune(spec, run_dir=tmp_path / "run", out=tmp_path / "out")
    holdout = hold_out(tiny, 0.2, 0, tmp_path / "held")
    for point in result.settings:
        folder = tmp_path / params_key(point["params"])
        alone = train(
            TrainSpec(str(holdout.path), pool="serial", params=point["params"]),
            run_dir=folder / "run",
            out=folder / "model",
        )
        assert (point["start"], point["measures"], point["weights"]) == (
            None,
            alone.measures,
            alone.report["weights"],
        )


def test_the_selected_measure_can_need_another_k(tiny: Dataset, tmp_path: Path) -> None:
    spec = spec_of(tiny, {"C": [1]}, select="nDCG@7")
    result = tune(spec, run_dir=tmp_path / "run", out=tmp_path / "out")
    assert "nDCG@7" in result.settings[0]["measures"]
    assert "nDCG@7" in result.model.measures


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        ({"grid": {}}, "at least one value"),
        ({"grid": {"lam": []}}, "at least one value of lam"),
        ({"grid": {"epz": [0.1]}}, "unknown parameter 'epz'"),
        ({"grid": {"loss": ["hinge"]}}, "loss must be finite and at least 0, not hinge"),
        ({"grid": {"C": [0]}}, "C must be greater than"),
        ({"grid": {"lam": [-1]}}, "lam must be finite and at least 0"),
        ({"grid": {"lam": [float("nan")]}}, "lam must be finite"),
        ({"grid": {"lam": range(40), "C": range(1, 40)}}, "more than 1000"),
        ({"select": "P"}, "for example P@1"),
        ({"select": "F1@3"}, "for example P@1"),
        ({"select": "P@0"}, "for example P@1"),
        ({"holdout": 0}, "between 0 and 1"),
        ({"holdout": 1.0}, "between 0 and 1"),
        ({"holdout": "x"}, "between 0 and 1"),
    ],
)
def test_bad_paths_name_the_fix(change: dict[str, Any], fix: str) -> None:
    with pytest.raises(ParameterError) as caught:
        TuneSpec(TrainSpec("d"), **{"grid": GRID, **change})
    assert fix in str(caught.value)


def test_a_fixed_parameter_is_not_in_the_grid() -> None:
    with pytest.raises(ParameterError, match="lam is in the grid and among the fixed"):
        TuneSpec(TrainSpec("d", params={"lam": 0.1}), GRID)


def test_a_split_with_an_empty_side_is_refused(tiny: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="0 to measure on; choose another share"):
        tune(spec_of(tiny, holdout=1e-9), run_dir=tmp_path / "run", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "run" / "held").exists()


def test_path_from_the_command_line(
    tiny: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = "--grid lam=0.1 --grid tau=1 --grid C=1,3"
    words = f"tune {tiny.path} {grid} --pool serial --select P@3".split()
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("lam\ttau\tC\tP@3 held out\tweights\tcertified\ttook\t")
    assert sum(line.endswith("chosen") for line in lines) == 1
    assert not (tmp_path / "out.run").exists()
    assert main([*words, "--out", str(tmp_path / "out"), "--json"]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["tune", str(tiny.path), "--out", str(tmp_path / "other"), "--json"]) == 2
    assert "at least one value" in json.loads(capsys.readouterr().err)["message"]


LEAST_SQUARES = {"rule": "linear", "features": "columns", "block_size": 40}


def test_solvers_without_tasks_train_each_point_on_the_other_rows(
    tiny: Dataset, tmp_path: Path
) -> None:
    train_spec = TrainSpec(str(tiny.path), "stagewise", LEAST_SQUARES, pool="serial")
    spec = TuneSpec(train_spec, {"stages": (1, 3), "lam": (1e-3, 1.0)})
    result = tune(spec, run_dir=tmp_path / "run", out=tmp_path / "out")
    assert [point["params"] for point in result.settings] == [
        {"lam": 1.0, "stages": 1},
        {"lam": 1.0, "stages": 3},
        {"lam": 1e-3, "stages": 1},
        {"lam": 1e-3, "stages": 3},
    ]
    held = hold_out(tiny, 0.2, 0, tmp_path / "held")
    for number, point in enumerate(result.settings):
        alone = TrainSpec(
            str(held.path), "stagewise", {**LEAST_SQUARES, **point["params"]}, pool="serial"
        )
        folder = tmp_path / str(number)
        model = train(alone, run_dir=folder.with_suffix(".run"), out=folder)
        assert (point["measures"], point["weights"]) == (model.measures, model.report["weights"])
    best = max(point["value"] for point in result.settings)
    assert [p["value"] for p in result.settings if p["chosen"]] == [best]
    whole = replace(train_spec, params={**LEAST_SQUARES, **result.chosen})
    final = train(whole, run_dir=tmp_path / "final.run", out=tmp_path / "final")
    assert final.sha256 == result.model.sha256


def test_a_grid_of_any_parameter_from_the_command_line(
    tiny: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", str(tiny.path), "--solver", "stagewise", "--pool", "serial"]
    words += [f"-p{name}={value}" for name, value in LEAST_SQUARES.items()]
    words += ["--out", str(tmp_path / "out")]
    assert main([*words, "--grid", "lam=0.01", "--grid", "stages=1,2"]) == 0
    assert "stages" in capsys.readouterr().out
    assert main([*words, "--grid", "rule=linear", "--out", str(tmp_path / "other")]) == 2
    assert "-p rule=linear" in capsys.readouterr().err
