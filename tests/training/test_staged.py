"""Trainings that end with stages: memory, measures, the command line, REST."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize

from tests.support.live_service import client_of, settings_for
from xcray.arrays import csr, csr_from, pattern, pattern_from
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter
from xcray.errors import ParameterError
from xcray.features.columns import Columns
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.service.app import create_app
from xcray.solvers.least_squares import stage_worker, staged_solvers
from xcray.solvers.least_squares.solver import MAX_FEATURES
from xcray.training import TrainSpec, group_training, train
from xcray.training.report.baseline import centroid_precision
from xcray.training.run import TrainResult

PARAMS: dict[str, dict[str, Any]] = {
    "stagewise": {"stages": 3, "block_size": 60},
    "calibrated-least-squares": {"rounds": 3},
}
each_solver = pytest.mark.parametrize("solver", sorted(PARAMS))
N_TRAIN = 1000


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return scikit-learn's digits as a data set."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    parts = {"train": order[:N_TRAIN], "test": order[N_TRAIN:]}
    target = tmp_path_factory.mktemp("digits") / "data"
    with DatasetWriter(target, name="digits", n_labels=10) as writer:
        for part, rows in parts.items():
            labels = pattern(np.arange(len(rows) + 1), y[rows], 10)
            writer.add(part, csr_from(X[rows] / np.float32(16)), labels)
        return writer.finish(source={"format": "digits"})


def spec_of(data: Dataset, solver: str, **changes: Any) -> TrainSpec:
    """Return the specification of a training on one thread."""
    params = {**PARAMS[solver], **changes.pop("params", {})}
    return TrainSpec(
        **{"dataset": str(data.path), "solver": solver, "params": params, "pool": "serial"}
        | changes
    )


@pytest.fixture(scope="module")
def reference(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainResult]:
    """Return the result of each solver on one thread."""
    folder = tmp_path_factory.mktemp("reference")
    return {
        name: train(spec_of(digits, name), run_dir=folder / f"{name}.run", out=folder / name)
        for name in PARAMS
    }


@each_solver
def test_rows_that_do_not_fit_are_read_in_each_pass_with_the_same_bits(
    digits: Dataset, reference: dict[str, TrainResult], monkeypatch: pytest.MonkeyPatch, solver: str
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("rows were copied")

    monkeypatch.setattr(group_training, "memory_limits", lambda _: {"memory_limit": 0})
    monkeypatch.setattr(stage_worker, "CopiedRows", refuse)
    folder = digits.path.parent / f"mapped-{solver}"
    result = train(spec_of(digits, solver), run_dir=folder.with_suffix(".run"), out=folder)
    assert result.sha256 == reference[solver].sha256


LIMITED = """
import resource, sys
from pathlib import Path
from xcray.training import TrainSpec, train

folder, allowed = Path(sys.argv[1]), int(sys.argv[2])


def run(data):
    params = {"stages": 2, "block_size": 128, "components": 16, "shards": 16}
    spec = TrainSpec(str(folder / data), "stagewise", params, pool="serial", workers=1)
    return train(spec, run_dir=folder / f"{data}-{allowed}.run", out=folder / f"{data}-{allowed}")


run("small")  # load all code before the limit is set
if allowed:
    status = open("/proc/self/status")
    used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + allowed, used + allowed))
