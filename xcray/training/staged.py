"""Strategy of solvers that end with stages: one after the other, each saved when it is fitted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from xcray.arrays import CSR, Int32, TopK, csr, frozen
from xcray.errors import Unavailable, XcrayError
from xcray.index.staged import Stage
from xcray.kernels.sparse import pattern_range, row_range
from xcray.measures import precision_at_k
from xcray.model.stages import n_weights, read_stages, write_stages
from xcray.solvers.least_squares.staged_solvers import StagesSolver
from xcray.solvers.least_squares.stages import FittedStage, calibrate, feature_chunks
from xcray.solvers.solved_labels import SolvedLabels
from xcray.solvers.synchronous_contract import RECORDS, TrainingRows, top_k
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    file_digests,
    publish_directory,
    read_json,
    write_json,
)
from xcray.system.blas_threads import limit_blas_threads
from xcray.training.capacity.epoch_resources import complete_estimate, problem_shape
from xcray.training.capacity.preflight import Estimate, memory_limits
from xcray.training.epoch_progress import resume_note
from xcray.training.epoch_strategy import EpochStrategy, make_worker_group, outcome_report
from xcray.training.observer import TrainingObserver
from xcray.training.strategy import TrainingContext
from xcray.training.synchronous import MAX_RESTARTS, SynchronousWorkerFactory, training_rows
from xcray.workers.observer import RunProgress
from xcray.workers.synchronous_calls import SynchronousCalls
from xcray.workers.timeline import START, TimelinePosition
from xcray.workers.worker_group import OBJECT_LOST

OUTCOME_FILE: Final = "outcome.json"
METADATA_FILE: Final = "checkpoint.json"
SCORE_CELLS: Final = 1 << 22  # held-out scores in memory at a time: 16 MB
MAX_HELD_OUT_CELLS: Final = 1 << 26  # held-out scores kept between stages, at most: 256 MB


class StagedTraining(EpochStrategy):
    """Strategy of solvers of class `StagesSolver`, see `TrainingStrategy`.

    stages: of the model, after `solve`.
    """

    def __init__(self, context: TrainingContext, solver: StagesSolver) -> None:
        super().__init__(context, solver)
        self._solver = solver
        self._history: list[dict[str, Any]] = []
        self._position = START  # in the timeline, after the last saved stage
        self._in_memory = True  # whether workers copy their rows, see `TrainingRows`
        self.stages: tuple[Stage, ...] = ()

    def run_settings(self) -> dict[str, Any]:
        """Return no settings: a run can be resumed with any number of workers."""
        return {}

    def estimate(self, missing: Int32, probe_seconds: float | None = None) -> Estimate:
        """Return the estimate with rows in memory, or without if they do not fit."""
        free = min(memory_limits(self._context.spec).values(), default=0)
        estimate = self._estimate(in_memory=True)
        self._in_memory = estimate.memory <= free
        return estimate if self._in_memory else self._estimate(in_memory=False)

    def _estimate(self, in_memory: bool) -> Estimate:
        """See `xcray.training.capacity.epoch_resources`."""
        shape = problem_shape(self._context.dataset, self._context.dataset.n_features)
        needs = self._solver.resources(shape, self.workers, in_memory)
        spec, sparse = self._context.spec, needs._replace(weights=0)
        estimate = complete_estimate(spec, self.workers, self._context.dataset, shape, sparse)
        model = estimate.model + 4 * needs.weights
        return estimate._replace(model=model, weights=needs.weights)

    def solve(self, observer: TrainingObserver) -> None:
        """Fit the stages that are not saved yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fitted = self._saved()
        if not (self.folder / OUTCOME_FILE).is_file() or len(observer.parts.missing):
            fitted = self._fit_all(observer, fitted)
        K = self._context.dataset.n_labels
        zeros = frozen(np.zeros(K), np.float32)
        self.stages = tuple(Stage(s.W, zeros, s.features, s.calibration) for s in fitted)
        if len(observer.parts.missing):
            observer.commit(self.block())
            observer.sync()

    def block(self) -> SolvedLabels:
        """Return a block of all labels without weights: the stages have them."""
        K, D = self._context.dataset.n_labels, self._context.dataset.n_features
        records = np.zeros(K, RECORDS.dtype)
        records["label"], records["positives"] = np.arange(K), self._context.dataset.label_counts
        records["rounds"] = len(self.stages)
        records["nnz"] = sum(map(n_weights, self.stages)) // max(K, 1)
        W = csr(np.zeros(K + 1, np.int64), [], [], D)
        return SolvedLabels(
            frozen(np.arange(K), np.int32), W, frozen(np.zeros(K), np.float64), records
        )

    def query(self, X: CSR, k: int) -> TopK:
        """Return the k best labels of rows (n, D) under the stages, in float32."""
        parts, step = [], max(1, SCORE_CELLS // max(self._context.dataset.n_labels, 1))
        for lo in range(0, max(X.n_rows, 1), step):
            yhat = _StagedScores(row_range(X, lo, min(lo + step, X.n_rows)), self)
            for stage in self.stages:
                yhat.add(FittedStage(_dense(stage), stage.features, stage.calibration))
            parts.append(top_k(yhat.scores.astype(np.float64), 0, k))
        labels, scores = (
            np.concatenate([getattr(part, name) for part in parts]) for name in TopK._fields
        )
        return TopK(frozen(labels, np.int32), frozen(scores, np.float64))

    def summarize(self, block: SolvedLabels, measures: Mapping[str, float]) -> dict[str, Any]:
        """Return `outcome_report`, the number of stages and that of lost workers."""
        newest = read_json(self.folder / OUTCOME_FILE)
        report = outcome_report(self._solver, newest, block, measures)
        del report["objective"]  # a stage has its own
        return {**report, "stages": len(self.stages), "workers_lost": newest["lost"]}

    def _fit_all(
        self, observer: TrainingObserver, fitted: tuple[FittedStage, ...]
    ) -> tuple[FittedStage, ...]:
        """Fit stages until all are done or the time is up; after a node loss, go on."""
        context = self._context
        path, content_hash = str(context.dataset.path.resolve()), context.dataset.content_hash
        factory = SynchronousWorkerFactory(
            self._solver, path, content_hash, self.workers, self._in_memory
        )
        store = _store_bytes(self._solver, context)
        group = make_worker_group(context.spec, factory, self.workers, context.job, store)
        observer.discard_since(self._position)
        note = resume_note(len(fitted)) if fitted else ""
        try:
            group.open()
            with observer.observe(group), limit_blas_threads():
                calls = SynchronousCalls(group, observer.stop.is_set, observer.record)
                for losses in range(MAX_RESTARTS + 1):
                    try:
                        reason = self._fit(calls, observer, note)
                        break
                    except Unavailable as error:
                        if error.code != OBJECT_LOST or losses == MAX_RESTARTS:
                            raise
                        note = "a node was lost" + resume_note(len(self._saved()))
                        observer.discard_since(self._position)
                self._write_outcome(reason, calls.lost)
        finally:
            group.stop()
            group.close()
        return self._saved()

    def _fit(self, calls: SynchronousCalls, observer: TrainingObserver, note: str) -> str:
        """Fit and save the remaining stages; return why the training ends."""
        data, fitted = training_rows(self._context.dataset), self._saved()
        began, earlier = time.monotonic(), self._history[-1]["seconds"] if self._history else 0.0
        held_out = self._held_out(data)
        for stage in fitted:
            held_out.add(stage)
        number, limit = len(fitted), self._solver.n_stages
        for stage in self._solver.fit(calls, data, fitted):
            number += 1
            held_out.add(stage)
            seconds = earlier + time.monotonic() - began
            features = len(stage.W) + (self._history[-1]["features"] if self._history else 0)
            entry = {"epoch": number, "seconds": round(seconds, 3), "features": features}
            entry |= held_out.measures()
            self._history.append(entry)
            self._save(number, stage, observer.mark())
            rate = number / max(seconds, 1e-9)
            eta = (limit - number) / rate
            observer.report(RunProgress(number, limit, seconds, rate, eta, entry, note))
            note, left = "", observer.seconds_left()
            if left is not None and left <= 0.0 and number < limit:
                return f"the time of {self._context.spec.max_seconds:g} s was up"
        return self._solver.stopping.reached

    def _held_out(self, data: TrainingRows) -> _StagedScores:
        """Return predictions of the first held-out rows, as many as fit."""
        test, most = self._context.dataset.test, MAX_HELD_OUT_CELLS // max(self.n_labels, 1)
        if test is None:
            return _StagedScores(row_range(data.X, 0, 0), self)
        return _StagedScores(row_range(test.X, 0, min(test.n_rows, most)), self)

    def dataset_truth(self, n_rows: int) -> Any:
        """Return the labels of the first `n_rows` held-out rows, None without any."""
        test = self._context.dataset.test
        return None if test is None else pattern_range(test.Y, 0, n_rows)

    @property
    def n_labels(self) -> int:
        """Return K."""
        return self._context.dataset.n_labels

    def _saved(self) -> tuple[FittedStage, ...]:
        """Return the stages saved so far, up to the first one that is incomplete."""
        stages: list[FittedStage] = []
        self._history, self._position = [], START
        while (place := self.folder / f"stage-{len(stages):04d}").is_dir():
            metadata = _read_metadata(place)
            if metadata is None:
                discard_directory(place)
                break
            D, K = self._context.dataset.n_features, self._context.dataset.n_labels
            [stage] = read_stages(place, [metadata["entry"]], D, K)
            stages.append(FittedStage(_dense(stage), stage.features, stage.calibration))
            self._history, self._position = (
                metadata["history"],
                TimelinePosition(*metadata["timeline"]),
            )
        return tuple(stages)

    def _save(self, number: int, stage: FittedStage, position: TimelinePosition) -> None:
        """Save a stage by one rename, with the history and the timeline up to it."""
        target = self.folder / f"stage-{number - 1:04d}"
        staged = create_staging_directory(target)
        try:
            zeros = frozen(np.zeros(self.n_labels), np.float32)
            model_stage = Stage(stage.W, zeros, stage.features, stage.calibration)
            [entry] = write_stages(staged, [model_stage])
            metadata = {"entry": entry, "history": self._history, "timeline": position}
            write_json(staged / METADATA_FILE, {**metadata, "files": file_digests(staged)})
            discard_directory(target)
            publish_directory(staged, target)
        finally:
            discard_directory(staged)

    def _write_outcome(self, reason: str, losses: int) -> None:
        """Write the training summary."""
        details = {"epochs": len(self._history), "objective": None, "reason": reason}
        document = {**details, "history": self._history, "lost": losses}
        write_json(self.folder / OUTCOME_FILE, document)


class _StagedScores:
    """Predictions (n, K) float32 of some rows, stage after stage."""

    def __init__(self, X: CSR, training: StagedTraining) -> None:
        self._X, self._training = X, training
        self.scores = np.zeros((X.n_rows, training.n_labels), np.float32)

    def add(self, stage: FittedStage) -> None:
        """Add a stage."""
        for lo, Z in feature_chunks(self._X, stage.features, self._training.n_labels):
            self.scores[lo : lo + Z.shape[0]] += Z @ stage.W
        self.scores = calibrate(self.scores, stage.calibration)

    def measures(self) -> dict[str, float]:
        """Return P@1 and P@5 of the held-out rows; nothing without rows."""
        truth = self._training.dataset_truth(len(self.scores))
        if not len(self.scores) or truth is None:
            return {}
        top = top_k(self.scores.astype(np.float64), 0)
        ranked = TopK(frozen(top.labels, np.int32), frozen(top.scores, np.float64))
        ks = sorted({1, ranked.labels.shape[1]})
        return {f"P@{k}": precision_at_k(ranked, truth, k) for k in ks}


def _read_metadata(place: Path) -> dict[str, Any] | None:
    """Return the metadata of a saved stage, None if a file is damaged or missing."""
    try:
        metadata: dict[str, Any] = read_json(place / METADATA_FILE)
    except XcrayError:
        return None
    return metadata if metadata["files"] == file_digests(place, skip=[METADATA_FILE]) else None


def _store_bytes(solver: StagesSolver, context: TrainingContext) -> int:
    """Return the bytes that a training holds in Ray's object store."""
    shape = problem_shape(context.dataset, context.dataset.n_features)
    return solver.resources(shape, 1).store


def _dense(stage: Stage) -> Any:
    """Return the dense weights of a stage that this module has saved."""
    assert not isinstance(stage.W, CSR)
    return stage.W
