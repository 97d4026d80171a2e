"""L-BFGS and LC: one suite for both; and calls of all workers of a group."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tests.naive import multinomial as naive
from tests.support import group_programs as roundwork
from tests.support.group_programs import problem, run_program, train
from xcray.errors import ParameterError, Stopped, Unavailable
from xcray.solvers.held_out import merge_top_k, top_k
from xcray.solvers.label_weights import split_ranges
from xcray.solvers.lbfgs.solver import LBFGSSolver
from xcray.solvers.lc.solver import LCSolver
from xcray.workers.calls import MAX_LOSSES_PER_WORKER, GroupCalls
from xcray.workers.local_group import SerialGroup, ThreadGroup
from xcray.workers.parts import ShareWorker
from xcray.workers.timeline import LOST

LAM = 0.02
SOLVERS = [LBFGSSolver(lam=LAM, tolerance=1e-7), LCSolver(lam=LAM, tolerance=1e-7)]
each_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)


@each_solver
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_optimum_is_the_naive_twins(solver, sparse):
    X, Y, c = problem()
    result = train(solver, (X, Y, c), 2, sparse)
    W = result.weights
    assert result.reason == "the gradient is small"
    assert result.last.entry["objective"] == pytest.approx(
        naive.objective(W, X, Y, c, LAM), rel=1e-12
    )
    assert np.linalg.norm(naive.gradient(W, X, Y, c, LAM)) < 1e-6
    assert W == pytest.approx(naive.solve(X, Y, c, LAM), abs=1e-5)


@each_solver
def test_optimum_is_scikit_learns(solver):
    X, Y, _ = problem(1)
    classes = Y.argmax(axis=1)
    n = len(X)
    theirs = LogisticRegression(
        C=1.0 / (n * LAM), fit_intercept=False, tol=1e-10, max_iter=10_000
    ).fit(X, classes)
    ours = train(solver, (X, np.eye(Y.shape[1])[classes], np.full(n, 1.0 / n))).weights
    assert ours == pytest.approx(theirs.coef_.T, abs=1e-5)


@each_solver
def test_workers_change_nothing_but_rounding(solver):
    rows = problem(2)
    one, *more = (train(solver, rows, workers).weights for workers in (1, 2, 3))
    for W in more:
        assert W == pytest.approx(one, abs=1e-6)


@each_solver
def test_a_row_of_two_labels_is_two_rows_of_half_the_weight(solver):
    X, Y, c = problem(3)
    several = (Y > 0).sum(axis=1)
    labels, times = np.nonzero(Y)[1], np.repeat(np.arange(len(X)), several)
    single = (X[times], np.eye(Y.shape[1])[labels], c[times] * Y[times, labels])
    assert several.max() == 2
    assert train(solver, (X, Y, c)).weights == pytest.approx(
        train(solver, single).weights, abs=1e-5
    )


@each_solver
def test_rows_without_labels_count_for_nothing(solver):
    X, Y, c = problem(4)
    there = Y.sum(axis=1) > 0
    assert not there.all()
    assert train(solver, (X, Y, c)).weights == pytest.approx(
        train(solver, (X[there], Y[there], c[there])).weights, abs=1e-6
    )


@each_solver
def test_weights_are_repetitions(solver):
    X, Y, _ = problem(5)
    times = np.random.default_rng(5).integers(1, 4, len(X)) * (Y.sum(axis=1) > 0)
    again = np.repeat(np.arange(len(X)), times)
    repeated = (X[again], Y[again], np.full(len(again), 1.0 / len(again)))
    assert train(solver, (X, Y, times / times.sum())).weights == pytest.approx(
        train(solver, repeated).weights, abs=1e-5
    )


@each_solver
def test_a_constant_feature_becomes_the_bias(solver):
    X, Y, c = problem(6)
    value = 2.0
    rows = (np.column_stack([X, np.full(len(X), value)]), Y, c)
    solver = type(solver)(lam=LAM, bias=value, tolerance=1e-7)
    result = train(solver, rows, 2)
    W, blocks = result.weights, result.labels
    rows_of_W = np.concatenate([block.W.to_scipy().toarray() for block in blocks])
    bias = np.concatenate([block.bias for block in blocks])
    assert X @ rows_of_W.T + bias == pytest.approx(rows[0] @ W, abs=1e-5)
    assert np.abs(bias).max() > 0.01
    assert np.concatenate([block.labels for block in blocks]).tolist() == [0, 1, 2, 3, 4]
    assert np.concatenate([block.records["positives"] for block in blocks]).tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]


@each_solver
def test_small_weights_are_dropped(solver):
    rows = problem(7)
    solver = type(solver)(lam=LAM, prune=0.2)
    result = train(solver, rows)
    W = result.weights.T
    (block,) = result.labels
    stays = np.abs(W) > 0.2
    assert block.W.to_scipy().toarray() == pytest.approx(np.where(stays, W, 0.0), abs=1e-6)
    assert block.records["nnz"].tolist() == stays.sum(axis=1).tolist()
    assert (block.records["nnz"] + block.records["pruned"] == (W != 0).sum(axis=1)).all()
    assert 0 < stays.sum() < stays.size


@each_solver
def test_the_objective_never_rises_and_is_that_of_the_weights(solver):
    X, Y, c = problem(8)
    reports = []

    def on_round(done, W):
        objective = naive.objective(W, X, Y, c, LAM)
        reports.append((done.entry["objective"], objective, done.number))

    result = train(solver, (X, Y, c), 2, on_round=on_round)
    report, true, numbers = np.array(reports).T
    assert report == pytest.approx(true, rel=1e-12)
    assert (np.diff(report) <= 1e-14).all()
    assert numbers.tolist() == list(range(1, result.last.number + 1))
    assert report[0] < np.log(5)


@each_solver
def test_held_out_rows_are_evaluated(solver):
    X, Y, c = problem(9)
    state = problem(10, n=31)
    solver = type(solver)(lam=LAM, eval_every=2)
    result = train(solver, (X, Y, c), 3, watched=state, rounds=4)
    assert [done.held_out is None for done in result.rounds] == [True, False, True, False]
    watched, W = result.last.held_out, result.weights
    scores = state[0] @ W
    assert watched.loss == pytest.approx(naive.objective(W, *state, 0.0), rel=1e-12)
    assert watched.rows.tolist() == list(range(31))
    assert watched.labels.tolist() == np.argsort(-scores, axis=1, kind="stable").tolist()
    assert watched.scores == pytest.approx(-np.sort(-scores, axis=1), abs=1e-12)


@each_solver
def test_a_training_goes_on_with_other_workers(solver):
    rows = problem(11)
    whole, half = train(solver, rows, 2), train(solver, rows, 2, rounds=4)
    again = train(solver, rows, 3, state=half.last.state)
    assert again.rounds[0].number == 5
    assert again.weights == pytest.approx(whole.weights, abs=1e-6)


@each_solver
def test_a_stop_is_detected_inside_and_between_calls(solver):
    rows = problem(12)
    for patience in (0, 7, 40):
        request = iter(range(10**6))
        work = roundwork.work_of(solver, rows, 2)
        group = SerialGroup(work, 2)
        group.open()
        rounds = GroupCalls(group, lambda patience=patience, query=request: next(query) > patience)
        with pytest.raises(Stopped):
            run_program(solver, rounds, roundwork.empty_rows(8, 5))


@each_solver
@pytest.mark.parametrize(
    "wrong",
    [{"lam": 0.0}, {"tolerance": 0.0}, {"bias": -1.0}, {"eval_every": -1}, {"prune": -0.1}],
)
def test_parameters_have_ranges(solver, wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        type(solver)(**wrong)


class CountingWorker:
    """A worker that returns its name and the number of its calls."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.n_calls = 0

    def say(self, *things):
        self.n_calls += 1
        return [self.worker, *things], (self.worker, self.n_calls)

    def fail(self):
        raise ParameterError("no")


