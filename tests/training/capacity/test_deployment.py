"""Deployment sizing from a sample of labels, compared with trainings, files and the chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.deployment.chart import helm
from tests.support.missing_tools import say
from xcray.arrays import csr_from, frozen, pattern
from xcray.cli.main import main
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter
from xcray.errors import ParameterError
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.model.model import Model
from xcray.solvers import make_solver, newton
from xcray.solvers.declarations import TaskNeeds
from xcray.training import TrainSpec, train
from xcray.training.capacity.preflight import (
    Estimate,
    estimate,
)
from xcray.training.capacity.sampling import Range
from xcray.training.planning.deployment import (
    DeploymentOptions,
    DeploymentSize,
    build_size,
    guessed_shape,
    size_from_dataset,
)

CHART = Path(__file__).parents[3] / "helm" / "xcray"
ONE_POD = DeploymentOptions(cluster=False, cores=1)


@pytest.fixture(scope="module")
def middle(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a data set with too many labels for a short sample."""
    synthetic = {"rows": 3000, "features": 2500, "labels": 300, "seed": 3}
    options = BuildOptions.from_dict({"test_fraction": 0.1, "synthetic": synthetic})
    return build("synthetic", {}, tmp_path_factory.mktemp("middle") / "data", options)


def sized(dataset: Dataset, options: DeploymentOptions, core_hours: float = 2.0) -> DeploymentSize:
    """Return the deployment size for a training of `core_hours`."""
    labels = frozen(np.arange(dataset.n_labels), np.int32)

    def estimate_with(workers: int) -> Estimate:
        spec = TrainSpec(str(dataset.path), memory_limit="4GiB")
        solver = make_solver("ppdsparse", {})
        own = estimate(spec, dataset, solver, labels, workers=workers, probe_seconds=0.0)
        seconds = 3600.0 * core_hours
        return own._replace(core_seconds=seconds, seconds=seconds / workers)

    exact = Range(1.0, 1.0, 1.0)
    return build_size(dataset, options, estimate_with, "a test", exact, exact)


def test_methods_are_chosen_as_in_the_solver(tmp_path: Path) -> None:
    """Data with long rows of few features are planned with Newton's method, as in training."""
    solver = make_solver("ppdsparse", {})
    rng, Y = np.random.default_rng(0), pattern(np.arange(41), np.arange(40) % 3, 3)
    for scale in (0.1, 3.0):
        X = csr_from((scale * rng.normal(size=(40, 8))).astype(np.float32))
        with DatasetWriter(tmp_path / str(scale), name="rows", n_labels=3) as writer:
            writer.add("train", X, Y)
            dataset = writer.finish(source={"format": "made"})
        problem = solver.load(X, transpose(X), transpose_pattern(Y)).problem
        suits = newton.is_suitable(problem, solver._objective())
        assert suits == (scale == 3.0)
        # A Hessian of the features and the constant, with 12 rows and columns, two matrices
        # without padding, a block of rows, twenty numbers per row, and dense rows.
        matrices = 8 * (12**2 + 2 * 9**2 + 72 * 12)
        expected = matrices + 20 * 8 * 40 + 4 * 40 * 8 if suits else 0
        assert solver.task_needs(dataset.train.X) == TaskNeeds(expected, equal_costs=suits)
        assert make_solver("pdsparse", {}).task_needs(dataset.train.X).n_bytes == 0
        guess = guessed_shape(solver, dataset).seconds
        assert (guess.min() == guess.max()) == suits


