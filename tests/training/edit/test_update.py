"""Updates to changed rows: certified labels on all rows, and untouched ones to the byte."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.flat_models import write_fields
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.delta.files import delta_from_files
from xcray.data.delta.rows import make_delta
from xcray.data.weights import set_weights
from xcray.errors import Conflict, InputError, ParameterError, Stopped
from xcray.measures import inverse_propensities
from xcray.model.model import Model
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.storage.arrow import read_table
from xcray.training import Progress, TrainSpec, train
from xcray.training.edit.apply import EditOptions
from xcray.training.edit.labels import rename_labels
from xcray.training.edit.update import update_model
from xcray.workers.pool import StopFlag

SERIAL = EditOptions(pool="serial")
SETTINGS: dict[str, dict[str, Any]] = {
    "squared": {},
    "hinge": {"loss": "hinge", "lam": 0.05},
    "propensity": {"positives": "propensity", "row_norm": "l2"},
    "balanced-hinge": {"loss": "hinge", "positives": "balanced", "bias_penalty": 1.0},
}


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Build the rows from which bases are made by removing some."""
    options = BuildOptions.from_dict(
        {"test_fraction": 0.2, "synthetic": {"rows": 400, "features": 60, "labels": 30}}
    )
    return build("synthetic", {}, tmp_path_factory.mktemp("update") / "data", options)


def trained(data: Dataset, folder: Path, params: dict[str, Any], **options: Any) -> Model:
    """Train with stored dual variables."""
    spec = TrainSpec(
        str(data.path), params=params, pool="serial", **{"keep_duals": True, **options}
    )
    return Model.open(train(spec, run_dir=folder / "run", out=folder / "model").model_path)


def parts_of(complete: Dataset, folder: Path, n: int, weighted: bool = False) -> list[Dataset]:
    """Return all but the last n rows, and a data set to which these are added again."""
    N = complete.train.n_rows
    base = make_delta(complete, folder / "base", remove=range(N - n, N))
    if weighted:
        base = set_weights(base, np.linspace(0.5, 2.0, N - n), folder / "weighted")
    rest = make_delta(complete, folder / "rest", remove=range(N - n))
    return [base, make_delta(base, folder / "changed", add=rest)]


