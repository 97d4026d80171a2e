"""Deployment sizing: formulas compared with measured sets, and sampling of labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from tests.deployment.chart import helm
from tests.support.missing_tools import say
from xcray.arrays import csr_from, frozen, pattern
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.errors import ParameterError
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.solvers import make_solver, newton
from xcray.training import TrainSpec
from xcray.training.capacity.cost_formulas import newton_bytes, uses_newton
from xcray.training.capacity.preflight import (
    MeasuredRates,
    TrainingShape,
    entries_per_label,
    estimate,
    estimate_from,
    mapped_bytes,
    mean_sq_norm,
    newton_extra_bytes,
)
from xcray.training.planning.deployment import (
    FORMULA_SECONDS_RANGE,
    FORMULA_WEIGHTS_RANGE,
    MAX_LABEL_SHARE,
    rows_per_label,
    size_from_dataset,
    size_from_numbers,
)
from xcray.training.planning.deployment_options import DatasetShape, DeploymentOptions

CHART = Path(__file__).parents[3] / "helm" / "xcray"
AT = [
    "--rows",
    "490449",
    "--features",
    "135909",
    "--labels",
    "670091",
    "--nnz",
    "37175000",
    "--labels-per-row",
    "5.39",
]


class Known(NamedTuple):
    """A set that was solved with the defaults: its sizes, core seconds, weights, bytes of its files
    in MB (None: not counted), and the mean |x|^2 of a row.
    """

    rows: int
    features: int
    labels: int
    per_row: float
    labels_per_row: float
    held_out: float
    core: float
    weights: float
    files: float | None
    norm: float = 1.0


# README.md and `python -m benchmarks.sizing`. Fitted to: bibtex, gutenberg_lcsh, clef. Made up with
# the shapes of famous sets, at their full size: lshtc1, wiki, amazon. Made up and dense: the last
# three
KNOWN = {
    "bibtex": Known(4880, 1836, 159, 68.5, 2.38, 0.52, 0.58, 0.194e6, 8.5, 68.5),
    "cooking": Known(12404, 4201, 735, 7.8, 2.31, 0.24, 0.72, 0.213e6, 2.7),
    "news20": Known(11269, 53975, 20, 130.2, 1.0, 0.67, 0.84, 0.15e6, 41.0, 3071.0),
    "gutenberg_lcsh": Known(65798, 29268, 36828, 8.8, 2.33, 0.23, 15.5, 4.3e6, 17.0),
    "gnd_tibkat": Known(90452, 200251, 35116, 99.2, 2.85, 0.284, 122.8, 31e6, 196.1),
    "lshtc1": Known(93805, 347000, 12000, 130.7, 1.09, 0.1, 77.6, 13.2e6, 222.0),
    "wiki": Known(444588, 1617899, 325056, 42.4, 3.16, 0.1, 1083.9, 136.4e6, 390.0),
    "amazon": Known(490449, 135909, 670091, 75.8, 5.39, 0.1, 3547.7, 446.6e6, 665.0),
    "clef": Known(10000, 80, 63, 57.2, 1.0, 0.1, 2.69, 5.04e3, None, 888.0),
    "mnist": Known(60000, 784, 10, 149.9, 1.0, 0.17, 13.9, 6.35e3, None, 87.8),
    "dense-many": Known(5000, 64, 1000, 64.0, 2.0, 0.0, 17.5, 6.39e4, None, 64.0),
    "unit-3e4": Known(30000, 128, 2000, 128.0, 2.0, 0.0, 13.6, 2.16e5, None),
    "unit-3e3-wide": Known(3000, 768, 100, 768.0, 1.0, 0.0, 0.82, 3.58e4, None),
}
TEXT = ("bibtex", "cooking", "gutenberg_lcsh", "gnd_tibkat", "lshtc1", "wiki", "amazon")


def data_of(known: Known) -> DatasetShape:
    """The sizes alone."""
    nnz = int(known.rows * known.per_row)
    sizes = (known.rows, known.features, known.labels, nnz)
    return DatasetShape(*sizes, known.labels_per_row, known.held_out, mean_sq_norm=known.norm)


@pytest.mark.parametrize("name", KNOWN)
def test_sizes_alone_foresee_what_sets_really_took(name: str) -> None:
    known = KNOWN[name]
    found = size_from_numbers(data_of(known), DeploymentOptions(cluster=False, cores=1))
    assert (
        FORMULA_SECONDS_RANGE.low
        <= known.core / found.training.core_seconds
        <= FORMULA_SECONDS_RANGE.high
    )
    assert (
        FORMULA_WEIGHTS_RANGE.low
        <= known.weights / found.training.weights
        <= FORMULA_WEIGHTS_RANGE.high
    )
    assert found.core_hours.low <= known.core / 3600 <= found.core_hours.high
    assert found.weights.low <= known.weights <= found.weights.high
    if known.files is not None:
        assert 0.85 <= known.files / (found.training.mapped / 1e6) <= 1.15


def test_methods_are_chosen_as_the_solver_does(tiny: Dataset) -> None:
    """Long rows of few features take Newton's way: by the numbers, and by the solver that looks at
    the rows.
    """
    solver = make_solver("ppdsparse", {})
    rng, Y = np.random.default_rng(0), pattern(np.arange(41), np.arange(40) % 3, 3)
    for scale in (0.1, 3.0):
        X = csr_from((scale * rng.normal(size=(40, 8))).astype(np.float32))
        problem = solver.load(X, transpose(X), transpose_pattern(Y)).problem
        norm = float(np.square(X.data.astype(np.float64)).sum()) / 40
        assert uses_newton(solver, 8, norm) == newton.is_suitable(problem, solver._objective())
        assert uses_newton(solver, 8, norm) == (scale == 3.0)
    assert newton_extra_bytes(solver, tiny.train) in (
        0,
        newton_bytes(tiny.train.n_rows, tiny.n_features),
    )
    assert newton_extra_bytes(make_solver("pdsparse", {}), tiny.train) == 0


def test_dense_rows_are_foreseen_by_their_length() -> None:
    """Embeddings of length 1 take descent, standardised features Newton's way, whose work is with
    the square of the features.
    """
    unit = size_from_numbers(
        DatasetShape(10_000, 384, 100, 3_840_000, mean_sq_norm=1.0),
        DeploymentOptions(cluster=False),
    ).training
    standard = size_from_numbers(
        DatasetShape(10_000, 384, 100, 3_840_000), DeploymentOptions(cluster=False)
    ).training
    wide = size_from_numbers(
        DatasetShape(10_000, 768, 100, 7_680_000), DeploymentOptions(cluster=False)
    ).training
    assert unit.core_seconds < standard.core_seconds
    assert wide.core_seconds > 2.5 * standard.core_seconds
    assert standard.worker > newton_bytes(10_000, 384)
    assert standard.weights == 384 * 100


def test_it_is_the_formula_of_preflight(tiny: Dataset) -> None:
    """Given what a data set tells, the same needs come out to the byte."""
    solver, train = make_solver("ppdsparse", {}), tiny.train
    spec, every = (
        TrainSpec(str(tiny.path), memory_limit="4GiB"),
        frozen(np.arange(tiny.n_labels), np.int32),
    )
    numbers = (train.n_rows, tiny.n_features, tiny.n_labels, train.X.nnz)
    shape = TrainingShape(
        *numbers,
        entries_per_label(train),
        solver.cost_terms(train.X, train.XT, train.YT),
        mapped_bytes(tiny),
    )
    assert estimate_from(spec, shape, solver, every, 2, MeasuredRates()) == estimate(
        spec, tiny, solver, every, workers=2, probe_seconds=0.0
    )


def test_labels_are_drawn_with_the_mean_and_the_most_that_are_said() -> None:
    for name in TEXT:
        data = data_of(KNOWN[name])
        counts = rows_per_label(data)
        assert counts.sum() == pytest.approx(data.rows * data.labels_per_row, rel=0.01)
        assert counts[0] == pytest.approx(max(MAX_LABEL_SHARE * data.rows, counts.mean()))
        assert (np.diff(counts) <= 0).all()


def test_more_of_anything_needs_no_less() -> None:
    data, wishes = DatasetShape(100_000, 50_000, 10_000, 5_000_000), DeploymentOptions()
    first = size_from_numbers(data, wishes)
    for name in ("rows", "features", "labels", "entries"):
        more = size_from_numbers(data._replace(**{name: 2 * getattr(data, name)}), wishes)
        assert more.home >= first.home, name
        assert more.pods["worker"].memory >= first.pods["worker"].memory, name
    for name in ("jobs", "models", "versions"):
        assert (
            size_from_numbers(data, wishes._replace(**{name: 2})).home
            >= size_from_numbers(data, wishes._replace(**{name: 1})).home
        )
    assert (
        size_from_numbers(data, wishes._replace(processes=4)).pods["api"].memory
        > first.pods["api"].memory
    )


def test_worker_pods_follow_from_the_hours_that_are_wanted() -> None:
    data = data_of(KNOWN["amazon"])
    numbers = []
    for hours in (4.0, 1.0, 0.25):
        found = size_from_numbers(data, DeploymentOptions(hours=hours))
        assert found.hours < hours * 1.1  # publishing comes on top
        assert found.training.workers == found.pods["worker"].number * 4
        numbers.append(found.pods["worker"].number)
    assert numbers == sorted(numbers)
    assert numbers[-1] > numbers[0]


@pytest.mark.parametrize("solver", ["dismec", "l2svm", "dsmlr", "lbfgs", "lc"])
def test_other_solvers_have_a_size_too(solver: str) -> None:
    found = size_from_numbers(data_of(KNOWN["cooking"]), DeploymentOptions(), solver)
    assert found.core_hours.value > 0
    assert found.training.worker > 0


def test_what_can_not_be_is_refused_with_a_fix() -> None:
    good = DatasetShape(1000, 100, 10, 5000)
    for change, words in (
        ({"entries": 100_001}, "nnz is the number of nonzero"),
        ({"labels_per_row": 11.0}, "mean number"),
        ({"rows": 0}, "from 1"),
        ({"postings_share": 1.5}, "a share"),
        ({"labels_per_row": float("nan")}, "labels_per_row"),
        ({"mean_sq_norm": 0.0}, "norm"),
    ):
        with pytest.raises(ParameterError, match=words):
            size_from_numbers(good._replace(**change), DeploymentOptions())  # type: ignore[arg-type]
    for change in ({"cores": 0}, {"hours": 0.0}, {"hours": float("inf")}, {"versions": 0}):
        with pytest.raises(ParameterError):
            size_from_numbers(good, DeploymentOptions()._replace(**change))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="--estimate"):
        size_from_numbers(good, DeploymentOptions(), "pdsparse")


def test_the_command_tells_people_and_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *AT, "--hours", "1"]) == 0
    told = capsys.readouterr().out
    assert "core hours" in told
    assert "sizes alone" in told
    assert main(["plan", *AT, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["training"]["weights"] > 1e8
    assert set(found["pods"]) == {"api", "runner", "head", "worker"}
    assert main(["plan", *AT, "--mode", "serving"]) == 2
    assert main(["plan", *AT, "--json", "--values"]) == 2
    assert main(["plan", *AT, "--param", "nothing=1"]) == 2
    assert main(["plan", "--rows", "10", "--labels", "2"]) == 2
    assert "--measure" in capsys.readouterr().err


def test_labels_of_a_data_set_are_solved_instead(
    tiny: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """All are, where there is time for all: then the weights are those of the model to the last
    one.
    """
    found = size_from_dataset(tiny.path, DeploymentOptions(cluster=False, cores=1), seconds=60.0)
    solver, train = make_solver("ppdsparse", {}), tiny.train
    every = frozen(np.arange(tiny.n_labels), np.int32)
    block = solver.solve(solver.load(train.X, train.XT, train.YT), every)
    assert found.weights.low == pytest.approx(found.weights.high)
    assert found.training.weights == pytest.approx(block.W.nnz, abs=len(every))
    assert found.training.mapped == mapped_bytes(tiny)
    assert 0 < found.core_hours.low < found.core_hours.value < found.core_hours.high
    assert (
        main(["plan", "--measure", str(tiny.path), "--seconds", "0.5", "--mode", "all-in-one"]) == 0
    )
    assert "labels solved here" in capsys.readouterr().out
    with pytest.raises(ParameterError, match="--estimate"):
        size_from_dataset(tiny.path, DeploymentOptions(), "pdsparse")
    with pytest.raises(ParameterError, match="seconds"):
        size_from_dataset(tiny.path, DeploymentOptions(), seconds=0.0)


@pytest.mark.parametrize("solver", ["dsmlr", "lbfgs"])
def test_of_solvers_of_all_labels_a_pass_is_what_counts(solver: str, tiny: Dataset) -> None:
    found = size_from_dataset(
        tiny.path, DeploymentOptions(cluster=False, cores=1), solver, seconds=0.2
    )
    assert found.core_hours.low < found.core_hours.value < found.core_hours.high
    assert mean_sq_norm(tiny.train) > 0


def unknown_keys(given: Any, known: Any, path: str = "") -> list[str]:
    """Keys of values that the chart's values.yaml does not have."""
    out = []
    for key, value in given.items():
        if key not in known:
            out.append(f"{path}{key}")
        elif isinstance(value, dict):
            out += unknown_keys(value, known[key], f"{path}{key}.")
    return out


@pytest.mark.parametrize("mode", ["all-in-one", "cluster"])
def test_values_are_ones_that_the_chart_takes(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *AT, "--mode", mode, "--replicas", "3", "--hours", "0.5", "--values"]) == 0
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
        wanted = values["ray"]["workerDefaults"]
        group = ray["spec"]["workerGroupSpecs"][0]
        assert group["maxReplicas"] == wanted["maxReplicas"]
        assert (
            group["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
            == wanted["memory"]
        )
    (claim,) = [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["resources"]["requests"]["storage"] == values["storage"]["home"]["size"]