class CountingWorkerSpec:
    """Creates workers and records their names."""

    def __init__(self) -> None:
        self.workers: list[str] = []

    def create_worker(self, worker, stopped):
        self.workers.append(worker)
        return ShareWorker(lambda share: CountingWorker(worker))

    def warm_up(self):
        """Do nothing: there are no kernels to compile."""


@pytest.mark.parametrize("kind", [SerialGroup, ThreadGroup])
def test_answers_are_in_worker_order_and_each_gets_its_own(kind):
    group = kind(CountingWorkerSpec(), 3)
    group.open()
    try:
        rounds = GroupCalls(group)
        answers = rounds.call_each(CountingWorker.say, ["a", "b", "c"], rounds.put("all"))
        assert rounds.size == 3
        assert [report[0] for _, report in answers] == ["worker-0", "worker-1", "worker-2"]
        assert [rounds.fetch(handle) for handle, _ in answers] == [
            [f"worker-{i}", own, "all"] for i, own in enumerate("abc")
        ]
        again = rounds.call_each(CountingWorker.say, [handle for handle, _ in answers])
        assert rounds.fetch(again[1][0]) == ["worker-1", ["worker-1", "b", "all"]]
    finally:
        group.close()


def test_a_lost_worker_is_replaced_and_called_again():
    hands = CountingWorkerSpec()
    group = Losing(hands, 3, {"worker-1": 2})
    group.open()
    rounds = GroupCalls(group)
    answers = rounds.call(CountingWorker.say, 7)
    assert [report for _, report in answers] == [("worker-0", 1), ("worker-1", 1), ("worker-2", 1)]
    assert hands.workers.count("worker-1") == 3
    assert rounds.lost == 2