def objectives(model: Model, data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the primal and the null objective of each label, in float64 from the definition."""
    solver = PPDSparseSolver(**model.manifest["params"])
    X = data.train.X.to_scipy().astype(np.float64).toarray()
    if solver.row_norm == "l2":
        X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-30)
    W, b = model.W.to_scipy().astype(np.float64).toarray(), model.b.astype(np.float64)
    Y = np.where(data.train.Y.to_scipy().toarray() > 0, 1.0, -1.0)
    counts, N = data.label_counts, data.train.n_rows
    factor = {
        "equal": np.ones(len(counts)),
        "balanced": np.maximum(N - counts, 1) / np.maximum(counts, 1),
        "propensity": inverse_propensities(counts, N),
    }[solver.positives]
    weights = np.ones(N) if data.train.weights is None else data.train.weights
    costs = solver.C * weights[:, None] * np.where(Y > 0, factor, 1.0)

    def value(scores: np.ndarray, bias: np.ndarray) -> np.ndarray:
        z = np.maximum(0.0, 1.0 - Y * (scores + bias))
        losses = (costs * (z if solver.loss == "hinge" else z * z)).sum(0)
        return losses + 0.5 * solver.tau * solver.bias_penalty * bias**2

    norms = solver.lam * np.abs(W).sum(1) + 0.5 * solver.tau * (W**2).sum(1)
    grid = np.linspace(-1.0, 1.0, 4001)
    null = np.min([value(np.zeros(Y.shape), np.full(Y.shape[1], at)) for at in grid], axis=0)
    return norms + value(X @ W.T, b), null


def check_certificates(model: Model, data: Dataset, folder: Path) -> None:
    """Compare all certificates with bounds of a precise training on the same rows."""
    params = {**model.manifest["params"], "eps": 1e-5}
    exact = trained(data, folder, params, keep_duals=False).label_table
    eps, table = model.manifest["params"]["eps"], model.label_table
    primal, null = objectives(model, data)
    optimum = exact["dual"].to_numpy()
    has_rows = data.label_counts > 0
    assert (primal - optimum <= eps * null + 1e-5 * null)[has_rows].all()
    np.testing.assert_allclose(table["null"].to_numpy()[has_rows], null[has_rows], rtol=1e-4)
    assert (table["primal"].to_numpy() >= primal - 1e-4 * null)[has_rows].all()
    assert (table["dual"].to_numpy() <= exact["primal"].to_numpy() + 1e-5 * null)[has_rows].all()
    assert table["certified"].to_numpy().all()
    assert table["positives"].to_numpy().tolist() == data.label_counts.tolist()


@pytest.mark.parametrize("setting", SETTINGS)
def test_added_and_removed_rows(complete: Dataset, tmp_path: Path, setting: str) -> None:
    """Every label is certified on the changed rows; untouched ones keep their bytes."""
    base, _ = parts_of(complete, tmp_path, 10)
    before = trained(base, tmp_path / "m", {"eps": 0.05, **SETTINGS[setting]})
    rest = Dataset.open(tmp_path / "rest")
    data = make_delta(base, tmp_path / "both", add=rest, remove=[0, 50], relabel={9: ["1", "x"]})
    result = update_model(before.path, data.path, tmp_path / "new", SERIAL)
    after, counts = Model.open(result.model_path), result.report["update"]
    check_certificates(after, data, tmp_path / "exact")
    solved = np.array(
        [(after.W.row(k)[1].tobytes() != before.W.row(k)[1].tobytes()) for k in range(30)]
    )
    assert counts["new"] == 1
    assert counts["untouched"] + counts["solved"] == 30
    assert counts["untouched"] >= (~solved).sum() - 2 > 0
    dropped = [k for k in range(30) if {0, 50} & {*before.duals.row(k)[0].tolist()}]
    names = [before.label_names[k] for k in dropped]
    assert counts["labels_that_used_removed_rows"] == names
    assert after.duals.shape == (31, data.train.n_rows)
    assert after.provenance[-1]["operation"] == "update"
    assert f": {counts['untouched']} labels untouched, " in (after.path / "card.md").read_text()
    assert after.manifest["dataset_hash"] == data.content_hash


def test_most_labels_are_untouched_by_a_few_rows(complete: Dataset, tmp_path: Path) -> None:
    """Without stored dual variables the recorded bounds do; the bytes are those of any pool."""
    base, data = parts_of(complete, tmp_path, 3, weighted=True)
    before = trained(base, tmp_path / "m", {"eps": 0.2}, keep_duals=False)
    result = update_model(before.path, data.path, tmp_path / "new", SERIAL)
    after = Model.open(result.model_path)
    check_certificates(after, data, tmp_path / "exact")
    assert after.duals is None
    assert after.measures == {}
    assert result.report["update"]["untouched"] >= 15
    kept = sum(
        after.W.row(k)[1].tobytes() == before.W.row(k)[1].tobytes() and after.b[k] == before.b[k]
        for k in range(30)
    )
    assert kept >= result.report["update"]["untouched"]
    three = EditOptions(workers=3)
    threads = update_model(before.path, data.path, tmp_path / "threads", three, evaluate=True)
    assert threads.sha256 == result.sha256
    assert set(threads.measures) >= {"P@1", "nDCG@5"}
    again = make_delta(data, tmp_path / "again", remove=[5])
    second = update_model(after.path, again.path, tmp_path / "second", SERIAL)
    assert second.report["update"]["untouched"] == 0


def test_a_stopped_update_goes_on(complete: Dataset, tmp_path: Path) -> None:
    """Finished labels are kept, and the result has the same bytes and dual variables."""
    base, data = parts_of(complete, tmp_path, 10)
    before = trained(base, tmp_path / "m", {})
    whole = update_model(before.path, data.path, tmp_path / "whole", SERIAL)
    flag, run = StopFlag(), tmp_path / "run"

    def stop(progress: Progress) -> None:
        if progress.phase == "MERGING":
            flag.set()

    options = replace(SERIAL, run_dir=run)
    with pytest.raises(Stopped):
        update_model(
            before.path, data.path, tmp_path / "new", replace(options, stop=flag, progress=stop)
        )
    resumed = update_model(before.path, data.path, tmp_path / "new", options)
    assert resumed.sha256 == whole.sha256
    models = [Model.open(result.model_path) for result in (whole, resumed)]
    assert models[0].duals_digest == models[1].duals_digest != {}
    other = trained(base, tmp_path / "other", {"eps": 0.02})
    with pytest.raises(Conflict, match="other duals, model"):
        update_model(other.path, data.path, tmp_path / "x", options)


def content(folder: Path) -> str:
    """Return the bytes of all files below a folder, and what their compressed tables hold."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    tables = [read_table(path).to_pydict() for path in files if path.suffix == ".arrow"]
    return str([path.read_bytes() for path in files]) + str(tables)


def test_a_forgotten_row_is_in_no_file(tmp_path: Path) -> None:
    """Its text and its id are in no file of the new data set and model, and no dual variable."""
    rows = [(f"d{i}", f"{['red', 'blue', 'green'][i % 3]} word{i % 5}") for i in range(30)]
    rows.insert(7, ("id-of-mallory", "red secret of mallory"))
    documents = [{"id": id, "text": text, "labels": [text.split()[0]]} for id, text in rows]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(each) + "\n" for each in documents))
    options = BuildOptions.from_dict({"id_field": "id", "test_fraction": 0.0})
    base = build("jsonl", {"train": tmp_path / "d.jsonl"}, tmp_path / "base", options)
    before = trained(base, tmp_path / "m", {"eps": 0.001})
    (tmp_path / "ids").write_text("id-of-mallory\n")
    data = delta_from_files(base.path, tmp_path / "data", remove=tmp_path / "ids")
    update_model(before.path, data.path, tmp_path / "new", SERIAL)
    assert 7 in before.duals.indices
    after = Model.open(tmp_path / "new")
    assert after.duals.shape == (3, data.train.n_rows)
    for secret in ("id-of-mallory", "red secret of mallory"):
        assert secret in content(base.path)
        assert secret not in content(data.path) + content(after.path)


