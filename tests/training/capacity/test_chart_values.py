"""Chart values of a training, compared with trainings, files and the chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.deployment.chart import helm
from tests.support.missing_tools import say
from xcray.arrays import csr_from, pattern
from xcray.cli.main import main
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.model.model import Model
from xcray.solvers import make_solver, newton
from xcray.solvers.declarations import TaskNeeds
from xcray.training import TrainSpec, train
from xcray.training.capacity.chart_values import (
    ANSWERING_BYTES,
    API_BYTES,
    GIB,
    chart_values,
    home_bytes,
    serving_bytes,
    worker_bytes,
)
from xcray.training.strategies import estimate_training

CHART = Path(__file__).parents[3] / "helm" / "xcray"


@pytest.fixture(scope="module")
def middle(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a data set with too many labels for a short sample."""
    synthetic = {"rows": 3000, "features": 2500, "labels": 300, "seed": 3}
    options = BuildOptions.from_dict({"test_fraction": 0.1, "synthetic": synthetic})
    return build("synthetic", {}, tmp_path_factory.mktemp("middle") / "data", options)


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
        assert solver.task_needs(dataset.train.X) == TaskNeeds(expected)


@pytest.fixture(scope="module")
def trained(middle: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a model and return the folder of the run and the model."""
    folder = tmp_path_factory.mktemp("trained")
    spec = TrainSpec(str(middle.path), pool="serial")
    train(spec, run_dir=folder / "run", out=folder / "model")
    return folder


def test_disk_is_estimated_as_the_training_uses_it(middle: Dataset, trained: Path) -> None:
    """With time to solve all labels, the space of parts, model and data is about the estimated."""
    result = estimate_training(TrainSpec(str(middle.path), pool="serial"), probe_seconds=600.0)
    model = Model.open(trained / "model")
    parts = sum(path.stat().st_size for path in (trained / "run").glob("part-*.arrow"))
    assert result.model == pytest.approx(model.n_bytes, rel=0.3)
    assert result.parts == pytest.approx(parts, rel=0.3)
    data = sum(p.stat().st_size for p in middle.path.rglob("*.arrow"))
    files = data + result.parts + 3 * result.model
    assert home_bytes(result, middle) > 1.25 * files
    dense = model.search.dense
    plain = 0 if dense is None else 4 * model.n_labels * model.n_features
    assert serving_bytes(result._replace(weights=model.nnz), middle) == (
        API_BYTES + ANSWERING_BYTES + 32 * model.n_labels + result.model + plain
    )


def test_worker_pods_have_at_most_four_cores_and_share_the_training(tiny: Dataset) -> None:
    for workers, pods, cores in ((1, 1, 1), (4, 1, 4), (5, 2, 3), (16, 4, 4)):
        spec = TrainSpec(str(tiny.path), "dsmlr", pool="ray", workers=workers)
        result = estimate_training(spec, probe_seconds=0.0)
        values = yaml.safe_load(chart_values(result, tiny, cluster=True))
        group = values["ray"]["workerDefaults"]
        assert (group["replicas"], group["cpu"]) == (pods, cores)
    more = result._replace(worker=result.worker + GIB, ray=result.ray + 8 * GIB)
    memory, objects = worker_bytes(more, 4, 4)
    before, _ = worker_bytes(result, 4, 4)
    assert objects > 2 * GIB
    assert memory > before + objects + 4 * GIB


def unknown_keys(inputs: Any, known: Any, path: str = "") -> list[str]:
    """Return the keys that the chart's values.yaml does not have."""
    out = []
    for key, value in inputs.items():
        if key not in known:
            out.append(f"{path}{key}")
        elif isinstance(value, dict):
            out += unknown_keys(value, known[key], f"{path}{key}.")
    return out


@pytest.mark.parametrize(("mode", "pool"), [("all-in-one", "threads"), ("cluster", "ray")])
def test_the_chart_accepts_the_printed_values(
    mode: str, pool: str, tiny: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(tiny.path), "--pool", pool, "--workers", "6", "--values"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert values["mode"] == mode
    words = ["train", str(tiny.path), "--pool", pool, "--workers", "6", "--values", "--json"]
    assert main(words) == 0
    assert yaml.safe_load(json.loads(capsys.readouterr().out)["values"]).keys() == values.keys()
    assert unknown_keys(values, yaml.safe_load((CHART / "values.yaml").read_text())) == []
    if not helm.helms():
        say(
            "helm",
            "printed values were held against the keys of values.yaml, and not rendered",
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