print(run("large").sha256)
"""


@pytest.mark.drill
def test_rows_of_ten_times_the_allowed_memory_give_the_bits_of_rows_in_memory(
    tmp_path: Path,
) -> None:
    random, D, K, allowed = np.random.default_rng(0), 800, 5, 48 << 20
    centres = random.normal(size=(K, D)).astype(np.float32)
    for name, n_train in (("small", 2000), ("large", 80_000)):
        with DatasetWriter(tmp_path / name, name=name, n_labels=K) as writer:
            for part, n in [("train", 10_000)] * -(-n_train // 10_000) + [("test", 1000)]:
                labels = random.integers(0, K, n)
                X = centres[labels] + 3 * random.normal(size=(n, D)).astype(np.float32)
                rows = csr(np.arange(n + 1) * D, np.tile(np.arange(D), n), X.ravel(), D)
                writer.add(part, rows, pattern(np.arange(n + 1), labels, K))
            data = writer.finish(source={"format": "made"})
    assert data.train.X.indices.nbytes + data.train.X.data.nbytes > 10 * allowed
    bits = {limit: limited(tmp_path, limit) for limit in (allowed, 0)}
    shutil.rmtree(tmp_path)
    assert bits[allowed] == bits[0]


def limited(folder: Path, allowed: int) -> str:
    """Train in a process that can take `allowed` more bytes of memory; return the hash."""
    # A thread that a library starts takes 1 MiB instead of 8.
    shell = ["/bin/sh", "-c", 'ulimit -S -s 1024; exec "$@"', "sh"]
    done = subprocess.run(
        [*shell, sys.executable, "-c", LIMITED, str(folder), str(allowed)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_many_labels_over_text_need_no_predictions_of_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, N, D, K = np.random.default_rng(3), 400, 60, 300
    words = random.random((N, D)) < 0.05
    labels = [sorted({int(w) * 5 % K for w in np.flatnonzero(row)} | {0}) for row in words]
    with DatasetWriter(tmp_path / "data", name="text", n_labels=K) as writer:
        for part, lo, hi in (("train", 0, 300), ("test", 300, N)):
            starts = np.cumsum([0, *map(len, labels[lo:hi])])
            Y = pattern(starts, np.concatenate(labels[lo:hi]), K)
            writer.add(part, csr_from(words[lo:hi].astype(np.float32)), Y)
        data = writer.finish(source={"format": "made"})
    params = {"rule": "linear", "features": "columns", "stages": 4, "block_size": 20, "lam": 1e-4}
    spec = TrainSpec(str(data.path), "stagewise", params, pool="serial", ks=(1, 3))
    tops = []
    for limit in (1 << 27, 1000):
        monkeypatch.setattr(staged_solvers, "MAX_PREDICTIONS", limit)
        out = tmp_path / f"model-{limit}"
        result = train(spec, run_dir=out.with_suffix(".run"), out=out)
        assert result.measures["P@3"] > 0.9
        tops.append(Predictor(Model.open(out)).predict(data["test"].X, 3))
    assert tops[1].scores == pytest.approx(tops[0].scores, abs=1e-5)


@each_solver
def test_the_model_predicts_what_the_report_says(
    digits: Dataset, reference: dict[str, TrainResult], solver: str
) -> None:
    result, test = reference[solver], digits.test
    assert test is not None
    model = Model.open(result.model_path)
    assert len(model.stages) == result.report["stages"] == 3
    best = Predictor(model).predict(test.X, 1).labels[:, 0]
    accuracy = float((best == test.Y.indices).mean())
    assert accuracy == pytest.approx(result.measures["P@1"], abs=0.002)
    assert accuracy > 0.93
    history = result.report["history"]
    assert [entry["epoch"] for entry in history] == [1, 2, 3]
    assert history[-1]["P@1"] == result.measures["P@1"] > history[0]["P@1"]
    assert (result.report["converged"], result.report["warnings"]) == (True, [])
    assert model.label_table is not None
    assert model.label_table["positives"].to_pylist() == digits.label_counts.tolist()
    json.dumps(result.report, allow_nan=False)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a data set with several labels per row, noise, and nearly as many features as rows."""
    random, N, D, K = np.random.default_rng(5), 600, 240, 12
    X = (random.random((N, D)) < 0.1) * random.normal(size=(N, D))
    scores = X @ random.normal(size=(D, K)) + 2.0 * random.normal(size=(N, K))
    Y = np.maximum(np.eye(K)[scores.argmax(axis=1)], scores > 3.0)
    with DatasetWriter(tmp_path_factory.mktemp("several") / "data", name="s", n_labels=K) as writer:
        for part, rows in (("train", slice(0, 400)), ("test", slice(400, N))):
            writer.add(part, csr_from(X[rows].astype(np.float32)), pattern_from(Y[rows] > 0))
        return writer.finish(source={"format": "made"})


def test_several_labels_per_row_stop_at_the_best_round_and_can_be_predicted(
    several: Dataset, tmp_path: Path
) -> None:
    spec = spec_of(several, "calibrated-least-squares", params={"rounds": 10})
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    history, stages = result.report["history"], Model.open(tmp_path / "model").stages
    errors = [entry["held_out_error"] for entry in history]
    assert result.report["stages"] == len(stages) == 1 + int(np.argmin(errors))
    assert len(stages) == len(history) - 2
    assert "has not fallen" in result.report["stopped"]
    assert result.measures["P@1"] >= history[0]["P@1"]
    everything = spec_of(several, "calibrated-least-squares", params={"rounds": 4, "held_out": 0.0})
    train(everything, run_dir=tmp_path / "all.run", out=tmp_path / "all")
    for name in ("model", "all"):
        model, X = Model.open(tmp_path / name), several["test"].X
        scores = Predictor(model).predict(X, 12).scores
        assert ((scores >= 0.0) & (scores <= 1.0)).all()
    assert len(model.stages) == 4


def test_a_model_far_below_label_centroids_is_reported(digits: Dataset, tmp_path: Path) -> None:
    codes = []
    for size in (2, 64):
        params = {"features": "columns", "rule": "linear", "stages": 1, "block_size": size}
        spec = spec_of(digits, "stagewise", params=params)
        report = train(spec, run_dir=tmp_path / f"{size}.run", out=tmp_path / str(size)).report
        codes.append([warning["code"] for warning in report["warnings"]])
    assert codes == [["BELOW_BASELINE"], []]
    precision, rows = centroid_precision(digits)
    X = normalize(digits.train.X.to_scipy().toarray())
    means = normalize(digits.train.Y.to_scipy().toarray().T @ X)
    best = (digits["test"].X.to_scipy().toarray() @ means.T).argmax(axis=1)
    exact = float((best == digits["test"].Y.indices).mean())
    assert rows == 500
    assert precision == pytest.approx(exact, abs=0.05)


