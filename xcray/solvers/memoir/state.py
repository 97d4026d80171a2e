"""State of a MEMOIR training between two rounds, and its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xcray.arrays import CSR, Int32, Int64, csr
from xcray.errors import Corrupt
from xcray.kernels.training import memoir as kernel
from xcray.kernels.training.class_weights import update_mean
from xcray.solvers.memoir.held_out import HeldOutCounts, HeldOutRows, best_of_rows, count_hits
from xcray.solvers.memoir.oracle import OracleErrors
from xcray.solvers.memoir.parameters import MemoirParameters
from xcray.solvers.memoir.rounds import INITIAL_CAPACITY, Exchange, Rounds, Share
from xcray.storage.array_files import Arrays, read_arrays, write_arrays

# time until the first checkpoint, and between two others; a short training writes none
FIRST_SECONDS, CHECKPOINT_SECONDS = 1.0, 5.0


@dataclass
class MemoirState:
    """State of a worker: the problem over the classes that occur in the samples.

    label_ids: their numbers. positives: (K,) training rows of all classes. held_out: rows for early
    stopping. checkpoint_dir: directory in which the training saves its state and resumes; None to
    save nothing. threads: that search the rivals of a group.
    """

    problem: kernel.MemoirProblem
    label_ids: Int32
    positives: Int64
    held_out: HeldOutRows | None = None
    checkpoint_dir: Path | None = None
    threads: int = 1

    def clone_for_thread(self) -> MemoirState:
        """Return the same state: the task creates its own arrays."""
        return self


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

    def run(self, stopped: Callable[[], bool], checkpoint: MemoirCheckpoint | None) -> Exchange:
        """Run the remaining rounds. Raises Stopped if `stopped` returns True."""
        while not self.is_done:
            yield from self._run_round(stopped)
            if checkpoint and checkpoint.is_due:
                checkpoint.save(self)

    def _run_round(self, stopped: Callable[[], bool]) -> Exchange:
        """Run the next round and evaluate it."""
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


class MemoirCheckpoint:
    """One file at `path` with the state of a training after a round.

    The next process continues from it with the same bits. A file that is damaged is renamed to
    `.damaged`, and the training starts again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next one."""
        first = min(FIRST_SECONDS, CHECKPOINT_SECONDS)
        interval = CHECKPOINT_SECONDS if self._path.exists() else first
        return time.monotonic() - self._saved_at >= interval and self._path.parent.is_dir()

    def save(self, training: MemoirTraining) -> None:
        """Write the state of a training."""
        numbers = np.array([training.number, training.best_number])
        arrays = {
            "numbers": numbers,
            "state": training.rounds.state.view(np.uint8),
            "counts": np.stack(training.counts),
            "oracle": np.array(training.rounds.errors).reshape(-1, len(OracleErrors._fields)),
            **_list_arrays(training.rounds.lists),
            **_matrix_arrays("mean", training.mean),
            **_matrix_arrays("best", training.best),
        }
        write_arrays(self._path, arrays)
        self._saved_at = time.monotonic()

    def restore(self, training: MemoirTraining) -> None:
        """Set the state of a training to the saved one, if there is one."""
        if not self._path.exists():
            return
        try:
            arrays = read_arrays(self._path)
        except Corrupt:
            self._path.rename(self._path.with_suffix(".damaged"))
            return
        rounds = training.rounds
        rounds.errors = [OracleErrors(*each) for each in arrays["oracle"].tolist()]
        training.number, training.best_number = (int(each) for each in arrays["numbers"])
        training.counts = HeldOutCounts(*arrays["counts"])
        D = len(rounds.lists.heads)
        training.mean, training.best = (_read_matrix(name, arrays, D) for name in ("mean", "best"))
        rounds.state = arrays["state"].copy().view(kernel.STATE)
        rounds.lists = _read_lists(arrays)
        rounds.state["used"] = rounds.lists.heads["capacity"].sum()


def start_training(
    params: MemoirParameters, local: MemoirState, share: Share, use_checkpoint: bool = True
) -> tuple[MemoirTraining, MemoirCheckpoint | None]:
    """Return the training at its last checkpoint or at W = 0, and the checkpoint."""
    problem = local.problem
    rounds = Rounds(problem, params, params.batch_size(problem.Y.n_cols), share)
    limit = params.rounds if len(problem.rows) and problem.Y.n_cols > 1 else 0
    training = MemoirTraining(rounds, local.held_out, limit)
    if local.checkpoint_dir is None:
        return training, None
    checkpoint = MemoirCheckpoint(local.checkpoint_dir / "memoir.arrow")
    if use_checkpoint:
        checkpoint.restore(training)
    return training, checkpoint


def _positions(heads: Any) -> Any:
    """Return the positions of the entries of all lists in the pools."""
    size = heads["size"].astype(np.int64)
    return np.arange(size.sum()) + np.repeat(heads["begin"] - (np.cumsum(size) - size), size)


def _list_arrays(lists: kernel.FeatureLists) -> Arrays:
    """Return the entries of all lists, and their sizes and capacities.

    Capacities decide when zeros are dropped, and so the rounding of thresholds.
    """
    at, has_marks = _positions(lists.heads), len(lists.marks) > 0
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
    at = _positions(heads)
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