def test_a_worker_lost_between_two_rounds_is_replaced_before_the_next():
    group = SerialGroup(CountingWorkerSpec(), 2)
    group.open()
    rounds = GroupCalls(group)
    rounds.call(CountingWorker.say)
    group.simulate_loss("worker-0")
    assert [report for _, report in rounds.call(CountingWorker.say)] == [
        ("worker-0", 1),
        ("worker-1", 2),
    ]


def test_repeated_losses_end_the_round():
    group = Losing(CountingWorkerSpec(), 2, {"worker-0": 1000}, every=1)
    group.open()
    with pytest.raises(Unavailable, match="were lost in one round"):
        GroupCalls(group).call(CountingWorker.say)
    assert group.left["worker-0"] == 1000 - (MAX_LOSSES_PER_WORKER * 2 + 1)


def test_errors_of_a_call_end_only_its_round():
    group = SerialGroup(CountingWorkerSpec(), 2)
    group.open()
    rounds = GroupCalls(group)
    with pytest.raises(ParameterError, match="no"):
        rounds.call(CountingWorker.fail)
    assert [report for _, report in rounds.call(CountingWorker.say)] == [
        ("worker-0", 1),
        ("worker-1", 1),
    ]


@each_solver
def test_a_training_that_loses_workers_ends_with_the_same_bits(solver):
    rows = problem(13)
    work = roundwork.work_of(solver, rows, 2)
    group = Losing(work, 2, {"worker-0": 2, "worker-1": 1})
    group.open()
    spans = []
    calls = GroupCalls(group, record=spans.append)
    result = run_program(solver, calls, roundwork.empty_rows(8, 5))
    assert group.left == {"worker-0": 0, "worker-1": 0}
    lost = [span.worker for span in spans if span.outcome == LOST]
    assert sorted(lost) == ["worker-0", "worker-1"]  # the third one was lost between two calls
    assert result.weights.tobytes() == train(solver, rows, 2).weights.tobytes()


class Losing(SerialGroup):
    """Loses workers as often as `losses` says, at one of `every` waits."""

    def __init__(self, work, workers, losses, every=3):
        super().__init__(work, workers)
        self.left = dict(losses)
        self._waits = -workers  # not those in which workers get their shares
        self._every = every

    def wait(self, seconds):
        self._waits += 1
        for worker, left in self.left.items():
            if left and self._waits > 0 and self._waits % self._every == 2 % self._every:
                self.left[worker] -= 1
                self.simulate_loss(worker)
        return super().wait(seconds)


def test_ranges_are_even_and_whole():
    assert split_ranges(7, 3) == [(0, 2), (2, 4), (4, 7)]
    assert split_ranges(2, 3) == [(0, 0), (0, 1), (1, 2)]


def test_the_best_of_parts_are_the_best_of_all():
    S = np.random.default_rng(0).integers(0, 6, (50, 9)).astype(float)  # many ties
    whole = top_k(S, 0, 4)
    parts = merge_top_k([top_k(S[:, :2], 0, 4), top_k(S[:, 2:7], 2, 4), top_k(S[:, 7:], 7, 4)], 4)
    assert (
        parts.labels.tolist()
        == whole.labels.tolist()
        == np.argsort(-S, axis=1, kind="stable")[:, :4].tolist()
    )
    assert parts.scores.tolist() == whole.scores.tolist()
