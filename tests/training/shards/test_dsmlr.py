"""DS-MLR by rotation: correct metrics, the same bits anywhere, the same optimum in any order."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.support.shard_toy import COMMON, GRID, LAM, Model, trained_dsmlr
from xcray.arrays import CSR, Pattern, TopK, csr_from, frozen
from xcray.errors import ParameterError, Stopped
from xcray.measures import precision_at_k
from xcray.solvers.dsmlr.solver import DSMLRSolver
from xcray.solvers.group_contract import Layout, TrainingRows
from xcray.storage.arrow import read_table
from xcray.storage.checkpoints import COPIES_ON_DISK
from xcray.training.capacity.epoch_resources import problem_shape
from xcray.training.group_workers import GroupWorkerFactory, empty_rows
from xcray.training.shards.source import ShardSource, split_plan
from xcray.workers.pool import StopFlag


def objective(model: Model, X: CSR, Y: Pattern, bias: float = 1.0) -> float:
    """Return the objective L1 of a model by its definition, in double precision."""
    keep = np.diff(Y.indptr) > 0
    scores = (X.to_scipy().astype(np.float64) @ model.W.T + model.bias)[keep]
    targets = Y.to_scipy().toarray().astype(np.float64)[keep]
    targets /= targets.sum(axis=1, keepdims=True)
    top = scores.max(axis=1)
    losses = (
        top + np.log(np.exp(scores - top[:, None]).sum(axis=1)) - (targets * scores).sum(axis=1)
    )
    return float(
        losses.mean() + 0.5 * LAM * ((model.W**2).sum() + ((model.bias / bias) ** 2).sum())
    )


@pytest.fixture(scope="module")
def reference(tiny, tmp_path_factory) -> Model:
    """Return the training by one worker in this thread."""
    return trained_dsmlr(tiny, tmp_path_factory.mktemp("alone"))


def test_the_reported_objective_is_that_of_the_model(tiny, reference):
    assert reference.outcome.objective == pytest.approx(
        objective(reference, tiny.train.X, tiny.train.Y), rel=1e-5
    )
    falls = [entry["objective"] for entry in reference.outcome.history]
    assert falls == sorted(falls, reverse=True)
    assert falls[-1] < 0.9 * np.log(tiny.n_labels)


def test_metrics_of_held_out_rows_are_true(tiny, reference):
    """The held-out metrics match those of all test rows that have labels."""
    X, Y = tiny.test.X, tiny.test.Y
    scores = X.to_scipy().astype(np.float64) @ reference.W.T + reference.bias
    best = np.argsort(-scores, axis=1, kind="stable")[:, :5].astype(np.int32)
    top = TopK(frozen(best, np.int32), frozen(np.take_along_axis(scores, best, 1), np.float64))
    newest = reference.outcome.history[-1]
    for k in (1, 3, 5):
        assert newest[f"P@{k}"] == pytest.approx(precision_at_k(top, Y, k), abs=1e-9)
    plain = objective(reference, X, Y) - 0.5 * LAM * float(
        (reference.W**2).sum() + (reference.bias**2).sum()
    )
    assert newest["held_out"] == pytest.approx(plain, rel=1e-5)


def test_rows_from_the_driver_are_those_of_the_directory(tiny, reference, tmp_path):
    assert (
        trained_dsmlr(tiny, tmp_path, "threads", 2, directory=False).block.digest()
        == reference.block.digest()
    )


@pytest.fixture(scope="module")
def long(tiny, tmp_path_factory) -> float:
    """Return the objective after 20 epochs of stochastic steps, with a sync point after each."""
    return trained_dsmlr(
        tiny, tmp_path_factory.mktemp("long"), epochs=20, history=0
    ).outcome.objective


MERGED, TWO = ({"passes": passes, "sync_every": 4} for passes in (1, 2))


@pytest.mark.parametrize(
    "changes",
    [MERGED, TWO, {"order": "uniform"}, {"order": "shortest"}, {**MERGED, "order": "uniform"}],
    ids=str,
)
def test_other_orders_and_sweeps_per_epoch_reach_the_same_objective(tiny, long, tmp_path, changes):
    """Other orders and numbers of sweeps per epoch reach the same objective.

    Between sync points, b of the merged form is one sweep behind.
    """
    result = trained_dsmlr(tiny, tmp_path, "threads", 2, epochs=20, history=0, **changes).outcome
    assert result.objective == pytest.approx(long, rel=0.01)
    assert len(result.history) <= 20 / changes.get("sync_every", 1)


def test_the_merged_form_differs_and_takes_fewer_sweeps(tiny, tmp_path):
    merged, two = ([], [])
    objectives = [
        trained_dsmlr(
            tiny, tmp_path / str(how["passes"]), epochs=4, history=0, record=spans.append, **how
        ).outcome.objective
        for spans, how in ((merged, MERGED), (two, TWO))
    ]
    assert objectives[0] != objectives[1]
    # 4 update and 4 sum sweeps, against 4 sweeps and an evaluation.
    assert 1.5 < len(two) / len(merged) < 1.7


EXACT = {"lbfgs_switch_tol": 1e9, "epochs": 9}  # L-BFGS takes over after the second epoch


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory) -> Model:
    """Return a training that switches to exact gradients."""
    return trained_dsmlr(tiny, tmp_path_factory.mktemp("exact"), **EXACT)


def test_exact_gradients_take_over_and_the_reported_objective_is_true(tiny, finished, long):
    assert [entry["epoch"] for entry in finished.outcome.history if "length" in entry] == list(
        range(3, 10)
    )
    assert finished.outcome.objective == pytest.approx(
        objective(finished, tiny.train.X, tiny.train.Y), rel=1e-5
    )
    assert finished.outcome.objective < long * 1.001


@pytest.mark.parametrize(
    ("group", "workers", "order"), [("serial", 3, "sync"), ("threads", 2, "ring")]
)
def test_exact_gradients_have_the_same_bits_on_any_workers(
    tiny, finished, tmp_path, group, workers, order
):
    assert (
        trained_dsmlr(tiny, tmp_path, group, workers, order=order, **EXACT).block.digest()
        == finished.block.digest()
    )


def test_features_whose_squares_overflow_are_refused_by_exact_gradients(tiny, tmp_path):
    train = tiny.train.X
    X = train._replace(data=frozen(train.data * np.float32(1e30), np.float32))
    with np.errstate(all="ignore"), pytest.raises(ParameterError, match="scale the features"):
        trained_dsmlr(tiny, tmp_path, directory=False, X=X, **EXACT)


@pytest.mark.parametrize("epoch", [2.2, 5.2])
def test_a_stop_among_exact_gradients_and_a_resume_change_no_bit(tiny, finished, tmp_path, epoch):
    stop = StopFlag()

    def on_progress(progress):
        if progress.done > epoch:
            stop.set()

    with pytest.raises(Stopped):
        trained_dsmlr(tiny, tmp_path, "threads", 2, stop=stop, on_progress=on_progress, **EXACT)
    assert (
        trained_dsmlr(tiny, tmp_path, "serial", 2, **EXACT).block.digest()
        == finished.block.digest()
    )


def test_a_stop_of_plain_steps_and_a_resume_change_no_bit(tiny, tmp_path):
    """Also at a checkpoint whose last epoch rose, which has the blocks of the best one, too."""
    plain, stop = {"history": 0, "rate": 8.0, "epochs": 6}, StopFlag()
    whole = trained_dsmlr(tiny, tmp_path / "whole", **plain)
    rises = [entry["back"] for entry in whole.outcome.history]
    number = rises.index(True) + 1

    def on_progress(progress):
        if progress.done > number + 0.2:
            stop.set()

    with pytest.raises(Stopped):
        trained_dsmlr(tiny, tmp_path, "threads", 2, stop=stop, on_progress=on_progress, **plain)
    resumed = trained_dsmlr(tiny, tmp_path, "serial", 2, **plain)
    assert resumed.outcome.objective == pytest.approx(
        objective(resumed, tiny.train.X, tiny.train.Y), rel=1e-5
    )
    assert resumed.block.digest() == whole.block.digest()


@pytest.mark.parametrize("history", [0, 5])
def test_checkpoints_are_as_large_as_foreseen(tiny, tmp_path, history):
    """The last one holds only weights, and a gradient of the same size."""
    sizes = {}

    def note_sizes(*args):
        for path in tmp_path.glob("checkpoint-[0-9]*"):
            sizes[path.name] = sum(read_table(each).nbytes for each in path.glob("*.arrow"))

    # a rate at which epochs rise, so that the blocks of the best one are kept
    parameters = {**EXACT, "history": history, "rate": 1.0 if history else 8.0}
    trained_dsmlr(tiny, tmp_path, on_progress=note_sizes, deliver=note_sizes, **parameters)
    *during, last = [sizes[name] for name in sorted(sizes)]
    solver = DSMLRSolver(**{**COMMON, **parameters})
    shape = problem_shape(tiny, tiny.n_features + 1)
    foreseen = solver.resources(shape, Layout(1, grid=GRID)).checkpoints / COPIES_ON_DISK
    assert max(during) == pytest.approx(foreseen, rel=0.1)
    assert last <= 2.2 * 4 * shape.features * shape.labels


def test_time_left_is_that_to_the_tolerance(tiny, tmp_path):
    """The limit of 500 epochs is never near, and after the last epoch there is no time left."""
    reports = []
    how = {"epochs": 500, "tolerance": 1e-3, "on_progress": reports.append}
    outcome = trained_dsmlr(tiny, tmp_path, **how).outcome
    assert outcome.epochs < 100
    assert reports[-1].eta == 0.0
    late = [each for each in reports if each.done > 0.9 * outcome.epochs]
    assert all(each.eta is None or each.eta < 400 / each.rate for each in late)


def test_the_time_is_up_among_exact_gradients(tiny, finished, tmp_path, monkeypatch):
    """The result is the last accepted point, not the trial point under evaluation."""
    jump = [0.0]
    monkeypatch.setattr(
        "xcray.workers.calls.time.monotonic",
        lambda real=time.monotonic: real() + jump[0],
    )

    def on_progress(progress):
        if progress.done > 5.2:
            jump[0] = 1e6

    model = trained_dsmlr(tiny, tmp_path, on_progress=on_progress, max_seconds=1e5, **EXACT)
    assert model.outcome.epochs == 5
    assert model.outcome.objective == finished.outcome.history[4]["objective"]
    assert model.outcome.objective == pytest.approx(
        objective(model, tiny.train.X, tiny.train.Y), rel=1e-5
    )


def test_dense_rows_rotate_with_the_same_bits(tiny, tmp_path, rng):
    """A problem with dense rows in the driver's memory gives the same bits on any workers."""
    X = csr_from(rng.normal(size=(tiny.train.n_rows, tiny.n_features)).astype(np.float32) * 0.1)
    one = trained_dsmlr(tiny, tmp_path / "1", directory=False, X=X)
    two = trained_dsmlr(tiny, tmp_path / "2", "threads", 2, directory=False, X=X, order="sync")
    assert one.block.digest() == two.block.digest()
    assert one.outcome.objective == pytest.approx(objective(one, X, tiny.train.Y), rel=1e-5)


