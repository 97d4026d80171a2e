"""Every solver on every extreme data set: a finite model and a report in strict JSON."""

from __future__ import annotations

import json
from dataclasses import Field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xcray.data.build import BuildOptions, build
from xcray.errors import InputError, ParameterError, Refused
from xcray.model.model import Model
from xcray.parameters import LEAST_NUMBER, declared_fields
from xcray.predict import Predictor
from xcray.solvers import BUILT_IN, SOLVERS
from xcray.training import TrainSpec, train

Row = tuple[list[int], list[tuple[int, float]]]


def random_rows(n_rows: int, n_features: int, n_labels: int) -> list[Row]:
    """Return rows of one label and up to three features."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(n_rows):
        label = int(rng.integers(n_labels))
        features = sorted(rng.choice(n_features, min(n_features, 3), replace=False))
        rows.append(([label], [(int(each) + 1, float(rng.normal())) for each in features]))
    return rows


MILLION = "a million labels, most without rows"
CASES: dict[str, list[Row]] = {
    "one label": [([0], features) for _, features in random_rows(8, 5, 1)],
    "one row": random_rows(1, 5, 1),
    "identical rows": [([i % 3], [(1, 1.0), (2, 2.0)]) for i in range(9)],
    "a label on every row": [
        ([0, i % 3 + 1], features) for i, (_, features) in enumerate(random_rows(9, 5, 3))
    ],
    "rows without labels": [
        ([i % 3] if i % 2 else [], features) for i, (_, features) in enumerate(random_rows(9, 5, 3))
    ],
    "rows without features": [
        (labels, [] if i % 3 else features)
        for i, (labels, features) in enumerate(random_rows(9, 5, 3))
    ],
    "no features": [([i % 2], []) for i in range(6)],
    "one feature": [([i % 3], [(1, float(i + 1))]) for i in range(9)],
    MILLION: [([i], [(1, 1.0), (i + 2, 0.5)]) for i in range(3)] + [([999_999], [(4, 1.0)])],
    "huge values": [([i % 3], [(1, 1e38 * (i + 1) / 9), (2, 1.0)]) for i in range(9)],
    "tiny values": [([i % 3], [(1, 1e-38 * (i + 1)), (2, 1e-30)]) for i in range(9)],
}


HUGE = "only huge values"
CASES_OF_DATA = {**CASES, HUGE: [([i % 3], [(1, 3e38), (2, -3e38)]) for i in range(9)]}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the path of a data set directory per case."""
    folder = tmp_path_factory.mktemp("edge")
    for number, rows in enumerate(CASES_OF_DATA.values()):
        lines = [
            ",".join(map(str, labels)) + "".join(f" {name}:{value!r}" for name, value in features)
            for labels, features in rows
        ]
        (folder / f"{number}.svm").write_text("\n".join(lines) + "\n")
        source = {"train": folder / f"{number}.svm"}
        build("svmlight", source, folder / str(number), BuildOptions())
    return {name: folder / str(number) for number, name in enumerate(CASES_OF_DATA)}


# these share the code of another solver; what is left to differ is their arithmetic
VARIANTS = (
    "dismec",
    "l2svm",
    "crammer-singer",
    "memoir-paper",
    "memoir-paper-frozen",
    "memoir-scripts",
    "lc",
)
VARIANTS += ("ppdsparse-paper",)
VARIANTS += ("block-minimisation", "selective-block-minimisation", "pegasos")
ARITHMETIC = ("identical rows", "rows without labels", "no features", "huge values")
# a stage of 2,000 features has too many weights for memory
FOR_A_MILLION: dict[str, dict[str, Any]] = {
    "stagewise": {"features": "columns", "rule": "linear", "block_size": 2, "stages": 1},
}
SMALL: dict[str, dict[str, Any]] = {
    "stagewise": {"stages": 2, "block_size": 50},
    "block-minimisation": {"max_epochs": 20},
    "selective-block-minimisation": {"max_epochs": 20},
}


@pytest.mark.parametrize(
    ("solver", "case"),
    [
        pytest.param(solver, case, marks=[pytest.mark.drill] if case == MILLION else [])
        for solver in BUILT_IN
        for case in (ARITHMETIC if solver in VARIANTS else CASES)
    ],
)
def test_a_training_ends_with_a_finite_model(
    directories: dict[str, Path], tmp_path: Path, solver: str, case: str
) -> None:
    params = (FOR_A_MILLION if case == MILLION else SMALL).get(solver, {})
    spec = TrainSpec(str(directories[case]), solver=solver, pool="serial", params=params)
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    json.dumps(result.report, allow_nan=False)
    model = Model.open(result.model_path)
    assert model.linear is None or np.isfinite(model.b).all()
    rows = random_rows(3, model.n_features, 1)
    X = np.zeros((3, model.n_features), np.float32)
    for i, (_, features) in enumerate(rows):
        for name, value in features:
            X[i, name - 1] = value
    assert np.isfinite(Predictor(model).predict(X, 1).scores).all()


def test_weights_that_are_not_finite_are_the_fault_of_the_values(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    params = {"stages": 1, "block_size": 50}
    spec = TrainSpec(str(directories[HUGE]), solver="stagewise", pool="serial", params=params)
    with pytest.raises(ParameterError, match="feature values are too large or too small") as caught:
        train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    assert caught.value.code == "NOT_FINITE"
    assert not (tmp_path / "model").exists()


def test_a_round_that_does_not_fit_into_memory_is_refused_at_once(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    params = {"batch": 2**31 - 1}
    spec = TrainSpec(str(directories["one row"]), solver="memoir", pool="serial", params=params)
    with pytest.raises(Refused, match="GiB of memory"):
        train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")


def extremes(field: Field[Any]) -> list[Any]:
    """Return the ends of the range of a number, or all choices; of a whole number only the least.

    The largest whole numbers are rounds, sizes and counts: such trainings take long.
    """
    about = field.metadata
    if "choices" in about:
        return list(about["choices"])
    low = about.get("low", LEAST_NUMBER)
    return [low] if about["kind"] is int else [float(low), float(about["high"])]


@pytest.mark.drill
@pytest.mark.parametrize("solver", BUILT_IN)
def test_parameters_at_the_ends_of_their_ranges(
    directories: dict[str, Path], tmp_path: Path, solver: str
) -> None:
    """Each gives a finite model, or is refused with a reason."""
    codes = set()
    for field in declared_fields(SOLVERS[solver]):
        for number, value in enumerate(extremes(field)):
            place = tmp_path / f"{field.name}-{number}"
            params = {**SMALL.get(solver, {}), field.name: value}
            data = str(directories["a label on every row"])
            try:
                spec = TrainSpec(data, solver=solver, pool="serial", params=params)
                result = train(spec, run_dir=place / "run", out=place / "model")
            except InputError as error:
                codes.add(error.code)
                continue
            json.dumps(result.report, allow_nan=False)
            linear = Model.open(result.model_path).linear
            assert linear is None or np.isfinite(linear.W.data).all()
    assert codes <= {"PARAMETER", "NOT_FINITE"}