@pytest.fixture(scope="module")
def trained(middle: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a model and return the folder of the run and the model."""
    folder = tmp_path_factory.mktemp("trained")
    spec = TrainSpec(str(middle.path), pool="serial")
    train(spec, run_dir=folder / "run", out=folder / "model")
    return folder


def test_a_plan_predicts_the_training(middle: Dataset, trained: Path) -> None:
    """With time to solve all labels, the planned number of weights is that of the model.

    Parts, model and data take about the planned space.
    """
    result = size_from_dataset(middle.path, ONE_POD, seconds=600.0)
    assert int(result.known.split()[0]) <= middle.n_labels
    model = Model.open(trained / "model")
    parts = sum(path.stat().st_size for path in (trained / "run").glob("part-*.arrow"))
    assert result.weights.low == pytest.approx(result.weights.high)
    assert result.training.weights == pytest.approx(model.nnz, abs=1)
    assert result.training.model == pytest.approx(model.n_bytes, rel=0.3)
    assert result.training.parts == pytest.approx(parts, rel=0.3)
    assert 0 < result.core_hours.low < result.core_hours.value < result.core_hours.high
    assert result.disk["data"] == sum(p.stat().st_size for p in middle.path.rglob("*.arrow"))
    assert result.disk["models"] == 3 * result.training.model
    assert result.home > 1.25 * sum(result.disk.values())


def test_more_of_anything_needs_no_less(tiny: Dataset) -> None:
    first = sized(tiny, DeploymentOptions())
    for name in ("jobs", "models", "versions"):
        options = DeploymentOptions()._replace(**{name: 2})  # type: ignore[arg-type]
        assert sized(tiny, options).home >= sized(tiny, options._replace(**{name: 1})).home
    assert sized(tiny, DeploymentOptions(processes=4)).pods["api"].memory > first.pods["api"].memory
    assert (
        sized(tiny, DeploymentOptions(cores=8)).pods["worker"].memory > first.pods["worker"].memory
    )
    assert set(first.pods) == {"api", "runner", "head", "worker"}
    assert set(sized(tiny, ONE_POD).pods) == {"api"}


def test_the_number_of_worker_pods_follows_from_the_hours(tiny: Dataset) -> None:
    """Two core hours run on pods of four cores with a utilisation of 90 %."""
    for hours, pods in ((None, 1), (4.0, 1), (0.5, 2), (0.1, 6), (0.01, 56)):
        result = sized(tiny, DeploymentOptions(hours=hours))
        assert result.pods["worker"].number == pods
        assert result.training.workers == 4 * pods
        assert hours is None or result.hours <= hours
    assert sized(tiny, DeploymentOptions(cluster=False, hours=0.01)).training.workers == 4


@pytest.mark.parametrize("solver", ["dismec", "l2svm"])
def test_other_solvers_have_a_size_too(solver: str, tiny: Dataset) -> None:
    result = size_from_dataset(tiny.path, DeploymentOptions(), solver, seconds=0.2)
    assert result.core_hours.value > 0
    assert result.training.worker > 0


@pytest.mark.parametrize("solver", ["dsmlr", "lbfgs", "lc"])
def test_joint_solvers_are_estimated_by_their_passes(solver: str, tiny: Dataset) -> None:
    result = size_from_dataset(tiny.path, ONE_POD, solver, seconds=0.2)
    assert result.core_hours.low < result.core_hours.value < result.core_hours.high
    assert result.training.worker > 0


def test_invalid_options_are_refused_with_a_fix(tiny: Dataset, tmp_path: Path) -> None:
    for change in ({"cores": 0}, {"hours": 0.0}, {"hours": float("inf")}, {"versions": 0}):
        with pytest.raises(ParameterError):
            size_from_dataset(tiny.path, DeploymentOptions()._replace(**change))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="--estimate"):
        size_from_dataset(tiny.path, DeploymentOptions(), "pdsparse")
    with pytest.raises(ParameterError, match="seconds"):
        size_from_dataset(tiny.path, DeploymentOptions(), seconds=0.0)
    with DatasetWriter(tmp_path / "none", name="none", n_labels=2) as writer:
        writer.add("train", csr_from(np.ones((2, 3), np.float32)), pattern([0, 0, 0], [], 2))
        writer.finish(source={"format": "made"})
    with pytest.raises(ParameterError, match="no row has a label"):
        size_from_dataset(tmp_path / "none", DeploymentOptions())


def test_the_command_prints_text_or_json(tiny: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["plan", str(tiny.path), "--seconds", "0.5"]
    assert main([*at, "--hours", "1"]) == 0
    output = capsys.readouterr().out
    assert "core hours" in output
    assert "labels solved here" in output
    assert main([*at, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["training"]["weights"] > 0
    assert set(document["pods"]) == {"api", "runner", "head", "worker"}
    assert main([*at, "--mode", "serving"]) == 2
    assert main([*at, "--json", "--values"]) == 2
    assert main([*at, "--param", "nothing=1"]) == 2
    assert main([*at, "--serve", "model"]) == 2
    capsys.readouterr()
    assert main(["plan"]) == 2
    assert "DATASET" in capsys.readouterr().err


def test_serving_a_model_is_estimated_from_its_files(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model.open(trained / "model")
    at = ["plan", "--serve", str(trained / "model")]
    assert main([*at, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["load"]["weights"] == model.nnz
    assert document["model"] == pytest.approx(model.n_bytes, rel=0.3)
    assert document["memory"] == document["process"] + document["model"] + document["plain"]
    dense = model.search.dense
    assert document["plain"] == (0 if dense is None else 4 * model.n_labels * model.n_features)
    assert main([*at, "--query-rows", "10"]) == 0
    assert "10 rows over HTTP" in capsys.readouterr().out


def unknown_keys(inputs: Any, known: Any, path: str = "") -> list[str]:
    """Return the keys that the chart's values.yaml does not have."""
    out = []
    for key, value in inputs.items():
        if key not in known:
            out.append(f"{path}{key}")
        elif isinstance(value, dict):
            out += unknown_keys(value, known[key], f"{path}{key}.")
    return out


@pytest.mark.parametrize("mode", ["all-in-one", "cluster"])
def test_the_chart_accepts_the_printed_values(
    mode: str, tiny: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--seconds", "0.5", "--mode", mode, "--replicas", "3", "--hours", "1e-6"]
    assert main(["plan", str(tiny.path), *options, "--values"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert unknown_keys(values, yaml.safe_load((CHART / "values.yaml").read_text())) == []
    if not helm.helms():
        say(
            "helm",
            "values of `xcray plan` were held against the keys of values.yaml, and not rendered",
        )
        return
    more = {"store": {"existingSecret": "store"}} if mode == "cluster" else {}
    objects = helm.template_values({**values, **more})
    if mode == "cluster":
        (ray,) = [each for each in objects if each["kind"] == "RayCluster"]
        expected = values["ray"]["workerDefaults"]
        group = ray["spec"]["workerGroupSpecs"][0]
        assert group["maxReplicas"] == expected["maxReplicas"]
        assert (
            group["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
            == expected["memory"]
        )
    (claim,) = [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["resources"]["requests"]["storage"] == values["storage"]["home"]["size"]
