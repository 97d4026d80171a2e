"""Calibrated models: fitted on held-out rows, measured on others, with unchanged answers."""

from __future__ import annotations

import errno
import json
import os
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.naive import calibration as naive
from tests.support.report_data import series_of
from xcray.arrays import CSR, Pattern, TopK, csr_from, pattern_from
from xcray.cli import main as cli
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.errors import Conflict, Corrupt, InputError, NotCalibrated, ParameterError, ShapeMismatch
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.measures import matches
from xcray.model.calibration import CALIBRATION
from xcray.model.manifest import read_manifest
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.storage.atomic import file_digests
from xcray.training import TrainSpec, train
from xcray.training.calibration import fit as calibration_fit
from xcray.training.calibration.fit import fit_calibration, split_rows
from xcray.training.edit.calibrate import calibrate
from xcray.training.edit.labels import remove_labels, rename_labels
from xcray.training.report.render import draw_report, summarize_model
from xcray.training.strategies import estimate_training


def trained(data: Dataset, folder: Path, **how: Any) -> Any:
    """Train on `data` and return the result."""
    spec = TrainSpec(str(data.path), pool="serial", params={"eps": 0.1}, **how)
    return train(spec, run_dir=folder / "run", out=folder / "model")


@pytest.fixture(scope="module")
def calibrated(data: Dataset, plain: Model, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Return `plain` with calibrated probabilities."""
    return calibrate(plain.path, data.path, tmp_path_factory.mktemp("made") / "model")


def test_answers_keep_every_bit_and_their_order(
    data: Dataset, plain: Model, calibrated: Model
) -> None:
    before, after = Predictor(plain), Predictor(Model.open(calibrated.path, verify=True))
    assert data.test is not None
    for k in (1, 5, 100):
        one, two = before.predict(data.test.X, k), after.predict(data.test.X, k)
        np.testing.assert_array_equal(one.labels, two.labels)
        np.testing.assert_array_equal(one.scores, two.scores)
        calibrated_values = after.probabilities(two)
        assert calibrated_values.shape == two.scores.shape
        assert ((calibrated_values > 0) & (calibrated_values < 1)).all()
    assert {
        name: value for name, value in calibrated.measures.items() if not name.startswith("ECE")
    } == plain.measures
    assert (
        before.evaluate(data.test.X, data.test.Y)["P@3"]
        == after.evaluate(data.test.X, data.test.Y)["P@3"]
    )


def test_the_report_uses_only_rows_without_influence_on_the_fit(
    data: Dataset, calibrated: Model
) -> None:
    assert data.test is not None
    rows, left_out, side = split_rows(data.test.X, data.train.X, 0)
    report, predictor = calibrated.calibration_report, Predictor(calibrated)
    assert report["rows"] == {
        "fitted": int(side.sum()),
        "measured": int((~side).sum()),
        "left_out": left_out,
    }
    assert 0.4 < side.mean() < 0.6
    top = predictor.predict(data.test.X, 5)
    right, predicted = (
        matches(top, data.test.Y)[rows[~side]],
        predictor.probabilities(top)[rows[~side]],
    )
    for k in (1, 3, 5):
        own = report["report"][str(k)]
        expected = naive.ece(predicted[:, :k].ravel().tolist(), right[:, :k].ravel().tolist(), 15)
        assert own["ece"] == calibrated.measures[f"ECE@{k}"] == pytest.approx(expected, abs=1e-9)
        assert own["ece"] < 0.5 * own["ece_sigmoid"]
        assert own["ece"] < 4 * own["floor"]
        assert own["brier"] < own["brier_sigmoid"]
        # nearly all first labels are right, so that a constant is about as good for them
        assert own["brier"] < own["brier_constant"] * (1.05 if k == 1 else 0.5)
        assert sum(count for count, _, _ in own["groups"]) == k * (~side).sum()


def test_the_new_model_shares_files_and_has_a_hash_of_its_own(
    plain: Model, calibrated: Model, data: Dataset, tmp_path: Path
) -> None:
    shared = set(plain.manifest["files"]) - {"card.md"}
    assert {"weights.arrow", "labels.arrow"} < shared
    for name in shared:
        assert (calibrated.path / name).stat().st_ino == (plain.path / name).stat().st_ino
    assert set(calibrated.manifest["files"]) == {*plain.manifest["files"], CALIBRATION}
    assert calibrated.manifest["files"] == file_digests(calibrated.path, skip=["manifest.json"])
    assert calibrated.calibration_report["model"] == plain.sha256 != calibrated.sha256
    assert calibrated.calibration is not None
    assert plain.calibration_report == {}
    other = calibrate(calibrated.path, data.path, tmp_path / "other", seed=5)
    assert other.calibration_report["model"] == plain.sha256
    assert other.sha256 not in (calibrated.sha256, plain.sha256)
    again = calibrate(other.path, data.path, tmp_path / "again")
    assert (again.sha256, again.measures) == (calibrated.sha256, calibrated.measures)
    card = (calibrated.path / "card.md").read_text()
    assert "## Probabilities" in card
    assert "## Probabilities" not in (plain.path / "card.md").read_text()
    assert f"{100 * calibrated.measures['ECE@1']:.2f} %" in card


def test_training_with_calibrate_gives_the_same_model(
    data: Dataset, plain: Model, calibrated: Model, tmp_path: Path
) -> None:
    result = trained(data, tmp_path, calibrate=True)
    assert result.sha256 == calibrated.sha256
    assert result.measures == calibrated.measures
    assert "CALIBRATING" in result.report["seconds"]
    output = Model.open(result.model_path, verify=True)
    assert output.calibration_report["report"] == calibrated.calibration_report["report"]


def test_files_are_copied_where_they_can_not_be_linked(
    plain: Model, calibrated: Model, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Any, target: Any) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    copied = calibrate(plain.path, data.path, tmp_path / "model")
    assert copied.sha256 == calibrated.sha256
    assert (copied.path / "weights.arrow").stat().st_ino != (
        plain.path / "weights.arrow"
    ).stat().st_ino
    Model.open(copied.path, verify=True)


def test_damage_is_detected(calibrated: Model, data: Dataset, plain: Model, tmp_path: Path) -> None:
    path = calibrate(plain.path, data.path, tmp_path / "model").path
    content = bytearray((path / CALIBRATION).read_bytes())
    content[len(content) // 2] ^= 1
    (path / CALIBRATION).write_bytes(content)
    with pytest.raises(Corrupt, match=CALIBRATION):
        Model.open(path, verify=True)
    (path / CALIBRATION).unlink()
    with pytest.raises(Corrupt, match=f"{CALIBRATION} is missing"):
        Model.open(path, verify=False)
    with pytest.raises(Conflict, match="exists already"):
        calibrate(plain.path, data.path, calibrated.path)


# Only held-out rows are used.


def test_rows_of_the_training_are_left_out(rng: np.random.Generator) -> None:
    X = rng.normal(size=(900, 4)).astype(np.float32)
    Y = (rng.random((900, 3)) < 0.4).astype(np.float32)
    counts = np.array([5, 50, 500])

    def query(rows: CSR, k: int) -> TopK:
        scores = rows.to_scipy().toarray()[:, :3].astype(np.float64)
        order = np.argsort(-scores, axis=1, kind="stable")
        return TopK(order.astype(np.int32), np.take_along_axis(scores, order, axis=1))

    values = csr_from(np.concatenate([X[:300], rng.normal(size=(50, 4)).astype(np.float32)]))
    first, report = fit_calibration(query, csr_from(X), pattern_from(Y), counts, values)
    assert report["rows"]["left_out"] == 300
    assert report["rows"]["fitted"] + report["rows"]["measured"] == 600
    lies = Y.copy()
    lies[:300] = 1 - lies[:300]
    second, same = fit_calibration(query, csr_from(X), pattern_from(lies), counts, values)
    assert second.sha256 == first.sha256  # labels of left-out rows have no effect
    assert same["report"] == report["report"]
    third, _ = fit_calibration(query, csr_from(X), pattern_from(lies), counts, None)
    assert third.sha256 != first.sha256


def test_copies_of_a_row_stay_on_one_side(rng: np.random.Generator) -> None:
    rows = rng.normal(size=(200, 6)).astype(np.float32)
    X = csr_from(rows[np.concatenate([np.arange(200), rng.integers(0, 200, size=300)])])
    selection, left_out, side = split_rows(X, None, 4)
    assert (selection.tolist(), left_out) == (list(range(500)), 0)
    dense = X.to_scipy().toarray()
    for i in range(200):
        assert len(set(side[(dense == rows[i]).all(axis=1)].tolist())) == 1
    assert 60 < side[:200].sum() < 140
    assert (split_rows(X, None, 5)[2] != side).any()


def test_what_was_trained_on_is_refused(data: Dataset, plain: Model, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="was trained on the training rows of"):
        calibrate(plain.path, data.path, tmp_path / "out", part="train")
    options = BuildOptions.from_dict(
        {"test_fraction": 0, "synthetic": {"rows": 900, "features": 120, "labels": 30, "seed": 4}}
    )
    later = build("synthetic", {}, tmp_path / "later", options)
    with pytest.raises(InputError, match="no rows in part 'test'") as caught:
        calibrate(plain.path, later.path, tmp_path / "out")
    assert caught.value.code == "NO_HELD_OUT"
    result = calibrate(plain.path, later.path, tmp_path / "out", part="train")
    assert (result.calibration_report["part"], result.calibration_report["dataset_hash"]) == (
        "train",
        later.content_hash,
    )
    counts = [bin_["most"] for bin_ in result.calibration_report["bins"]]
    # Counts of the training data, not of the data set for calibration.
    assert counts[-1] == data.label_counts.max()
    other = build(
        "synthetic",
        {},
        tmp_path / "other",
        BuildOptions.from_dict({"synthetic": {"rows": 50, "features": 7}}),
    )
    with pytest.raises(ShapeMismatch, match="features"):
        calibrate(plain.path, other.path, tmp_path / "no", part="train")
    assert not (tmp_path / "no").exists()


def test_a_training_that_can_not_be_calibrated(tmp_path: Path) -> None:
    whole = build(
        "synthetic",
        {},
        tmp_path / "whole",
        BuildOptions.from_dict({"test_fraction": 0, "synthetic": {"rows": 60, "labels": 5}}),
    )
    with pytest.raises(InputError, match="held-out rows"):
        trained(whole, tmp_path / "a", calibrate=True)
    assert not list((tmp_path / "a").glob("run/parts/*"))  # refused before the work starts
    options = BuildOptions.from_dict({"test_fraction": 0.2, "synthetic": {"rows": 60, "labels": 5}})
    small = build("synthetic", {}, tmp_path / "small", options)
    result = trained(small, tmp_path / "b", calibrate=True)
    assert "hold out more rows, about " in result.report["not_calibrated"]
    model = Model.open(result.model_path)
    assert model.calibration is None
    with pytest.raises(NotCalibrated, match="xcray calibrate MODEL DATASET"):
        Predictor(model).probabilities(Predictor(model).predict(small.train.X))
    with pytest.raises(ParameterError, match="calibrate must be true or false"):
        TrainSpec(str(small.path), calibrate="yes")  # type: ignore[arg-type]


def test_the_memory_of_calibration_is_estimated(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data.test is not None
    expected = calibration_fit.calibration_bytes(data)
    assert expected == calibration_fit.BYTES_PER_CANDIDATE * 30 * data.test.n_rows
    with monkeypatch.context() as patch:
        patch.setattr(calibration_fit, "BYTES_PER_CANDIDATE", 10_000)
        plain, more = (
            estimate_training(
                TrainSpec(str(data.path), pool="serial", calibrate=on), probe_seconds=0.0
            )
            for on in (False, True)
        )
    assert plain.driver < 10_000 * 30 * data.test.n_rows <= more.driver
    rows = np.arange(2 * data.test.n_rows) % data.test.n_rows  # enough rows to measure memory
    X, Y = take_rows(data.test.X, rows), take_pattern_rows(data.test.Y, rows)
    scores = np.random.default_rng(0).normal(size=(len(rows), 30))
    order = np.argsort(-scores, axis=1).astype(np.int32)
    top = TopK(order, np.take_along_axis(scores, order, 1))
    # Compile and load the kernels before memory is measured.
    fit_calibration(lambda *_: top, X, Y, data.label_counts, None)
    tracemalloc.start()
    try:
        fit_calibration(lambda *_: top, X, Y, data.label_counts, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * expected


def test_other_names_keep_probabilities_other_labels_do_not(
    calibrated: Model, plain: Model, tmp_path: Path
) -> None:
    first = calibrated.label_name(0)
    renamed = Model.open(
        rename_labels(calibrated.path, tmp_path / "renamed", {first: "new"}).model_path
    )
    assert renamed.calibration is not None
    assert calibrated.calibration is not None
    assert renamed.calibration.sha256 == calibrated.calibration.sha256
    assert renamed.measures == calibrated.measures
    # The hash of the uncalibrated model under its new names.
    assert renamed.calibration_report["model"] not in (
        plain.sha256,
        renamed.sha256,
    )
    fewer = Model.open(remove_labels(calibrated.path, tmp_path / "fewer", [first]).model_path)
    assert (fewer.calibration, fewer.calibration_report) == (None, {})
    assert not [name for name in fewer.measures if name.startswith("ECE")]


def test_too_few_answers_have_a_reason(data: Dataset, plain: Model) -> None:
    search, test = Predictor(plain).predict, data.test
    assert test is not None

    def message(rows: Any, train_rows: Any = None, Y: Any = None) -> str:
        X, own = take_rows(test.X, rows), take_pattern_rows(Y or test.Y, rows)
        with pytest.raises(InputError) as caught:
            fit_calibration(search, X, own, data.label_counts, train_rows)
        assert caught.value.code == "TOO_FEW_ANSWERS"
        return caught.value.message

    few = message(np.arange(20))
    found = re.search(r"hold out more rows, about (\d+) instead of 20$", few)
    assert found, few
    enough = np.arange(int(found[1]))
    fit_calibration(
        search,
        take_rows(test.X, enough),
        take_pattern_rows(test.Y, enough),
        data.label_counts,
        None,
    )
    copies = message(np.arange(500), take_rows(test.X, np.arange(490)))
    assert "490 of 500 held-out rows are copies of training rows" in copies
    nothing = Pattern(np.zeros_like(test.Y.indptr), test.Y.indices[:0], test.Y.n_cols)
    assert "the model is seldom right on these rows" in message(np.arange(500), None, nothing)


def test_the_report_draws_it(plain: Model, calibrated: Model, tmp_path: Path) -> None:
    report = draw_report(calibrated.path, tmp_path / "report")
    drawn = series_of((tmp_path / "report" / report["pictures"]["calibration"]).read_text())
    assert {name.partition(":")[0] for name in drawn} == {"calibrated", "sigmoid"}
    assert report["calibration"] == calibrated.calibration_report
    assert "calibration" not in summarize_model(plain)
    for one in report["calibration"]["report"].values():
        for groups, error in (("groups", "ece"), ("groups_sigmoid", "ece_sigmoid")):
            count, mean, true = np.array(one[groups]).T
            assert (count * np.abs(mean - true)).sum() / count.sum() == pytest.approx(one[error])


# The command line.


def test_from_the_command_line(
    plain: Model,
    calibrated: Model,
    data: Dataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(words: str) -> tuple[int, str]:
        return cli.main(words.split()), capsys.readouterr().out

    new, rows = tmp_path / "new", tmp_path / "rows.txt"
    code, output = run(f"calibrate {plain.path} {data.path} -o {new}")
    assert code == 0
    assert "ECE of sigmoid(score)" in output
    assert Model.open(new).sha256 == calibrated.sha256
    assert run(f"calibrate {plain.path} {data.path}")[0] == 2
    assert run(f"calibrate nothing {data.path} -o {tmp_path / 'other'}")[0] == 2
    code, output = run(f"calibrate {plain.path} {data.path} -o {tmp_path / 'seed'} --seed 1 --json")
    assert (code, json.loads(output)["model"]) == (0, str(tmp_path / "seed"))
    assert read_manifest(tmp_path / "seed")["stages"][0]["calibration"]["seed"] == 1
    shown = json.loads(run(f"models show {new} --json")[1])
    assert shown["calibrated"].startswith("ECE @1")
    rows.write_text("0 3:1 7:0.5\n0 9:1\n")
    request = f"predict {new} --file {rows} --probabilities --certificate"
    document = json.loads(run(f"{request} -k 2 --json")[1])["predictions"]
    assert all(0 < one["probability"] < 1 for answer in document for one in answer["labels"])
    assert all(answer["certificate"]["exact"] for answer in document)
    assert document[0]["labels"][0]["score"] >= document[0]["labels"][1]["score"]
    best = document[0]["labels"][0]["label"]
    without = json.loads(run(f"{request} -k 2 --json --deny {best}")[1])["predictions"]
    assert without[0]["labels"][0]["label"] == document[0]["labels"][1]["label"]
    assert run(f"predict {plain.path} --file {rows} --probabilities")[0] == 2
    lines = run(f"{request} -k 1 --allow {best}")[1]
    assert " % " in lines
    assert (
        "exact: no other label is allowed" in lines
        or "exact: all other labels score at least" in lines
    )
