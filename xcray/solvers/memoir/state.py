"""State of a MEMOIR training between two rounds, and its arrays in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from xcray.arrays import CSR, Int32, Int64, csr
from xcray.kernels.training import memoir as kernel
from xcray.kernels.training.class_weights import update_mean
from xcray.solvers.memoir.graph_rounds import GraphRounds
from xcray.solvers.memoir.held_out import HeldOutCounts, HeldOutRows, best_of_rows, count_hits
from xcray.solvers.memoir.margin_errors import OracleErrors
from xcray.solvers.memoir.parameters import MemoirParameters
from xcray.solvers.memoir.rounds import INITIAL_CAPACITY, Exchange, Rounds, list_positions
from xcray.solvers.memoir.share import Share
from xcray.storage.array_files import Arrays


@dataclass(frozen=True)
class MemoirState:
    """State of a worker: the problem over the classes that occur in the samples.

    label_ids: their numbers. positives: (K,) training rows of all classes. held_out: rows for early
    stopping.
    """

    problem: kernel.MemoirProblem
    label_ids: Int32
    positives: Int64
    held_out: HeldOutRows | None = None


class MemoirTraining:
    """Rounds of a training, the mean of their weights, and the best weights on held-out rows.

    number: of the last round. mean: that of the weights of the rounds from `average_from` on, None
    if there are none. best: the best weights so far, of round `best_number`, with their `counts`;
    None without held-out rows.
    """

    def __init__(self, rounds: Rounds, held_out: HeldOutRows | None, limit: int) -> None:
        self.rounds, self.held_out, self.limit = rounds, held_out, limit
        self.number = self.best_number = 0
        self.mean: CSR | None = None
        self.best = None if held_out is None else rounds.weights()
        zeros = np.zeros(rounds.problem.Y.n_cols, np.int64)
        self.counts = HeldOutCounts(zeros, zeros, zeros)

    @property
    def is_done(self) -> bool:
        """Whether all rounds are done, or macro-F1 has not improved for some rounds."""
        since = self.number - self.best_number
        is_late = self.held_out is not None and since >= self.params.early_stopping_rounds
        return self.number >= self.limit or is_late

    def run_round(self, stopped: Callable[[], bool]) -> Exchange:
        """Run the next round and evaluate it. Raises Stopped if `stopped` returns True."""
        number, params = self.number + 1, self.params
        yield from self.rounds.run(number, params.step_size(number), stopped)
        if 0 < params.average_from <= number:
            W, count = self.rounds.weights(), number - params.average_from + 1
            self.mean = W if self.mean is None else update_mean(self.mean, W, count)
        is_last = number == self.limit
        if self.held_out is not None and (is_last or number % params.eval_every == 0):
            yield from self._evaluate(number, self.held_out, stopped)
        self.number = number

    def weights(self) -> CSR:
        """Return the weights of the model: (K, D)."""
        return self._present() if self.best is None else self.best

    def _present(self) -> CSR:
        """Return the weights after the last round, or their mean over the rounds to be averaged."""
        return self.rounds.weights() if self.mean is None else self.mean

    def _evaluate(
        self, number: int, held_out: HeldOutRows, stopped: Callable[[], bool]
    ) -> Exchange:
        """Evaluate the weights after round `number`, and keep them if they are the best."""
        W = self._present()
        lo, hi = self.rounds.share.part(0, held_out.Y.shape[0])
        best = yield best_of_rows(W, held_out, lo, hi, stopped)
        counts = count_hits(best, held_out.Y)
        if not self.best_number or counts.macro_f1 > self.counts.macro_f1:
            self.best, self.best_number, self.counts = W, number, counts

    @property
    def params(self) -> MemoirParameters:
        """Return the parameters."""
        return self.rounds.params


def saved_arrays(training: MemoirTraining) -> Arrays:
    """Return the state of a training after a round, without gaps in the pools."""
    state = training.rounds.state.copy()
    state["used"] = training.rounds.lists.heads["capacity"].sum()
    return {
        **training.rounds.saved_graph(),
        "numbers": np.array([training.number, training.best_number]),
        "state": state.view(np.uint8),
        "counts": np.stack(training.counts),
        "oracle": np.array(training.rounds.errors).reshape(-1, len(OracleErrors._fields)),
        **_list_arrays(training.rounds.lists),
        **_matrix_arrays("mean", training.mean),
        **_matrix_arrays("best", training.best),
    }


def restore(training: MemoirTraining, arrays: Arrays) -> None:
    """Set the state of a training to a saved one."""
    rounds = training.rounds
    rounds.errors = [OracleErrors(*each) for each in arrays["oracle"].tolist()]
    training.number, training.best_number = (int(each) for each in arrays["numbers"])
    training.counts = HeldOutCounts(*arrays["counts"])
    D = rounds.problem.X.n_cols
    training.mean, training.best = (_read_matrix(name, arrays, D) for name in ("mean", "best"))
    rounds.state = arrays["state"].copy().view(kernel.STATE)
    rounds.lists = _read_lists(arrays)
    rounds.restore_graph(arrays)


def make_rounds(
    problem: kernel.MemoirProblem, params: MemoirParameters, batch: int, share: Share
) -> Rounds:
    """Return W = 0 in the form that the search needs. batch: samples per round."""
    kind = GraphRounds if params.oracle == "sw-graph" else Rounds
    return kind(problem, params, batch, share)


def start_training(params: MemoirParameters, local: MemoirState, share: Share) -> MemoirTraining:
    """Return the training at W = 0."""
    problem = local.problem
    rounds = make_rounds(problem, params, params.batch_size(problem.Y.n_cols), share)
    limit = params.rounds if len(problem.rows) and problem.Y.n_cols > 1 else 0
    return MemoirTraining(rounds, local.held_out, limit)


def _list_arrays(lists: kernel.FeatureLists) -> Arrays:
    """Return the entries of all lists, and their sizes and capacities.

    Capacities decide when zeros are dropped, and so the rounding of thresholds.
    """
    at, has_marks = list_positions(lists.heads), len(lists.marks) > 0
    return {
        "size": lists.heads["size"],
        "capacity": lists.heads["capacity"],
        "labels": lists.entries["label"][at],
        "values": lists.entries["value"][at],
        "has_marks": np.array([has_marks], np.int8),
        "marks": lists.marks[at] if has_marks else lists.marks,
    }


def _read_lists(arrays: Arrays) -> kernel.FeatureLists:
    """Return the lists of `_list_arrays`."""
    has_marks = bool(arrays["has_marks"][0])
    heads = np.zeros(len(arrays["size"]), kernel.HEAD)
    heads["size"], heads["capacity"] = arrays["size"], arrays["capacity"]
    ends = np.cumsum(arrays["capacity"], dtype=np.int64)
    heads["begin"] = ends - arrays["capacity"]
    pool = max(INITIAL_CAPACITY, int(ends[-1]) if len(ends) else 0)
    entries, marks = np.zeros(pool, kernel.ENTRY), np.zeros(pool if has_marks else 0)
    at = list_positions(heads)
    entries["label"][at], entries["value"][at] = arrays["labels"], arrays["values"]
    if has_marks:
        marks[at] = arrays["marks"]
    return kernel.FeatureLists(heads, entries, marks)


def _matrix_arrays(name: str, matrix: CSR | None) -> Arrays:
    """Return the arrays of a matrix; none for None."""
    if matrix is None:
        return {}
    return {f"{name}.{part}": getattr(matrix, part) for part in ("indptr", "indices", "data")}


def _read_matrix(name: str, arrays: Arrays, n_cols: int) -> CSR | None:
    """Return the matrix of `_matrix_arrays`."""
    if f"{name}.data" not in arrays:
        return None
    indptr, indices, data = (arrays[f"{name}.{part}"] for part in ("indptr", "indices", "data"))
    return csr(indptr, indices, data, n_cols)
