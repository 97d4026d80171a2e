"""Rows of unit length as an option of a training: every answer, against rows normalised by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.live_service import client_of, settings_for
from xcray.arrays import CSR, csr_from, frozen, pattern_from
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter
from xcray.errors import Corrupt, ParameterError
from xcray.estimators import PPDSparse
from xcray.index.log_partition import LogPartition
from xcray.index.search import SearchIndex
from xcray.kernels import row_norm
from xcray.kernels.row_norm import has_equal_lengths, normalize_columns, normalize_rows, row_lengths
from xcray.kernels.sparse import row_range, transpose
from xcray.model.manifest import MANIFEST, read_manifest, row_norm_of
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.model.write import ModelContent, TrainingRecord, write_model
from xcray.predict import Predictor
from xcray.service.app import create_app
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.training import TrainSpec, train
from xcray.training.calibration.fit import fit_calibration
from xcray.training.edit.calibrate import calibrate
from xcray.training.edit.labels import rename_labels, retrain_labels
from xcray.training.evaluation import evaluate_models
from xcray.training.strategies import estimate_training
from xcray.training.tune import TuneSpec, tune

L2 = {"row_norm": "l2"}


class Twins(NamedTuple):
    """The same rows as they came and divided by their lengths by hand, each with its model."""

    raw: Dataset
    hand: Dataset
    model: Model
    by_hand: Model


def divided(X: CSR) -> CSR:
    """Return the rows divided by their lengths, in dense float64."""
    dense = X.to_scipy().toarray().astype(np.float64)
    lengths = np.sqrt(np.square(dense).sum(axis=1, keepdims=True))
    return csr_from((dense / np.where(lengths > 0, lengths, 1.0)).astype(np.float32))


def train_serially(data: Dataset, path: Path, **params: Any) -> Model:
    """Return the model of a training."""
    spec = TrainSpec(str(data.path), params=params, pool="serial", calibrate=False)
    return Model.open(train(spec, run_dir=path.with_suffix(".run"), out=path).model_path)


@pytest.fixture(scope="module")
def twins(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    folder, random = tmp_path_factory.mktemp("twins"), np.random.default_rng(3)
    sets = []
    for name in ("raw", "hand"):
        random = np.random.default_rng(3)
        with DatasetWriter(
            folder / name, name=name, n_features=tiny.n_features, n_labels=tiny.n_labels
        ) as writer:
            for part in ("train", "test"):
                X, Y = tiny[part].X, tiny[part].Y
                factors = np.repeat(random.uniform(0.1, 30.0, X.n_rows), np.diff(X.indptr))
                X = X._replace(data=frozen(X.data * factors, np.float32))
                X = csr_from(np.vstack([X.to_scipy().toarray(), np.zeros((1, X.n_cols))]))
                Y = pattern_from(np.vstack([Y.to_scipy().toarray(), np.eye(1, tiny.n_labels)]))
                writer.add(part, X if name == "raw" else divided(X), Y)
            sets.append(writer.finish(source={}, label_names=tiny.label_names))
    raw, hand = sets
    return Twins(
        raw,
        hand,
        train_serially(raw, folder / "model", **L2),
        train_serially(hand, folder / "by_hand"),
    )


def test_the_model_and_its_answers_are_those_of_rows_normalised_by_hand(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert np.array_equal(twins.model.W.data, twins.by_hand.W.data)
    assert np.array_equal(twins.model.W.indices, twins.by_hand.W.indices)
    assert np.array_equal(twins.model.b, twins.by_hand.b)
    assert twins.model.measures == twins.by_hand.measures
    assert (twins.model.row_norm, twins.by_hand.row_norm) == ("l2", "none")
    predictor, other = Predictor(twins.model), Predictor(twins.by_hand)
    rows, divided_rows = twins.raw["test"].X, twins.hand["test"].X
    for options, in_numpy in (
        ({}, False),
        ({}, True),
        ({"deadline_ms": 1e6}, False),
        ({"allow": [0, 3, 7]}, False),
    ):
        if in_numpy:
            monkeypatch.setattr(SearchIndex, "is_compiled", False)
        else:
            monkeypatch.undo()
        ours, theirs = (
            predictor.search(rows, 3, **options),
            other.search(divided_rows, 3, **options),
        )
        assert np.array_equal(ours.labels, theirs.labels)
        assert np.array_equal(ours.scores, theirs.scores)
    for label in (0, 11):
        one = row_range(rows, 5, 6), row_range(divided_rows, 5, 6)
        assert predictor.explain(one[0], label) == other.explain(one[1], label)
        assert predictor.scorer.rank(one[0], label) == other.scorer.rank(one[1], label)


def test_a_factor_of_a_row_changes_nothing_and_an_empty_row_gets_the_biases(twins: Twins) -> None:
    predictor, X = Predictor(twins.model), twins.raw["test"].X
    expected = predictor.predict(X, 5)
    for factor, tolerance in ((0.25, 0.0), (3.0, 1e-6)):
        top = predictor.predict(X._replace(data=frozen(X.data * factor, np.float32)), 5)
        assert np.allclose(top.scores, expected.scores, rtol=0.0, atol=tolerance)
    empty = expected.scores[-1]  # the last row is empty
    assert np.array_equal(empty, np.sort(twins.model.b.astype(np.float64))[::-1][:5])


def test_evaluation_calibration_and_tuning_normalise(twins: Twins, tmp_path: Path) -> None:
    ours = evaluate_models([twins.model.path], twins.raw.path)["models"][0]["measures"]
    assert ours == evaluate_models([twins.by_hand.path], twins.hand.path)["models"][0]["measures"]
    calibrated = calibrate(twins.model.path, twins.raw.path, tmp_path / "calibrated")
    test, train_rows = twins.raw["test"], twins.raw.train.X
    expected, _ = fit_calibration(
        lambda X, k: Predictor(twins.by_hand).predict(divided(X), k),
        *(test.X, test.Y, twins.raw.label_counts, train_rows),
    )
    assert calibrated.row_norm == "l2"
    assert calibrated.calibration is not None
    assert calibrated.calibration.sha256 == expected.sha256
    spec = {"grid": {"C": (1.0, 3.0)}, "holdout": 0.3}
    results = [
        tune(
            TuneSpec(TrainSpec(str(data.path), params=params, pool="serial"), **spec),
            run_dir=tmp_path / f"tune-{data.name}",
            out=tmp_path / f"tuned-{data.name}",
        )
        for data, params in ((twins.raw, L2), (twins.hand, {}))
    ]
    measured = [[point["measures"] for point in result.settings] for result in results]
    assert measured[0] == measured[1]


def test_edited_models_normalise(twins: Twins, tmp_path: Path) -> None:
    names = twins.model.labels[:2]
    again = retrain_labels(twins.model.path, twins.raw.path, tmp_path / "again", names)
    assert again.sha256 == twins.model.sha256
    renamed = rename_labels(twins.model.path, tmp_path / "renamed", {names[0]: "other"})
    assert Model.open(renamed.model_path).row_norm == "l2"


def test_the_command_and_the_service_normalise(
    twins: Twins, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", str(twins.raw.path), "-p", "row_norm=l2", "--pool", "serial", "--json"]
    assert main([*command, "-o", str(tmp_path / "m")]) == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == twins.model.sha256
    expected = Predictor(twins.by_hand).predict(twins.hand["test"].X, 3).scores
    app = create_app(settings_for(tmp_path / "home"))
    registry: Registry = app.state.app_state.registry
    registry.publish("rows", tmp_path / "m")
    with client_of(app) as http:
        for i in (0, 7):
            columns, values = twins.raw["test"].X.row(i)
            row = {"indices": columns.tolist(), "values": values.tolist()}
            reply = http.post("/v1/models/rows:predict", json={"instances": [row], "top_k": 3})
            assert reply.json()["predictions"][0]["scores"] == expected[i].tolist()


def test_the_estimator_normalises(twins: Twins, tmp_path: Path) -> None:
    X, Y = twins.raw.train.X.to_scipy(), twins.raw.train.Y.to_scipy()
    test, test_by_hand = (data["test"].X.to_scipy() for data in (twins.raw, twins.hand))
    fitted = PPDSparse(row_norm="l2").fit(X, Y)
    by_hand = PPDSparse().fit(twins.hand.train.X.to_scipy(), Y)
    expected = by_hand.predict_top_k(test_by_hand, 3).scores
    fitted.save(tmp_path / "saved")
    for each in (fitted, PPDSparse.load(tmp_path / "saved")):
        assert np.array_equal(each.predict_top_k(test, 3).scores, expected)
        assert np.array_equal(each.decision_function(test), by_hand.decision_function(test_by_hand))
    saved = Predictor(Model.open(tmp_path / "saved")).predict(test, 3)
    assert np.array_equal(saved.scores, expected)


def test_softmax_probabilities_are_those_of_normalised_rows(twins: Twins) -> None:
    model, rows = twins.model, twins.raw["test"].X
    ours = LogPartition(model.search).compute(rows)
    plain = SearchIndex.build(model.W, model.b)
    assert np.array_equal(ours, LogPartition(plain).compute(twins.hand["test"].X))


def test_auto_normalises_where_it_helps_and_lengths_differ(twins: Twins, tmp_path: Path) -> None:
    settings = []
    for data in (twins.raw, twins.hand):
        spec = TrainSpec(str(data.path), pool="serial", auto="P@1+nDCG@5")
        out = tmp_path / data.name
        report = train(spec, run_dir=tmp_path / f"{data.name}-run", out=out).report
        settings.append(report["auto"]["settings"])
        (chosen,) = [row["params"] for row in settings[-1] if row["chosen"]]
        assert Model.open(out).row_norm == chosen.get("row_norm", "none")
    assert [row["params"]["row_norm"] for row in settings[0]][:3] == ["none", "none", "l2"]
    # rows of equal length
    assert all("row_norm" not in row["params"] for row in settings[1])


def test_models_without_it_keep_their_manifest_and_hash(twins: Twins, tmp_path: Path) -> None:
    assert "row_norm" not in PPDSparseSolver().as_dict()
    assert "row_norm" not in twins.by_hand.manifest["params"]
    assert "row_norm" not in twins.by_hand.manifest["stages"][0]
    content = ModelContent(twins.model.W, twins.model.b, twins.model.labels, twins.model.features)
    record = TrainingRecord("ppdsparse", {}, "")
    plain = write_model(tmp_path / "plain", content, record)
    content = ModelContent(*list(vars(content).values())[:4], row_norm="l2")
    assert write_model(tmp_path / "l2", content, record).sha256 != plain.sha256


def test_unknown_norms_are_refused(twins: Twins) -> None:
    with pytest.raises(ParameterError, match="row_norm must be one of none, l2"):
        PPDSparseSolver(row_norm="l1")
    manifest = read_manifest(twins.model.path)
    assert row_norm_of(manifest) == "l2"
    manifest["stages"][0]["row_norm"] = "l1"
    with pytest.raises(Corrupt, match=MANIFEST):
        row_norm_of(manifest)


@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
def test_rows_and_columns_are_divided_alike(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_norm, "CHUNK_ENTRIES", chunk)
    random = np.random.default_rng(0)
    dense = random.normal(size=(9, 5)) * (random.random((9, 5)) < 0.5)
    dense[3] = 0.0
    X = csr_from(dense.astype(np.float32))
    by_row = normalize_rows(X, "l2")
    assert np.array_equal(by_row.to_scipy().toarray(), divided(X).to_scipy().toarray())
    by_column = normalize_columns(transpose(X), row_lengths(X))
    assert np.array_equal(by_column.data, transpose(by_row).data)
    assert normalize_rows(X, "none") is X
    assert has_equal_lengths(by_row)
    assert not has_equal_lengths(X)
    part = normalize_rows(CSR(X.indptr[4:], X.indices, X.data, X.n_cols), "l2")  # a view
    assert np.array_equal(part.data[X.indptr[4] :], by_row.data[X.indptr[4] :])
    extreme = csr_from(np.array([[1e-38, 0.0], [3e38, 3e38]], np.float32))
    assert np.allclose(normalize_rows(extreme, "l2").to_scipy().toarray(), [[1, 0], [0.5**0.5] * 2])


def test_the_normalised_values_are_in_the_estimate(twins: Twins) -> None:
    plain, l2 = (
        estimate_training(TrainSpec(str(twins.raw.path), params=params)) for params in ({}, L2)
    )
    assert l2.driver - plain.driver >= 8 * twins.raw.train.X.nnz - 8 * abs(
        l2.weights - plain.weights
    )
    needs = PPDSparseSolver(row_norm="l2").task_needs(twins.raw.train.X)
    assert needs.process_bytes == 8 * twins.raw.train.X.nnz
    assert PPDSparseSolver().task_needs(twins.raw.train.X).process_bytes == 0
