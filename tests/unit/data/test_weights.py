"""Weights of training rows: stored and hashed with the data set, validated, used by solvers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.robustness.badinput.numpy_arrays import HEADERS
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.weights import check_weights, read_weights, set_weights
from xcray.errors import Conflict, Corrupt, InputError, ParameterError, ShapeMismatch
from xcray.model.model import Model
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.training import TrainSpec, train
from xcray.training.selection.held_out import hold_out


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Build a small data set."""
    options = BuildOptions.from_dict(
        {"test_fraction": 0.2, "synthetic": {"rows": 300, "features": 80, "labels": 12}}
    )
    return build("synthetic", {}, tmp_path_factory.mktemp("weights") / "data", options)


@pytest.fixture(scope="module")
def weighted(data):
    """Build the same data set with weights from 0.5 to 2."""
    return set_weights(
        data, np.linspace(0.5, 2.0, data.train.n_rows), data.path.parent / "weighted"
    )


def test_weights_are_part_of_the_data_set_and_of_its_hash(data, weighted):
    again = Dataset.open(weighted.path, verify=True)
    np.testing.assert_allclose(
        again.train.weights, np.linspace(0.5, 2.0, data.train.n_rows), rtol=1e-6
    )
    assert data.train.weights is None
    assert again.test.weights is None
    assert again.content_hash != data.content_hash
    assert again.train.content_hash == data.train.content_hash
    other = set_weights(again, np.ones(data.train.n_rows), data.path.parent / "other")
    assert len({data.content_hash, again.content_hash, other.content_hash}) == 3
    assert (
        set_weights(other, again.train.weights, data.path.parent / "back").content_hash
        == again.content_hash
    )


@pytest.mark.parametrize("pool", ["serial", "threads"])
def test_training_feels_them(data, weighted, tmp_path, pool):
    params = {"eps": 1e-4}
    result = train(
        TrainSpec(str(weighted.path), pool=pool, workers=2, params=params),
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
    )
    rows = weighted.train
    solver = PPDSparseSolver(eps=1e-4)
    block = solver.solve(
        solver.load(rows.X, rows.XT, rows.YT, rows.weights),
        np.arange(weighted.n_labels, dtype=np.int32),
    )
    assert (Model.open(result.model_path).W.data == block.W.data).all()
    plain = solver.solve(
        solver.load(rows.X, rows.XT, rows.YT), np.arange(weighted.n_labels, dtype=np.int32)
    )
    assert plain.digest() != block.digest()


def test_held_out_rows_keep_theirs(weighted, tmp_path):
    holdout = hold_out(weighted, 0.25, 3, tmp_path / "held")
    assert holdout.train.weights.shape == (holdout.train.n_rows,)
    selection = set(holdout.train.weights.tolist())
    assert selection < set(weighted.train.weights.tolist())
    assert hold_out(weighted, 0.25, 3, tmp_path / "held").content_hash == holdout.content_hash


def test_a_solver_without_weights_refuses_them(weighted, tmp_path):
    with pytest.raises(ParameterError, match="no sample weights; use ppdsparse"):
        train(
            TrainSpec(str(weighted.path), solver="pdsparse"),
            run_dir=tmp_path / "run",
            out=tmp_path / "model",
        )


def test_files_of_weights(tmp_path):
    np.save(tmp_path / "w.npy", np.array([1.0, 2.5]))
    (tmp_path / "w.txt").write_text("1\n2.5\n\n")
    assert (
        read_weights(tmp_path / "w.npy").tolist()
        == read_weights(tmp_path / "w.txt").tolist()
        == [1.0, 2.5]
    )
    (tmp_path / "bad.txt").write_text("1\ntwo\n")
    with pytest.raises(InputError, match="line 2: 'two' is not a number"):
        read_weights(tmp_path / "bad.txt")
    for content in (b"nothing", *HEADERS.values()):
        (tmp_path / "bad.npy").write_bytes(content)
        with pytest.raises(InputError, match="not an array of numbers"):
            read_weights(tmp_path / "bad.npy")


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_weights_name_the_row_and_leave_nothing(data, tmp_path, bad):
    weights = np.ones(data.train.n_rows)
    weights[7] = bad
    with pytest.raises(InputError, match="row 7 has weight"):
        set_weights(data, weights, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_bad_sizes_places_and_files(data, weighted, tmp_path):
    with pytest.raises(ShapeMismatch, match="one weight per row"):
        check_weights(np.ones(3), 4)
    with pytest.raises(Conflict):
        set_weights(data, np.ones(data.train.n_rows), weighted.path)
    copy = set_weights(data, np.ones(data.train.n_rows), tmp_path / "copy")
    (copy.path / "train" / "weights.arrow").write_bytes(
        b"x" * (copy.path / "train" / "weights.arrow").stat().st_size
    )
    with pytest.raises(Corrupt):
        Dataset.open(copy.path, verify=True)