def update_and_die(model: Path, data: Path, out: Path, run_dir: Path) -> None:
    """Update in this process, which is killed when labels are done."""

    def die(progress: Progress) -> None:
        if progress.phase == "TRAINING" and progress.done:
            os.kill(os.getpid(), signal.SIGKILL)

    update_model(model, data, out, EditOptions(run_dir=run_dir, progress=die))


@pytest.mark.drill
def test_a_killed_update_goes_on(complete: Dataset, tmp_path: Path) -> None:
    base, data = parts_of(complete, tmp_path, 10)
    before = trained(base, tmp_path / "m", {})
    whole = update_model(before.path, data.path, tmp_path / "whole", SERIAL)
    paths = (before.path, data.path, tmp_path / "new", tmp_path / "run")
    process = get_context("spawn").Process(target=update_and_die, args=paths)
    process.start()
    process.join(600)
    assert process.exitcode == -signal.SIGKILL
    assert not paths[2].exists()
    resumed = update_model(*paths[:3], replace(SERIAL, run_dir=paths[3]))
    assert resumed.sha256 == whole.sha256
    files = [Path(result.model_path, "duals.arrow") for result in (whole, resumed)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_what_gives_no_bound_is_refused(complete: Dataset, tmp_path: Path) -> None:
    base, data = parts_of(complete, tmp_path, 3)
    before = trained(base, tmp_path / "m", {})
    with pytest.raises(InputError, match="not a changed one"):
        update_model(before.path, complete.path, tmp_path / "x")
    second = make_delta(data, tmp_path / "second", remove=[0])
    with pytest.raises(Conflict, match="another data set"):
        update_model(before.path, second.path, tmp_path / "x")
    renamed = rename_labels(before.path, tmp_path / "renamed", {"3": "three"})
    with pytest.raises(Conflict, match="labels of the model"):
        update_model(renamed.model_path, data.path, tmp_path / "x")
    pruned = trained(base, tmp_path / "p", {"prune": 0.01}, keep_duals=False)
    with pytest.raises(ParameterError, match="pruned weights"):
        update_model(pruned.path, data.path, tmp_path / "x")
    write_fields(
        tmp_path / "imported",
        W=before.W,
        b=before.b,
        label_names=before.label_names,
        feature_names=before.feature_names,
        solver="imported",
        params={},
        dataset_hash=base.content_hash,
    )
    with pytest.raises(ParameterError, match="made by 'imported', which is not a solver"):
        update_model(tmp_path / "imported", data.path, tmp_path / "x")
    with pytest.raises(ParameterError, match="no dual bound"):
        TrainSpec("data", solver="pdsparse", keep_duals=True)
    with pytest.raises(ParameterError, match="leave out groups"):
        TrainSpec("data", keep_duals=True, groups="10")