def source_of(rows, *max_held_out):
    """Return what shards are cut from."""
    return ShardSource(GRID, split_plan(rows, GRID, 3, 0.0, *max_held_out), rows)


def test_shards_are_all_rows_with_labels_once(tiny):
    """The weights of all shards add up to 1, and so do those of the held-out rows."""
    train, test = tiny.train, tiny.test
    rows = source_of(TrainingRows(train.X, train.Y, None, (test.X, test.Y, None)))
    cuts = [rows.cut_shard(shard) for shard in range(GRID.shards)]
    labelled = np.flatnonzero(np.diff(train.Y.indptr) > 0)
    assert np.array_equal(np.sort(np.concatenate([shard.rows for shard, _ in cuts])), labelled)
    assert sum(shard.weights.sum() for shard, _ in cuts) == pytest.approx(1.0)
    assert sum(values.weights.sum() for _, values in cuts) == pytest.approx(1.0)


@pytest.mark.parametrize("watch", [0, 7, 10**6])
def test_some_or_no_rows_are_held_out(tiny, watch):
    train, test = tiny.train, tiny.test
    rows = source_of(TrainingRows(train.X, train.Y, None, (test.X, test.Y, None)), watch)
    values = [rows.cut_shard(shard)[1] for shard in range(GRID.shards)]
    if not watch:
        assert values == [None] * GRID.shards
        return
    numbers = np.concatenate([each.rows for each in values])
    assert len(set(numbers.tolist())) == len(numbers) <= min(test.n_rows, watch + GRID.shards)
    assert sum(each.weights.sum() for each in values) == pytest.approx(1.0)


def test_a_directory_of_other_content_is_not_taken(tiny):
    rows = source_of(TrainingRows(tiny.train.X, tiny.train.Y))
    none = empty_rows(tiny.n_features, tiny.n_labels)

    def opened(*where):
        return GroupWorkerFactory(
            DSMLRSolver(), none, Layout(1, grid=GRID), rows.split, *where
        ).open_source()

    assert isinstance(opened(str(tiny.path), tiny.content_hash), ShardSource)
    for wrong in (
        ("", ""),
        (str(tiny.path), "0" * 64),
        ("/nowhere/to/be/found", tiny.content_hash),
    ):
        assert opened(*wrong) is None
    assert opened() is None