def test_other_features_and_averaged_chains(digits: Dataset, tmp_path: Path) -> None:
    for features in ("logits", "polynomial"):
        params = {"features": features, "models": 2, "stages": 2, "block_size": 100}
        spec = spec_of(digits, "stagewise", params={**params, "rule": "previous"})
        result = train(spec, run_dir=tmp_path / f"{features}.run", out=tmp_path / features)
        model = Model.open(tmp_path / features)
        assert [stage.W.shape for stage in model.stages] == [(100, 10)] * 4
        assert len({stage.features.fingerprint for stage in model.stages if stage.features}) == 4
        best = Predictor(model).predict(digits["test"].X, 1).labels[:, 0]
        assert float((best == digits["test"].Y.indices).mean()) == result.measures["P@1"] > 0.93
        assert result.report["history"][-1]["P@1"] == result.measures["P@1"]
    masks = {"features": "kmeans-masks", "image": "8x8", "patch": 3, "stages": 2, "lam": 1e-3}
    spec = spec_of(digits, "stagewise", params={**masks, "block_size": 99})
    result = train(spec, run_dir=tmp_path / "masks.run", out=tmp_path / "masks")
    assert [stage.W.shape for stage in Model.open(tmp_path / "masks").stages] == [(96, 10)] * 2
    assert result.measures["P@1"] > 0.95
    spec = spec_of(digits, "stagewise", params={"features": "columns", "models": 2})
    with pytest.raises(ParameterError, match="needs random features"):
        train(spec, run_dir=tmp_path / "run", out=tmp_path / "refused")


def test_columns_of_sparse_rows(tiny: Dataset, tmp_path: Path) -> None:
    X, Y = tiny.train.X.to_scipy().astype(np.float64), tiny.train.Y.to_scipy().toarray()
    D = X.shape[1]
    size = -(-D // 3)
    params = {"features": "columns", "rule": "linear", "block_size": size, "stages": 6}
    spec = TrainSpec(str(tiny.path), solver="stagewise", pool="serial", params=params)
    train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    stages, R = Model.open(tmp_path / "model").stages, Y / 1.0
    for number, stage in enumerate(stages):
        if number % 3 == 0:  # the largest gradients first, again for each pass
            order = np.argsort(-np.square(X.T @ R).sum(axis=1), kind="stable")
        assert isinstance(stage.features, Columns)
        expected = np.sort(order[number % 3 * size : (number % 3 + 1) * size])
        assert len(np.setxor1d(stage.features.numbers, expected)) <= 2  # ties, rounding
        R -= X[:, stage.features.numbers] @ np.asarray(stage.W, np.float64)


def test_too_many_features_name_the_fix(digits: Dataset, tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    with DatasetWriter(wide, name="wide", n_labels=2) as writer:
        X = csr_from(np.eye(4, MAX_FEATURES + 1, dtype=np.float32))
        writer.add("train", X, pattern(np.arange(5), [0, 1, 0, 1], 2))
        data = writer.finish(source={"format": "made"})
    spec = spec_of(data, "calibrated-least-squares")
    with pytest.raises(ParameterError, match="features=fourier"):
        train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")


@pytest.fixture(scope="module")
def trained_by_command(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that the command line trained."""
    out = tmp_path_factory.mktemp("cli") / "model"
    command = ["train", str(digits.path), "--solver", "stagewise", "--out", str(out)]
    assert main([*command, "-p", "stages=2", "-p", "block_size=80", "--pool", "serial"]) == 0
    return out


def test_the_command_line_trains_evaluates_and_reports(
    digits: Dataset, trained_by_command: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    command = ["evaluate", str(trained_by_command), str(digits.path), "--samples", "0", "--json"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["models"][0]["measures"]["P@1"] > 0.9
    assert main(["report", str(trained_by_command)]) == 0


def test_a_service_answers_with_it(
    digits: Dataset, trained_by_command: Path, tmp_path: Path
) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    app.state.app_state.registry.publish("digits", trained_by_command)
    test = digits.test
    assert test is not None
    rows = test.X.to_scipy()[:5].toarray()
    with client_of(app) as http:
        body = {"instances": [{"values": row.tolist()} for row in rows], "top_k": 1}
        reply = http.post("/v1/models/digits:predict", json=body).json()
    best = [int(one["labels"][0]) for one in reply["predictions"]]
    assert (np.array(best) == test.Y.indices[:5]).sum() >= 4
